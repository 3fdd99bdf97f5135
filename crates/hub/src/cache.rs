//! The layout of the hub's cache, shared with Python's `huggingface_hub`.
//!
//! ```text
//! models--owner--name/blobs/SUM                     the bytes of a file, under their sum
//! models--owner--name/snapshots/COMMIT/PATH         a link to a blob; the blob itself without support for links
//! models--owner--name/refs/main                     the commit that was pulled last
//! .locks/models--owner--name/SUM.lock               held while that blob is written
//! ```

use std::fs::{self, OpenOptions, TryLockError};
use std::io;
#[cfg(feature = "download")]
use std::io::Write;
use std::path::{Path, PathBuf};

use riffle_files::LockedFile;
use riffle_system::files::is_at;
#[cfg(feature = "download")]
use riffle_system::files::link_file;

use crate::{HubError, ModelName};

/// The folder of one repository in a cache.
#[derive(Debug, Clone)]
pub(crate) struct Repository {
    cache: PathBuf,
    folder_name: String,
}

/// A lock that other processes respect, including Python's. Dropping it releases it.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: LockedFile,
}

/// Characters of a commit's hash.
const COMMIT_DIGITS: usize = 40;
/// Bytes of `refs/main` at most.
const LARGEST_REFERENCE: u64 = 200;
/// Contents of the tag that makes backup programs skip a folder.
#[cfg(feature = "download")]
const CACHE_TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55\n\
    # This file marks a cache of models: see https://bford.info/cachedir/\n";

impl Repository {
    pub(crate) fn new(cache: &Path, name: &ModelName) -> Self {
        Self {
            cache: cache.to_owned(),
            folder_name: name.folder_name(),
        }
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.cache.join(&self.folder_name)
    }

    pub(crate) fn blobs(&self) -> PathBuf {
        self.folder().join("blobs")
    }

    #[cfg(feature = "download")]
    pub(crate) fn blob(&self, sum: &str) -> PathBuf {
        self.blobs().join(sum)
    }

    /// Metadata of a file's bytes: its blob, or the snapshot's file on a file system without links.
    #[cfg(feature = "download")]
    pub(crate) fn whole(&self, commit: &str, path: &str, sum: &str) -> io::Result<fs::Metadata> {
        fs::metadata(self.blob(sum)).or_else(|_| fs::symlink_metadata(self.snapshot(commit).join(path)))
    }

    /// Path of a download's bytes until the file is complete.
    #[cfg(feature = "download")]
    pub(crate) fn partial(&self, sum: &str) -> PathBuf {
        self.blobs().join(format!("{sum}.incomplete"))
    }

    pub(crate) fn snapshots(&self) -> PathBuf {
        self.folder().join("snapshots")
    }

    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.snapshots().join(commit)
    }

    pub(crate) fn locks(&self) -> PathBuf {
        self.cache.join(".locks").join(&self.folder_name)
    }

    /// The commit of `main` at the latest pull.
    pub(crate) fn main(&self) -> Option<String> {
        let text = riffle_files::read_text(self.folder().join("refs/main"), LARGEST_REFERENCE).ok()?;
        let commit = text.trim();
        is_commit(commit).then(|| commit.to_owned())
    }

    /// Commits with a snapshot: the latest `main`, then the others, newest first.
    pub(crate) fn commits(&self) -> Result<Vec<String>, HubError> {
        let main = self.main();
        let mut found = Vec::new();
        for entry in entries(&self.snapshots())? {
            let commit = entry.file_name().to_string_lossy().into_owned();
            let metadata = entry.metadata().map_err(HubError::io(entry.path()))?;
            if metadata.is_dir() {
                let changed = metadata.modified().map_err(HubError::io(entry.path()))?;
                found.push((Some(&commit) == main.as_ref(), changed, commit));
            }
        }
        found.sort();
        Ok(found.into_iter().rev().map(|(_, _, commit)| commit).collect())
    }

    /// Creates the folders, and tags the cache.
    #[cfg(feature = "download")]
    pub(crate) fn create(&self) -> Result<(), HubError> {
        for folder in [self.blobs(), self.snapshots(), self.folder().join("refs"), self.locks()] {
            fs::create_dir_all(&folder).map_err(HubError::io(folder))?;
        }
        let tag = self.cache.join("CACHEDIR.TAG");
        match OpenOptions::new().write(true).create_new(true).open(&tag) {
            Ok(mut file) => file.write_all(CACHE_TAG.as_bytes()).map_err(HubError::io(tag)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(HubError::io(tag)(error)),
        }
    }

    /// Sets `main` to this commit.
    #[cfg(feature = "download")]
    pub(crate) fn set_main(&self, commit: &str) -> Result<(), HubError> {
        let path = self.folder().join("refs/main");
        let beside = self.folder().join(format!("refs/main.{}.tmp", std::process::id()));
        fs::write(&beside, commit)
            .and_then(|()| fs::rename(&beside, &path))
            .map_err(HubError::io(path))
    }

    /// Links a blob into a snapshot under its path.
    #[cfg(feature = "download")]
    pub(crate) fn link(&self, commit: &str, path: &str, sum: &str) -> Result<(), HubError> {
        let link = self.snapshot(commit).join(path);
        let target = format!("{}blobs/{sum}", "../".repeat(2 + path.matches('/').count()));
        if fs::read_link(&link).is_ok_and(|found| found == Path::new(&target)) {
            return Ok(());
        }
        let folder = link.parent().unwrap_or(&link).to_owned();
        fs::create_dir_all(&folder).map_err(HubError::io(&folder))?;
        let beside = folder.join(format!(".{sum}.{}.tmp", std::process::id()));
        let made = link_file(&target, &beside).and_then(|()| fs::rename(&beside, &link));
        made.or_else(|_| {
            // On a file system without links the file itself replaces the link, as in Python. The failed link is
            // removed first.
            let _ = fs::remove_file(&beside);
            match fs::rename(self.blob(sum), &link) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && link.is_file() => Ok(()),
                moved => moved,
            }
        })
        .map_err(HubError::io(link))
    }
}

impl Lock {
    /// Takes the lock of a file, which it creates, if no other process has it.
    pub(crate) fn take(path: &Path) -> Result<Option<Self>, HubError> {
        loop {
            let mut options = OpenOptions::new();
            let options = options.read(true).write(true).create(true).truncate(false);
            let file = riffle_files::open_no_link(path, options).map_err(HubError::file(path))?;
            let file = match LockedFile::exclusive(file) {
                Ok(file) => file,
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(HubError::io(path)(error)),
            };
            // The previous owner may have removed the file; other processes would then lock another one.
            if is_at(&file, path) {
                return Ok(Some(Self { _file: file }));
            }
        }
    }
}

/// True if a text is a commit's hash, and therefore a plain folder name.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == COMMIT_DIGITS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Entries of a folder; none if the folder does not exist.
pub(crate) fn entries(folder: &Path) -> Result<Vec<fs::DirEntry>, HubError> {
    let listed = match fs::read_dir(folder) {
        Ok(listed) => listed,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(HubError::io(folder)(error)),
    };
    listed.collect::<io::Result<_>>().map_err(HubError::io(folder))
}
