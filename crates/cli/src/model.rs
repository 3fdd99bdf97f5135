//! Finds the default model: `RIFFLE_MODEL`, or else the last used model, or else the only one on this machine.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

use clap::Args;
use riffle_hub::{OtherPrograms, Settings, TriedModel, gigabytes};

use crate::failure::Failure;
use crate::{commands, console, hub_args, shown, user_folders};

/// Variable with the default model of every command.
const VARIABLE: &str = "RIFFLE_MODEL";
/// Variable with the default embedding model of `riffle ask`.
const EMBEDDINGS_VARIABLE: &str = "RIFFLE_EMBEDDINGS";
/// Limit on the bytes of the file with the last used model.
const LONGEST_NAME: u64 = 16 << 10;
/// Limit on the models in a refusal; the others are counted.
const MOST_NAMED: usize = 4;

/// A model's typed name and its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedModel {
    pub(crate) name: PathBuf,
    pub(crate) path: PathBuf,
    /// The server's name for the model, if one was typed.
    pub(crate) served_as: Option<String>,
}

/// The model option of every command that needs a model.
#[derive(Debug, Clone, Args)]
pub(crate) struct ModelArguments {
    /// Model: file, folder or name [default: last used]
    ///
    /// A file is in GGUF. A folder contains config.json, *.safetensors and a tokenizer, as on Hugging Face. A pulled
    /// model has a name such as owner/name or owner/name:Q4_K_M: riffle pull downloads one, riffle list shows them.
    /// RIFFLE_MODEL is the default of every command. Without either, the last used model is taken, or the only one on
    /// this machine.
    #[arg(id = "model", short = 'm', long = "model", value_name = "PATH", value_parser = hub_args::model())]
    given: Option<NamedModel>,
    #[arg(skip)]
    chosen: OnceLock<NamedModel>,
}

impl ModelArguments {
    /// The path of the model. A note names the default model if none is given.
    pub(crate) fn path(&self) -> Result<&Path, Failure> {
        self.chosen().map(|model| model.path.as_path())
    }

    /// The server's name for the model, if one was typed.
    pub(crate) fn served_as(&self) -> Result<Option<&str>, Failure> {
        Ok(self.chosen()?.served_as.as_deref())
    }

    /// Saves the loaded model as the last used one. Failures are ignored, because no result depends on it.
    pub(crate) fn remember(&self) {
        if let Ok(model) = self.chosen()
            && let Some(file) = file_of_last()
        {
            let _ = write_last(&file, model);
        }
    }

    fn chosen(&self) -> Result<&NamedModel, Failure> {
        match self.chosen.get() {
            Some(model) => Ok(model),
            None => {
                let model = given_or_found(self.given.as_ref())?;
                Ok(self.chosen.get_or_init(|| model))
            }
        }
    }
}

/// The given model, or else the default model.
pub(crate) fn given_or_found(given: Option<&NamedModel>) -> Result<NamedModel, Failure> {
    if let Some(given) = given {
        return Ok(given.clone());
    }
    if let Some(model) = of_variable(VARIABLE)? {
        console::note(format!("model {}, as {VARIABLE} says", shown_name(&model)));
        return Ok(model);
    }
    if let Some(model) = file_of_last().and_then(|file| last(&file)) {
        console::note(format!(
            "model {}, the one used last; --model takes another",
            shown_name(&model)
        ));
        return Ok(model);
    }
    let here = models_here()?;
    match &here[..] {
        [only] => {
            console::note(format!("model {}, the only one here", shown_name(only)));
            Ok(only.clone())
        }
        _ => Err(refusal(&here)),
    }
}

/// The given embedding model, or else the variable's; `None` without both.
pub(crate) fn embeddings(given: Option<&Path>) -> Result<Option<PathBuf>, Failure> {
    match given {
        Some(path) => Ok(Some(path.to_owned())),
        None => Ok(of_variable(EMBEDDINGS_VARIABLE)?.map(|model| model.path)),
    }
}

/// The model that an environment variable names.
fn of_variable(variable: &str) -> Result<Option<NamedModel>, Failure> {
    let value = std::env::var_os(variable).filter(|value| !value.is_empty());
    let model = value.map(|value| hub_args::resolved(value.into()));
    model
        .transpose()
        .map_err(|problem| Failure::new(format!("{variable} is set, but {problem}")))
}

fn shown_name(model: &NamedModel) -> String {
    shown::name(&model.name.display().to_string())
}

/// The file with the last used model, in the user's state folder.
fn file_of_last() -> Option<PathBuf> {
    Some(user_folders::state_folder()?.join("last_model"))
}

/// The last used model, if it still exists.
fn last(file: &Path) -> Option<NamedModel> {
    let name = riffle_files::read_text(file, LONGEST_NAME).ok()?;
    let model = hub_args::resolved(name.trim_end_matches('\n').into()).ok()?;
    model.path.exists().then_some(model)
}

