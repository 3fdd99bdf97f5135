//! The partial file of a run, which the next run with the same input and options continues.
//!
//! The partial file is `.NAME.FINGERPRINT.partial` in the target's folder, locked while a run writes it. For each
//! finished tensor, the run adds a hash to `.NAME.FINGERPRINT.progress`; tensors with another hash are written again.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::hash::Hasher;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use riffle_files::LockedFile;
use riffle_kv::OutputError;
use riffle_system::files::sync_folder;
use twox_hash::XxHash3_64;

/// Bytes of one read while hashing.
const READ_BYTES: usize = 1 << 20;
const PARTIAL: &str = "partial";
const PROGRESS: &str = "progress";
/// Hexadecimal digits of a fingerprint.
const DIGITS: usize = 16;

/// A tensor's range in a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stretch {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}

/// An open partial file.
pub(crate) struct Partial {
    target: PathBuf,
    path: PathBuf,
    progress_path: PathBuf,
    file: LockedFile,
    progress: File,
    /// Finished tensors.
    pub(crate) done: usize,
    /// Hash of the current tensor.
    hash: XxHash3_64,
}

impl Partial {
    /// Opens an earlier run's partial file, or creates one. It removes partial files of other options for the same
    /// target.
    pub(crate) fn open(
        target: &Path,
        fingerprint: u64,
        header: &[u8],
        tensors: impl Iterator<Item = Stretch>,
    ) -> Result<Partial, OutputError> {
        let failed = |source| OutputError::System {
            path: target.to_owned(),
            source,
        };
        let [path, progress_path] = [PARTIAL, PROGRESS].map(|kind| beside(target, fingerprint, kind));
        remove_others(target, &path);
        let open =
            |path: &Path| riffle_files::open_no_link(path, OpenOptions::new().read(true).write(true).create(true));
        let file = open(&path).map_err(|error| failed(error.into()))?;
        let file = LockedFile::exclusive_if_supported(file).ok_or_else(|| {
            failed(io::Error::new(
                io::ErrorKind::ResourceBusy,
                "another run writes the same file now",
            ))
        })?;
        let progress = open(&progress_path).map_err(|error| failed(error.into()))?;
        let mut partial = Partial {
            target: target.to_owned(),
            path,
            progress_path,
            file,
            progress,
            done: 0,
            hash: XxHash3_64::new(),
        };
        partial.resume(header, tensors).map_err(failed)?;
        Ok(partial)
    }

    /// Counts the complete tensors, and truncates the file after them.
    fn resume(&mut self, header: &[u8], tensors: impl Iterator<Item = Stretch>) -> io::Result<()> {
        let mut begin = Vec::new();
        Read::by_ref(&mut *self.file)
            .take(header.len() as u64)
            .read_to_end(&mut begin)?;
        let mut hashes = Vec::new();
        self.progress.read_to_end(&mut hashes)?;
        let mut end = header.len() as u64;
        if begin == header {
            for (stretch, hash) in tensors.zip(hashes.as_chunks().0) {
                if self.hash_of(stretch)? != Some(u64::from_le_bytes(*hash)) {
                    break;
                }
                self.done += 1;
                end = stretch.start + stretch.bytes;
            }
        } else {
            self.file.rewind()?;
            self.file.write_all(header)?;
        }
        self.file.set_len(end)?;
        self.progress.set_len(8 * self.done as u64)?;
        self.progress.seek(SeekFrom::End(0))?;
        Ok(())
    }

    fn hash_of(&mut self, stretch: Stretch) -> io::Result<Option<u64>> {
        self.file.seek(SeekFrom::Start(stretch.start))?;
        let mut hash = XxHash3_64::new();
        let mut left = stretch.bytes;
        let mut buffer = vec![0; READ_BYTES];
        while left > 0 {
            let part = &mut buffer[..left.min(READ_BYTES as u64) as usize];
            match self.file.read_exact(part) {
                Ok(()) => hash.write(part),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                Err(error) => return Err(error),
            }
            left -= part.len() as u64;
        }
        Ok(Some(hash.finish()))
    }

    /// Begins a tensor.
    pub(crate) fn begin(&mut self, stretch: Stretch) -> io::Result<()> {
        self.hash = XxHash3_64::new();
        self.file.set_len(stretch.start)?;
        self.file.seek(SeekFrom::Start(stretch.start)).map(|_| ())
    }

    /// Writes the next bytes of the tensor.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.write(bytes);
        self.file.write_all(bytes)
    }

    /// Ends the tensor.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        self.progress.write_all(&self.hash.finish().to_le_bytes())?;
        self.done += 1;
        Ok(())
    }

    /// Bytes of the file so far.
    pub(crate) fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Extends the file to its length and renames it to its target.
    pub(crate) fn finish(self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)?;
        self.file.sync_all()?;
        if let Ok(old) = fs::metadata(&self.target) {
            self.file.set_permissions(old.permissions())?;
        }
        fs::rename(&self.path, &self.target)?;
        fs::remove_file(&self.progress_path)?;
        sync_folder(folder(&self.target))
    }

    /// Removes the file, because the next run would fail in the same way.
    pub(crate) fn remove(self) {
        fs::remove_file(&self.path).ok();
        fs::remove_file(&self.progress_path).ok();
    }
}

/// The folder of a file.
pub(crate) fn folder(target: &Path) -> &Path {
    match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn beside(target: &Path, fingerprint: u64, kind: &str) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(target.file_name().unwrap_or_default());
    name.push(format!(".{fingerprint:016x}.{kind}"));
    target.with_file_name(name)
}

/// Removes partial files for the same target with other options, unless a run has locked them.
fn remove_others(target: &Path, own: &Path) {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let Ok(entries) = fs::read_dir(folder(target)) else {
        return;
    };
    for entry in entries.flatten() {
        let found = entry.file_name();
        let found = found.to_string_lossy();
        let middle = found
            .strip_prefix('.')
            .and_then(|rest| rest.strip_prefix(&*name)?.strip_prefix('.')?.strip_suffix(".partial"));
        let is_fingerprint = |text: &str| text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !middle.is_some_and(is_fingerprint) || Some(entry.file_name().as_os_str()) == own.file_name() {
            continue;
        }
        let path = entry.path();
        let Ok(file) = riffle_files::open_no_link(&path, OpenOptions::new().read(true)) else {
            continue;
        };
        if file.try_lock().is_ok() {
            fs::remove_file(&path).ok();
            fs::remove_file(path.with_extension(PROGRESS)).ok();
        }
    }
}
