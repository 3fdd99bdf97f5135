//! Output files: checked before the work, written beside their target, then renamed.
//!
//! A reader always sees the old file or the new one. The partial file is called `.NAME.PID-NUMBER-CHECK.partial`, is
//! in the target's folder and is locked. `CHECK` is a hash of the rest of the name. Together with the lock and the
//! content it distinguishes leftovers of killed processes from other programs' files.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use riffle_files::FileError;
use riffle_system::files::{keep_permissions, private, sync_folder};
use twox_hash::XxHash3_64;

const BUFFER_BYTES: usize = 1 << 20;
const SUFFIX: &str = ".partial";
/// Leading bytes of a file that identify its kind.
const KIND_BYTES: u64 = 4096;

/// A kind of output file. An existing file is replaced only if it is empty or of the same kind.
#[derive(Debug, Clone, Copy)]
pub struct FileKind {
    /// Name with an article, as in "a profile".
    pub name: &'static str,
    /// True if a file that begins with these bytes (at most 4096) is of this kind.
    pub matches: fn(&[u8]) -> bool,
}

/// The reason an output file cannot be written. An earlier file is then unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// The system refused.
    #[error("cannot write {}: {}", path.display(), reason(source))]
    System {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The name belongs to something other than a file.
    #[error("cannot write {}: it is {found}; give the name of a file", path.display())]
    NotAFile {
        /// The name.
        path: PathBuf,
        /// The kind of the existing entry, such as `a pipe`.
        found: &'static str,
    },
    /// A file of another kind has the name.
    #[error("{} exists and is not {kind}: give another name, so that it is not overwritten", path.display())]
    OtherKind {
        /// The file.
        path: PathBuf,
        /// The required kind.
        kind: &'static str,
    },
}

/// A checked path for an output file.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    /// `path` with links followed.
    target: PathBuf,
    kind: FileKind,
    is_private: bool,
}

/// An output file being written. Dropping it removes it, unless it was [finished](Self::finish).
#[derive(Debug)]
pub struct OutputWriter {
    path: PathBuf,
    target: PathBuf,
    partial: PathBuf,
    file: BufWriter<File>,
    /// Metadata of the file that is replaced.
    old: Option<Metadata>,
    is_finished: bool,
}

impl OutputFile {
    /// Checks that `path` is free, or a regular file of this kind, or a link to one. A link is kept; its target is
    /// replaced.
    ///
    /// # Errors
    /// Anything else: folders, devices, pipes, links to nothing, files of another kind.
    pub fn new(path: impl AsRef<Path>, kind: FileKind) -> Result<Self, OutputError> {
        let path = path.as_ref().to_owned();
        if path.file_name().is_none() {
            return Err(OutputError::NotAFile {
                path,
                found: "the name of a folder",
            });
        }
        let target = follow(&path).map_err(|source| match source.kind() {
            ErrorKind::NotFound => OutputError::NotAFile {
                path: path.clone(),
                found: "a link to a file that is not there",
            },
            _ => system(&path, source),
        })?;
        let output = Self {
            path,
            target,
            kind,
            is_private: false,
        };
        output.old()?;
        Ok(output)
    }

    /// As [`new`](Self::new), and checks that the folder is writable. Call it before long work.
    ///
    /// # Errors
    /// As [`new`](Self::new); the system's reason why the folder is not writable.
    pub fn check(path: impl AsRef<Path>, kind: FileKind) -> Result<Self, OutputError> {
        let output = Self::new(path, kind)?;
        drop(output.create()?);
        Ok(output)
    }

    /// Makes a new file readable by its owner only. A replaced file keeps its permissions.
    #[must_use]
    pub fn private(self) -> Self {
        Self {
            is_private: true,
            ..self
        }
    }

    /// Removes leftovers of killed processes for this file, then writes the file and renames it. Returns its
    /// metadata.
    ///
    /// # Errors
    /// [`OutputError`].
    pub fn write(&self, write: impl FnOnce(&mut OutputWriter) -> io::Result<()>) -> Result<Metadata, OutputError> {
        let name = self.target.file_name().unwrap_or_default();
        remove_leftovers(self.folder(), &[self.kind], |of| of == name).map_err(|source| self.failed(source))?;
        let mut writer = self.create()?;
        write(&mut writer).map_err(|source| self.failed(source))?;
        writer.finish()
    }

    /// Begins the file.
    ///
    /// # Errors
    /// [`OutputError`].
    pub fn create(&self) -> Result<OutputWriter, OutputError> {
        let old = self.old()?;
        // A replacement is private until it gets the old file's permissions.
        let is_private = self.is_private || old.is_some();
        let (partial, file) = self.create_partial(is_private).map_err(|source| self.failed(source))?;
        Ok(OutputWriter {
            path: self.path.clone(),
            target: self.target.clone(),
            partial,
            file: BufWriter::with_capacity(BUFFER_BYTES, file),
            old,
            is_finished: false,
        })
    }