/// Replaces the file atomically, so that other processes never read a partial name.
fn write_last(file: &Path, model: &NamedModel) -> std::io::Result<()> {
    // A path must name the same model from another folder.
    let name = if model.name.exists() {
        std::path::absolute(&model.name)?
    } else {
        model.name.clone()
    };
    let Some(name) = name.to_str().filter(|name| !name.contains('\n')) else {
        return Ok(());
    };
    let line = format!("{name}\n");
    if riffle_files::read_text(file, LONGEST_NAME).is_ok_and(|held| held == line) {
        return Ok(());
    }
    let folder = file.parent().unwrap_or(file);
    fs::create_dir_all(folder)?;
    let mut written = tempfile::NamedTempFile::new_in(folder)?;
    written.write_all(line.as_bytes())?;
    written.persist(file)?;
    Ok(())
}

/// The complete models of `riffle list` that Riffle can open, the last used first.
fn models_here() -> Result<Vec<NamedModel>, Failure> {
    let settings = Settings::from_environment()?;
    let own = riffle_hub::list(&settings.cache)?.into_iter();
    let own = own
        .filter(|model| model.missing.is_none())
        .map(|model| (model.used, model.name.to_string(), model.path));
    let others = OtherPrograms::from_environment().list().into_iter();
    let others = others.filter_map(|model| Some((model.used, model.name, model.path.ok()?)));
    let mut found: Vec<(Option<SystemTime>, String, PathBuf)> = own.chain(others).collect();
    found.sort_by(|(left, ..), (right, ..)| right.cmp(left));
    let mut here: Vec<NamedModel> = Vec::new();
    for (_, name, path) in found {
        let is_known = here.iter().any(|known| known.path == path);
        if !is_known && riffle_model::inspect(&path).is_ok() {
            here.push(NamedModel {
                name: name.into(),
                path,
                served_as: None,
            });
        }
    }
    Ok(here)
}

/// Lists the models on this machine, or names one to download.
fn refusal(here: &[NamedModel]) -> Failure {
    if here.is_empty() {
        return Failure::new(format!(
            "no model is given and none is here: {}, or give a GGUF file or a folder with --model",
            advice(commands::pull::machine().best_tried())
        ));
    }
    let names: Vec<String> = here.iter().take(MOST_NAMED).map(shown_name).collect();
    let more = match here.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Failure::new(format!(
        "no model is given, and several are here: choose one with --model or {VARIABLE}: {}{more}",
        names.join(", ")
    ))
}

fn advice(model: Option<&TriedModel>) -> String {
    match model {
        Some(model) => format!(
            "riffle pull {} gets one that fits this machine ({})",
            model.name,
            gigabytes(model.file_bytes)
        ),
        None => "riffle pull --list shows small ones".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_used_last_is_found_from_another_folder_while_it_is_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, model) = (
            folder.path().join("state/riffle/last_model"),
            folder.path().join("model.gguf"),
        );
        assert_eq!(last(&file), None);
        fs::write(&model, "weights").expect("a file");
        let named = NamedModel {
            name: model.clone(),
            path: model.clone(),
            served_as: None,
        };
        write_last(&file, &named).expect("written");
        assert_eq!(last(&file), Some(named));
        fs::remove_file(&model).expect("removed");
        assert_eq!(last(&file), None);
        let other = NamedModel {
            name: "owner/name:Q4_K_M".into(),
            path: "/nowhere/a.gguf".into(),
            served_as: None,
        };
        write_last(&file, &other).expect("written");
        assert_eq!(fs::read_to_string(&file).expect("text"), "owner/name:Q4_K_M\n");
        let entries = fs::read_dir(folder.path().join("state/riffle")).expect("a folder");
        assert_eq!(entries.count(), 1, "nothing else is left there");
        fs::write(&file, [0xff; 10]).expect("a file");
        assert_eq!(last(&file), None);
    }

    #[test]
    fn a_refusal_names_a_few_models_and_counts_the_others() {
        let models: Vec<NamedModel> = (0..6)
            .map(|number| NamedModel {
                name: format!("owner/{number}").into(),
                path: PathBuf::new(),
                served_as: None,
            })
            .collect();
        let message = refusal(&models).message().to_owned();
        assert!(
            message.ends_with("owner/0, owner/1, owner/2, owner/3 and 2 more"),
            "{message}"
        );
        assert!(refusal(&models[..2]).message().ends_with(": owner/0, owner/1"));
        let none = advice(riffle_hub::tried("qwen3:4b"));
        assert_eq!(none, "riffle pull qwen3:4b gets one that fits this machine (2.5 GB)");
    }
}
