//! Inspects a model before its weights are downloaded.

use std::path::Path;

use riffle_files::gguf_stem;

use super::listing::RemoteFile;
use crate::HubError;

/// The beginning of a model before its weights are downloaded.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Beginning<'a> {
    /// `config.json` of a folder of safetensors, and the bytes of all its weights.
    Settings(&'a Path, u64),
    /// A file with the first bytes of a GGUF file, and the length of the whole file.
    Head(&'a Path, u64),
}

/// Inspects the beginning of a model; an error is the reason not to download the rest.
pub(crate) type OnBeginning<'a> = dyn FnMut(&Beginning<'_>) -> Result<(), String> + 'a;

/// An inspection that runs once.
pub(crate) struct Look<'a> {
    repository: String,
    /// Bytes of a GGUF file before the inspection.
    head_bytes: u64,
    on_beginning: Option<&'a mut OnBeginning<'a>>,
}

impl<'a> Look<'a> {
    pub(crate) fn new(repository: String, head_bytes: u64, on_beginning: &'a mut OnBeginning<'a>) -> Self {
        Self {
            repository,
            head_bytes,
            on_beginning: Some(on_beginning),
        }
    }

    /// Inspects the GGUF file at `path` once it has enough bytes.
    pub(crate) fn pass(&mut self, there_bytes: u64, path: &Path, file: &RemoteFile) -> Result<(), HubError> {
        if self.on_beginning.is_none()
            || there_bytes < self.head_bytes.min(file.bytes)
            || gguf_stem(&file.path).is_none()
        {
            return Ok(());
        }
        self.show(&Beginning::Head(path, file.bytes))
    }

    /// Runs the inspection, unless it already ran.
    pub(crate) fn show(&mut self, beginning: &Beginning<'_>) -> Result<(), HubError> {
        let Some(look) = self.on_beginning.take() else {
            return Ok(());
        };
        look(beginning).map_err(|problem| HubError::NotWanted {
            repository: self.repository.clone(),
            problem,
        })
    }
}
