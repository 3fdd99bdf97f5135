//! Locks a file for one process while it reads, uses and replaces it.

use std::ffi::OsString;
use std::fs::{OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use riffle_files::LockedFile;

use crate::KvError;
use crate::output::{follow, open_regular};

/// A lock on a path, held until it is dropped or the process ends in any way.
///
/// The lock is on an empty file beside the path, because the path's own file is replaced. The empty file stays: if it
/// were removed, two processes could hold locks on two files of one name.
#[derive(Debug)]
pub struct PathLock {
    _file: LockedFile,
}

impl PathLock {
    /// Locks `path`, which need not exist. For a link, it locks the target.
    ///
    /// # Errors
    /// [`KvError::Busy`] if another process holds the lock, [`KvError::File`].
    pub fn take(path: impl AsRef<Path>) -> Result<Self, KvError> {
        let path = path.as_ref();
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        let file = lock_file(path).and_then(|beside| open_regular(&beside, &mut options));
        let file = file.map_err(|source| failed(path, source))?;
        held(path, LockedFile::exclusive(file))
    }

    /// Takes a read lock on `path`, shared with other readers, if the lock file exists and is read-only. `None` if it
    /// does not exist: then no process has used the path.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub(crate) fn share(path: &Path) -> Result<Option<Self>, KvError> {
        let file = lock_file(path).and_then(|beside| open_regular(&beside, OpenOptions::new().read(true)));
        let file = match file {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.map_err(|source| failed(path, source))?,
        };
        held(path, LockedFile::shared(file)).map(Some)
    }
}

/// The empty lock file of `path`.
fn lock_file(path: &Path) -> io::Result<PathBuf> {
    let target = follow(path)?;
    let name = target.file_name().ok_or(ErrorKind::InvalidInput)?;
    let mut beside = OsString::from(".");
    beside.push(name);
    beside.push(".lock");
    Ok(target.with_file_name(beside))
}

fn held(path: &Path, lock: Result<LockedFile, TryLockError>) -> Result<PathLock, KvError> {
    match lock {
        Ok(file) => Ok(PathLock { _file: file }),
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
        let of_a_child = held._file.try_clone().unwrap();
        drop(held);
        let readers = [PathLock::share(&path).unwrap(), PathLock::share(&path).unwrap()];
        assert!(readers.iter().all(Option::is_some));
        assert!(matches!(PathLock::take(&path), Err(KvError::Busy { .. })));
        drop(readers);
        assert!(
            PathLock::take(&path).is_ok(),
            "a child that inherited the file holds no lock"
        );
        drop(of_a_child);
        assert!(PathLock::share(&folder.path().join("new")).unwrap().is_none());
        assert!(matches!(
            PathLock::take(folder.path().join("no/such/folder")),
            Err(KvError::File { action: "lock", .. })
        ));
    }
}
