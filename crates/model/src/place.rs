//! Locates a model's files: a Hugging Face directory, or a GGUF file, given directly or alone in its folder.

use std::path::{Path, PathBuf};

use riffle_files::{gguf_shard, gguf_stem};

use crate::ModelError;
use crate::directory::CONFIG_FILE;
use crate::fields::read_json;
use crate::tokenizer::tokenizer_file;

/// The settings file of a PEFT adapter.
pub(crate) const ADAPTER_FILE: &str = "adapter_config.json";

pub(crate) enum ModelPlace {
    /// `config.json`, weights and tokenizer in one directory.
    Directory(PathBuf),
    /// A GGUF file.
    File(PathBuf),
}

impl ModelPlace {
    /// The files of the model at `path`. A folder without settings but with one GGUF model means that file.
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
            _ if tokenizer_file(path).exists() => Ok(Self::Directory(path.to_owned())),
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

/// True for a language model's GGUF file, or its first shard.
fn is_model(file: &Path) -> bool {
    let name = file.file_name().map(|name| name.to_string_lossy());
    let stem = name.as_deref().and_then(gguf_stem);
    stem.is_some_and(|stem| gguf_shard(stem).is_none_or(|shard| shard.number == 1))
}

/// The error for an adapter's folder, with the name of its base model.
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
