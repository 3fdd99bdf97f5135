//! Files with a lock that other processes respect.

use std::fs::{File, TryLockError};
use std::ops::{Deref, DerefMut};

/// An open file and its lock. Dropping it unlocks the file.
///
/// Closing the file would not unlock it in every case: a child process that starts meanwhile has the file open too.
///
/// ```
/// # let path = std::env::temp_dir().join(format!("riffle-locked-{}", std::process::id()));
/// use std::fs::File;
///
/// use riffle_files::LockedFile;
///
/// let locked = LockedFile::exclusive(File::create(&path)?)?;
/// assert!(LockedFile::exclusive(File::open(&path)?).is_err());
/// drop(locked);
/// assert!(LockedFile::shared(File::open(&path)?).is_ok());
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct LockedFile(File);

impl LockedFile {
    /// Locks a file for this holder alone.
    ///
    /// # Errors
    /// [`TryLockError::WouldBlock`] if there is another holder; [`TryLockError::Error`], also for a file system without
    /// locks.
    pub fn exclusive(file: File) -> Result<Self, TryLockError> {
        file.try_lock()?;
        Ok(Self(file))
    }

    /// Locks a file for this holder and other shared ones.
    ///
    /// # Errors
    /// As [`exclusive`](Self::exclusive).
    pub fn shared(file: File) -> Result<Self, TryLockError> {
        file.try_lock_shared()?;
        Ok(Self(file))
    }

    /// As [`exclusive`](Self::exclusive), but a file system without locks is no error. `None` if there is another
    /// holder.
    pub fn exclusive_if_supported(file: File) -> Option<Self> {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Error(_)) | Ok(()) => Some(Self(file)),
        }
    }
}

impl Deref for LockedFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl DerefMut for LockedFile {
    fn deref_mut(&mut self) -> &mut File {
        &mut self.0
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        // It fails only on a file system without locks.
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_lock_is_free_though_a_child_process_has_the_file_open() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || file.reopen().unwrap();
        type Take = fn(File) -> Option<LockedFile>;
        let takes: [Take; 3] = [
            |file| LockedFile::exclusive(file).ok(),
            LockedFile::exclusive_if_supported,
            |file| LockedFile::shared(file).ok(),
        ];
        for take in takes {
            let held = take(open()).unwrap();
            let of_a_child = held.try_clone().unwrap();
            assert!(LockedFile::exclusive(open()).is_err());
            assert!(LockedFile::exclusive_if_supported(open()).is_none());
            drop(held);
            assert!(LockedFile::exclusive(open()).is_ok());
            drop(of_a_child);
        }
    }
}
