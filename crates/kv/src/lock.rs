//! One process at a time on a file that is read, worked with and replaced.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::KvError;
use crate::output::{follow, open_regular};

/// The right to a path, held until it is dropped or the process ends, however it ends.
///
/// The locked file is an empty one beside the path, because the path's own file is replaced under its name. The empty file stays:
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
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        let file = lock_file(path).and_then(|beside| open_regular(&beside, &mut options));
        let file = file.map_err(|source| failed(path, source))?;
        held(path, file.try_lock())?;
        Ok(Self { _file: file })
    }

    /// Takes the right to read `path` beside other readers, where the file that is locked is there and may only be read. `None` where
    /// there is none: then nobody has worked with the path.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub(crate) fn share(path: &Path) -> Result<Option<Self>, KvError> {
        let file = lock_file(path).and_then(|beside| open_regular(&beside, OpenOptions::new().read(true)));
        let file = match file {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.map_err(|source| failed(path, source))?,
        };
        held(path, file.try_lock_shared())?;
        Ok(Some(Self { _file: file }))
    }
}

/// The empty file that stands for `path`.
fn lock_file(path: &Path) -> io::Result<PathBuf> {
    let target = follow(path)?;
    let name = target.file_name().ok_or(ErrorKind::InvalidInput)?;
    let mut beside = OsString::from(".");
    beside.push(name);
    beside.push(".lock");
    Ok(target.with_file_name(beside))
}

fn held(path: &Path, lock: Result<(), TryLockError>) -> Result<(), KvError> {
    match lock {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(KvError::Busy { path: path.to_owned() }),
        Err(TryLockError::Error(source)) => Err(failed(path, source)),
    }
}

fn failed(path: &Path, source: io::Error) -> KvError {
    KvError::File {
        action: "lock",
        path: path.to_owned(),
        source,
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
        assert!(matches!(PathLock::share(&path), Err(KvError::Busy { .. })));
        drop(held);
        let readers = [PathLock::share(&path).unwrap(), PathLock::share(&path).unwrap()];
        assert!(readers.iter().all(Option::is_some));
        assert!(matches!(PathLock::take(&path), Err(KvError::Busy { .. })));
        drop(readers);
        assert!(PathLock::take(&path).is_ok());
        assert!(PathLock::share(&folder.path().join("new")).unwrap().is_none());
        assert!(matches!(
            PathLock::take(folder.path().join("no/such/folder")),
            Err(KvError::File { action: "lock", .. })
        ));
    }
}
