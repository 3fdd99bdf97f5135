//! One of a model's files of weights.

use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use riffle_system::memory::map_file;

use super::StoredTensor;
use crate::ModelError;

/// A file of weights, mapped when a tensor is taken.
pub(super) struct WeightFile {
    pub(super) path: PathBuf,
    pub(super) file: File,
    pub(super) map: Option<Mmap>,
}

impl WeightFile {
    /// The bytes of a tensor; maps its file if necessary.
    pub(super) fn mapped(&mut self, stored: &StoredTensor) -> Result<&[u8], ModelError> {
        if self.map.is_none() {
            self.map = Some(map_file(&self.file).map_err(|source| self.unread(source))?);
        }
        self.whole(stored).map(|(_, bytes)| bytes)
    }

    /// The path of a mapped file, and the bytes of a tensor in it.
    pub(super) fn whole(&self, stored: &StoredTensor) -> Result<(&Path, &[u8]), ModelError> {
        let map: &[u8] = self.map.as_deref().unwrap_or_default();
        self.bytes(map, stored).map(|bytes| (self.path.as_path(), bytes))
    }

    pub(super) fn bytes<'a>(&self, map: &'a [u8], stored: &StoredTensor) -> Result<&'a [u8], ModelError> {
        map.get(stored.range.clone()).ok_or_else(|| ModelError::CorruptWeights {
            path: self.path.clone(),
            problem: format!("the file shrank while tensor {} was read", stored.info.name),
        })
    }

    pub(super) fn unread(&self, source: std::io::Error) -> ModelError {
        ModelError::Io {
            path: self.path.clone(),
            source,
        }
    }
}
