//! The folder of a prefix cache: its lock, the names of its files, and leftovers of dead processes.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::block::KIND;
use super::index::Index;
use super::{INDEX_FILE, PrefixCache};
use crate::output::{open_regular, remove_leftovers};
use crate::{KvError, PathLock};

const BLOCK_SUFFIX: &str = "block";
/// Longest wait for another process, which holds the lock while it reads or writes pages.
const PATIENCE: Duration = Duration::from_secs(30);

impl PrefixCache {
    /// Keys of everything in the index, including notes and tails.
    pub(super) fn keys(&self) -> Result<HashSet<u128>, KvError> {
        self.locked_index()?.1.keys()
    }

    /// Locks the folder and opens its index. A read-only folder is shared with other readers.
    pub(super) fn locked_index(&self) -> Result<(Option<PathLock>, Index), KvError> {
        let path = self.folder.join(INDEX_FILE);
        let error = match self.lock() {
            Ok(lock) => match self.index() {
                Ok(index) => return Ok((Some(lock), index)),
                Err(error) => error,
            },
            Err(error) => error,
        };
        if !self.may_only_be_read(&error) {
            return Err(error);
        }
        let lock = self.patiently(|| PathLock::share(&path))?;
        Ok((lock, Index::open_to_read(&path)?))
    }

    /// True if an error means that this user may not write to the folder or its files.
    fn may_only_be_read(&self, error: &KvError) -> bool {
        let is_refused = |source: &io::Error| {
            matches!(
                source.kind(),
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
            )
        };
        match error {
            KvError::File { source, .. } => is_refused(source),
            // The index reports the reason as text.
            KvError::Index { .. } => {
                let opened = open_regular(&self.folder.join(INDEX_FILE), OpenOptions::new().write(true));
                opened.is_err_and(|source| is_refused(&source))
            }
            _ => false,
        }
    }

    /// Checks that the folder is writable, before any block is removed for room.
    pub(super) fn check_writable(&self) -> Result<(), KvError> {
        let path = self.folder.join(format!(".{INDEX_FILE}.new"));
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        open_regular(&path, &mut options)
            .and_then(|_| fs::remove_file(&path))
            .map_err(|source| failed("write to", &self.folder, source))
    }

    pub(super) fn index(&self) -> Result<Index, KvError> {
        let (index, is_new) = Index::open(&self.folder.join(INDEX_FILE), || self.has_blocks())?;
        self.lost_index.fetch_or(is_new, Ordering::Relaxed);
        Ok(index)
    }

    /// True if the folder contains a block.
    fn has_blocks(&self) -> bool {
        let mut entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        entries.any(|entry| key_of(&entry.file_name()).is_some() && is_block(&entry.path()))
    }

    pub(super) fn lock(&self) -> Result<PathLock, KvError> {
        self.patiently(|| PathLock::take(self.folder.join(INDEX_FILE)))
    }

    /// Takes a lock, waiting for the process that holds it.
    fn patiently<T>(&self, take: impl Fn() -> Result<T, KvError>) -> Result<T, KvError> {
        let start = Instant::now();
        loop {
            match take() {
                Err(KvError::Busy { .. }) if start.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(20)),
                Err(KvError::Busy { .. }) => {
                    return Err(KvError::Busy {
                        path: self.folder.clone(),
                    });
                }
                lock => return lock,
            }
        }
    }

    pub(super) fn path_of(&self, key: u128) -> PathBuf {
        self.folder.join(format!("{key:032x}.{BLOCK_SUFFIX}"))
    }

    pub(super) fn remove_block(&self, key: u128) -> Result<(), KvError> {
        let path = self.path_of(key);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(failed("remove", &path, source)),
            _ => Ok(()),
        }
    }

    /// Removes leftovers of a process that ended before it wrote the index: partial files, and blocks that the index
    /// does not list. Blocks are recognised by name and content.
    pub(super) fn sweep(&self, index: &Index) -> Result<(), KvError> {
        let unread = |source| failed("read", &self.folder, source);
        for entry in fs::read_dir(&self.folder).map_err(unread)? {
            let entry = entry.map_err(unread)?;
            if let Some(key) = key_of(&entry.file_name())
                && index.get(key)?.is_none()
                && is_block(&entry.path())
            {
                self.remove_block(key)?;
            }
        }
        remove_leftovers(&self.folder, &[KIND], |name| key_of(name).is_some()).map_err(unread)
    }
}

/// The key of the block whose file is called `name`.
fn key_of(name: &OsStr) -> Option<u128> {
    let digits = name.to_str()?.strip_suffix(BLOCK_SUFFIX)?.strip_suffix('.')?;
    let is_key = digits.len() == 32 && digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    is_key.then(|| u128::from_str_radix(digits, 16).ok())?
}

fn is_block(path: &Path) -> bool {
    let begin = open_regular(path, OpenOptions::new().read(true)).and_then(|file| {
        let mut begin = Vec::new();
        file.take(16).read_to_end(&mut begin)?;
        Ok(begin)
    });
    begin.is_ok_and(|begin| (KIND.matches)(&begin))
}

pub(super) fn failed(action: &'static str, path: &Path, source: io::Error) -> KvError {
    KvError::File {
        action,
        path: path.to_owned(),
        source,
    }
}
