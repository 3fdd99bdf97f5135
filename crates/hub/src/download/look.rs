//! A look at a model before its bulk is downloaded.

use std::path::Path;

use riffle_files::gguf_stem;

use super::listing::RemoteFile;
use crate::HubError;

/// The beginning of a model whose bulk has not come yet.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Beginning<'a> {
    /// The settings of a folder of safetensors, `config.json`, and the bytes of all its safetensors.
    Settings(&'a Path, u64),
    /// A file with the first bytes of a GGUF file, and the bytes that the whole file has.
    Head(&'a Path, u64),
}

/// Looks at the beginning of a model; an error is the reason not to download the rest.
pub(crate) type OnBeginning<'a> = dyn FnMut(&Beginning<'_>) -> Result<(), String> + 'a;

/// A look that is taken once.
pub(crate) struct Look<'a> {
    repository: String,
    /// Bytes of a GGUF file that come before.
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

    /// Shows a GGUF file that is written to `path`, once enough of it is there.
    pub(crate) fn pass(&mut self, there_bytes: u64, path: &Path, file: &RemoteFile) -> Result<(), HubError> {
        if self.on_beginning.is_none()
            || there_bytes < self.head_bytes.min(file.bytes)
            || gguf_stem(&file.path).is_none()
        {
            return Ok(());
        }
        self.show(&Beginning::Head(path, file.bytes))
    }

    /// Shows the beginning, unless one was shown before.
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
