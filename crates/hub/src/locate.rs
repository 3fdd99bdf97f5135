//! Finds the path of a model by its name.

use std::path::PathBuf;

use crate::stored::{find, mark_used};
use crate::tried::{TriedModel, nearest, tried};
use crate::{HubError, ModelName, OtherModel, OtherPrograms, Settings};

/// Returns the path of a model. Its name is one in the hub's cache, a short name of [`TRIED`](crate::TRIED), or one in
/// another program. The call marks the model as used. `None` for a text that looks like a path.
///
/// # Errors
/// [`HubError::NotStored`], [`HubError::Incomplete`], [`HubError::Several`], [`HubError::Unknown`] for a text similar
/// to short names, [`HubError::OtherProgram`] for an unusable model of another program, [`HubError::File`].
pub fn locate(settings: &Settings, others: &OtherPrograms, text: &str) -> Result<Option<PathBuf>, HubError> {
    if reads_like_a_path(text) {
        return Ok(None);
    }
    let own = match (text.parse::<ModelName>(), tried(text)) {
        (Ok(name), _) => Some(find(&settings.cache, &name)),
        (Err(_), Some(model)) => Some(find_short(settings, model)),
        (Err(_), None) => None,
    };
    match own {
        Some(Ok(path)) => {
            mark_used(&path);
            return Ok(Some(path));
        }
        Some(Err(error)) if !matches!(error, HubError::NotStored { .. } | HubError::Incomplete { .. }) => {
            return Err(error);
        }
        _ => {}
    }
    if let Some(OtherModel {
        name, program, path, ..
    }) = others.find(text)?
    {
        let path = path.map_err(|problem| HubError::OtherProgram { name, program, problem })?;
        return Ok(Some(path));
    }
    match own {
        Some(Err(error)) => Err(error),
        _ => match nearest(text) {
            near if near.is_empty() => Ok(None),
            near => Err(HubError::Unknown {
                name: text.to_owned(),
                near: near.join(", "),
            }),
        },
    }
}

/// The stored model of a short name, in any quantisation.
fn find_short(settings: &Settings, model: &TriedModel) -> Result<PathBuf, HubError> {
    let name: ModelName = model.repository.parse()?;
    find(&settings.cache, &name).map_err(|error| match error {
        HubError::NotStored { .. } => HubError::NotStored {
            name: model.name.to_owned(),
        },
        error => error,
    })
}

/// True for texts that look like files and folders.
fn reads_like_a_path(text: &str) -> bool {
    let is_file = text.ends_with(".gguf") || text.ends_with(".safetensors");
    text.is_empty()
        || text.starts_with(['/', '.', '~'])
        || text.contains('\\')
        || (is_file && text.matches('/').count() <= 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_not_taken_for_names() {
        for text in [
            "models/a.gguf",
            "/a/b",
            "./a/b",
            "../a/b",
            "~/a",
            "a.gguf",
            "C:\\a/b",
            "",
        ] {
            assert!(reads_like_a_path(text), "{text}");
        }
        for text in ["a/b", "a/b:q8_0", "a/b/c.gguf", "llama3.2:1b", "hf.co/a/b:Q4_K_M"] {
            assert!(!reads_like_a_path(text), "{text}");
        }
    }
}
