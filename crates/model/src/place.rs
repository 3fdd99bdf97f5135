//! The place of a model's files: a directory as of Hugging Face, or a GGUF file, named itself or alone in its folder.

use std::path::{Path, PathBuf};

use crate::ModelError;
use crate::directory::CONFIG_FILE;
use crate::fields::read_json;
use crate::tokenizer::TOKENIZER_FILE;

/// The settings of an adapter, as PEFT names them.
const ADAPTER_FILE: &str = "adapter_config.json";

/// A part of a file that is split: its number stands behind this many digits from the end of its name.
const SPLIT_DIGITS: usize = 5;

pub(crate) enum ModelPlace {
    /// `config.json`, weights and tokenizer lie side by side.
    Directory(PathBuf),
    /// A GGUF file.
    File(PathBuf),
}

impl ModelPlace {
    /// The place of the model that `path` names. A folder without settings that holds one GGUF model stands for its file.
    ///
    /// # Errors
    /// [`ModelError::NotFound`], [`ModelError::Io`], [`ModelError::SeveralModels`], [`ModelError::Adapter`].
    pub(crate) fn find(path: &Path) -> Result<Self, ModelError> {
        let unreadable = |source: std::io::Error| match source.kind() {
            std::io::ErrorKind::NotFound => ModelError::NotFound { path: path.to_owned() },
            _ => ModelError::Io {
                path: path.to_owned(),
                source,
            },
        };
        if !std::fs::metadata(path).map_err(unreadable)?.is_dir() {
            return Ok(Self::File(path.to_owned()));
        }
        let holds = |name: &str| path.join(name).exists();
        if holds(CONFIG_FILE) {
            return Ok(Self::Directory(path.to_owned()));
        }
        if holds(ADAPTER_FILE) {
            return Err(adapter(path)?);
        }
        let entries = std::fs::read_dir(path).map_err(unreadable)?;
        let mut files: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|file| is_model(file))
            .collect();
        files.sort();
        match &files[..] {
            [file] => Ok(Self::File(file.clone())),
            [] => Ok(Self::Directory(path.to_owned())),
            _ if holds(TOKENIZER_FILE) => Ok(Self::Directory(path.to_owned())),
            _ => Err(ModelError::SeveralModels {
                directory: path.to_owned(),
                files: files
                    .iter()
                    .filter_map(|file| Some(file.file_name()?.to_string_lossy().into_owned()))
                    .collect(),
            }),
        }
    }
}

/// True for a GGUF file of a language model, or for the first part of one that is split.
fn is_model(file: &Path) -> bool {
    let name = file.file_name().map(|name| name.to_string_lossy().to_lowercase());
    let Some(stem) = name.as_deref().and_then(|name| name.strip_suffix(".gguf")) else {
        return false;
    };
    // The part that turns pictures into tokens lies beside its model.
    if stem.starts_with("mmproj") {
        return false;
    }
    let Some((before, count)) = stem.rsplit_once("-of-") else {
        return true;
    };
    let number = before.rsplit_once('-').map_or("", |(_, number)| number);
    let are_digits = |text: &str| text.len() == SPLIT_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
    !(are_digits(count) && are_digits(number)) || number.parse() == Ok(1)
}

/// The error for a folder of an adapter, with the name of the model that it belongs to.
fn adapter(path: &Path) -> Result<ModelError, ModelError> {
    let settings = read_json(&path.join(ADAPTER_FILE))?;
    let base = settings
        .as_ref()
        .and_then(|settings| settings.get("base_model_name_or_path")?.as_str());
    Ok(ModelError::Adapter {
        directory: path.to_owned(),
        base: base.unwrap_or("another model").to_owned(),
    })
}