    /// The file to be replaced, if replacement is allowed.
    fn old(&self) -> Result<Option<Metadata>, OutputError> {
        let metadata = match fs::symlink_metadata(&self.target) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(self.failed(source)),
        };
        if !metadata.is_file() {
            return Err(OutputError::NotAFile {
                path: self.path.clone(),
                found: riffle_files::kind_name(metadata.file_type()),
            });
        }
        let mut file = open_regular(&self.target, OpenOptions::new().read(true)).map_err(|error| self.failed(error))?;
        if is_of_kind(&mut file, self.kind).map_err(|source| self.failed(source))? {
            Ok(Some(metadata))
        } else {
            Err(OutputError::OtherKind {
                path: self.path.clone(),
                kind: self.kind.name,
            })
        }
    }

    fn folder(&self) -> &Path {
        match self.target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        }
    }

    fn create_partial(&self, is_private: bool) -> io::Result<(PathBuf, File)> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let name = self.target.file_name().unwrap_or_default();
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let partial = self.folder().join(partial_name(name, process::id(), number));
            let mut options = OpenOptions::new();
            options.write(true).create_new(true);
            if is_private {
                private(&mut options);
            }
            let file = match options.open(&partial) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                file => file?,
            };
            // Between creation and locking, another writer may have removed the file as a leftover; then try again.
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => {}
                // A file system without locks: there, leftovers are never removed.
                Err(TryLockError::Error(_)) => return Ok((partial, file)),
                Ok(()) if partial.exists() => return Ok((partial, file)),
                Ok(()) => {}
            }
        }
    }

    fn failed(&self, source: io::Error) -> OutputError {
        system(&self.path, source)
    }
}

impl OutputWriter {
    /// Syncs the file to the disk and renames it, with the permissions of the file it replaces. Returns its metadata,
    /// which another writer of the same name cannot change.
    ///
    /// # Errors
    /// [`OutputError::System`].
    pub fn finish(self) -> Result<Metadata, OutputError> {
        let (path, folder) = (self.path.clone(), self.partial.parent().map(Path::to_owned));
        let metadata = self.rename()?;
        sync_folder(folder.as_deref().unwrap_or(Path::new("."))).map_err(|source| system(&path, source))?;
        Ok(metadata)
    }

    /// As [`finish`](Self::finish), for one of many files: the caller syncs the folder.
    pub(crate) fn rename(mut self) -> Result<Metadata, OutputError> {
        let renamed = (|| {
            self.file.flush()?;
            let file = self.file.get_ref();
            if let Some(old) = &self.old {
                keep_permissions(file, old)?;
            }
            file.sync_all()?;
            let metadata = file.metadata()?;
            fs::rename(&self.partial, &self.target)?;
            Ok(metadata)
        })();
        self.is_finished = renamed.is_ok();
        renamed.map_err(|source| system(&self.path, source))
    }
}

impl Write for OutputWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for OutputWriter {
    fn drop(&mut self) {
        if !self.is_finished {
            fs::remove_file(&self.partial).ok();
        }
    }
}

/// `path`, or its target if it is a link.
pub(crate) fn follow(path: &Path) -> io::Result<PathBuf> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_symlink() => fs::canonicalize(path),
        _ => Ok(path.to_owned()),
    }
}

/// Opens a regular file that is not a link; an error names it.
pub(crate) fn open_regular(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    riffle_files::open_no_link(path, options).map_err(|error| match error {
        FileError::NotRegular { found } => io::Error::new(
            ErrorKind::InvalidInput,
            format!("{} is {found}, not a regular file", path.display()),
        ),
        other => other.into(),
    })
}

/// Removes partial files of killed processes. Such a file has a partial file's name and one of these kinds, and no
/// process has locked it. `of` selects by the name of the target.
pub(crate) fn remove_leftovers(folder: &Path, kinds: &[FileKind], of: impl Fn(&OsStr) -> bool) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if !target_of(&entry.file_name()).is_some_and(|target| of(&target)) {
            continue;
        }
        // Removed meanwhile, or not accessible: neither prevents writing.
        let Ok(mut file) = open_regular(&entry.path(), OpenOptions::new().read(true)) else {
            continue;
        };
        let is_ours = kinds.iter().any(|kind| is_of_kind(&mut file, *kind).unwrap_or(false));
        if is_ours && file.try_lock().is_ok() {
            fs::remove_file(entry.path()).ok();
        }
    }
    Ok(())
}

fn partial_name(name: &OsStr, process: u32, number: u64) -> OsString {
    let mut partial = OsString::from(".");
    partial.push(name);
    partial.push(format!(".{process}-{number}"));
    let check = name_check(partial.as_encoded_bytes());
    partial.push(format!("-{check}{SUFFIX}"));
    partial
}

/// The target's name for the partial file `partial`; `None` for any other name.
fn target_of(partial: &OsStr) -> Option<OsString> {
    let text = partial.to_str()?;
    let (begin, check) = text.strip_suffix(SUFFIX)?.rsplit_once('-')?;
    let (name, _) = begin.strip_prefix('.')?.rsplit_once('.')?;
    (name_check(begin.as_bytes()) == check).then(|| OsString::from(name))
}

fn name_check(begin: &[u8]) -> String {
    format!("{:016x}", XxHash3_64::oneshot(begin))
}

fn is_of_kind(file: &mut File, kind: FileKind) -> io::Result<bool> {
    io::Seek::rewind(file)?;
    let mut begin = Vec::new();
    Read::by_ref(file).take(KIND_BYTES).read_to_end(&mut begin)?;
    Ok(begin.is_empty() || (kind.matches)(&begin))
}

fn system(path: &Path, source: io::Error) -> OutputError {
    OutputError::System {
        path: path.to_owned(),
        source,
    }
}

/// The system's reason, with the remedy.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "its folder is not there; make it, or check the path".to_owned(),
        ErrorKind::PermissionDenied => "not allowed; check who owns the file and its folder".to_owned(),
        ErrorKind::NotADirectory => "a file stands where a folder is needed; check the path".to_owned(),
        ErrorKind::FileTooLarge => {
            "it would be larger than a file may be here (ulimit -f, or the file system); raise the limit, or use another place".to_owned()
        }
        ErrorKind::StorageFull => "the disk is full; free space there, or use another".to_owned(),
        _ => format!("{error}; check the path, its folder and what is free there"),
    }
}
