//! One process at a time on a file that is read, worked with and replaced.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::path::Path;

use crate::KvError;
use crate::output::{follow, open_regular};

/// The right to a path, held until it is dropped or the process ends, however it ends.
///
/// What is locked is an empty file beside the path, because the file itself is replaced under its name. It stays:
/// removing it would let two processes hold locks on two files of one name.
#[derive(Debug)]
pub struct PathLock {
    _file: File,
}

impl PathLock {
    /// Takes the right to `path`, which need not exist. Of a link, it is the right to the file that the link leads to.
    ///
    /// # Errors
    /// [`KvError::Busy`] when another process has it, [`KvError::File`].
    pub fn take(path: impl AsRef<Path>) -> Result<Self, KvError> {
        let path = path.as_ref();
        let failed = |source| KvError::File {
            action: "lock",
            path: path.to_owned(),
            source,
        };
        let target = follow(path).map_err(failed)?;
        let name = target
            .file_name()
            .ok_or_else(|| failed(ErrorKind::InvalidInput.into()))?;
        let mut beside = OsString::from(".");
        beside.push(name);
        beside.push(".lock");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        let file = open_regular(&target.with_file_name(beside), &mut options).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(KvError::Busy { path: path.to_owned() }),
            Err(TryLockError::Error(source)) => Err(failed(source)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_holder_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("session");
        let held = PathLock::take(&path).unwrap();
        let message = PathLock::take(&path).unwrap_err().to_string();
        assert!(message.contains("in use by another process"), "{message}");
        assert!(PathLock::take(folder.path().join("other")).is_ok());
        drop(held);
        assert!(PathLock::take(&path).is_ok());
        assert!(matches!(
            PathLock::take(folder.path().join("no/such/folder")),
            Err(KvError::File { action: "lock", .. })
        ));
    }
}
