//! Replacing a file so that a reader sees the old or the new one whole, whatever happens in between.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::KvError;

const BUFFER_BYTES: usize = 1 << 20;
const SUFFIX: &str = ".partial";

/// Writes a file beside `path`, brings it to the disk and only then gives it the name `path`.
///
/// What is being written is locked, so that the next writer can tell what a killed process left behind, and remove it.
pub(crate) fn replace_file(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) -> Result<(), KvError> {
    let failed = |source| KvError::File {
        action: "write",
        path: path.to_owned(),
        source,
    };
    let name = path
        .file_name()
        .ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut prefix = OsString::from(".");
    prefix.push(name);
    prefix.push(".");
    remove_abandoned(folder, &prefix).map_err(failed)?;
    let (partial, file) = create_partial(folder, &prefix).map_err(failed)?;
    let written = (|| {
        let mut writer = BufWriter::with_capacity(BUFFER_BYTES, &file);
        write(&mut writer)?;
        writer.flush()?;
        file.sync_all()?;
        fs::rename(&partial, path)?;
        sync_folder(folder)
    })();
    if written.is_err() {
        fs::remove_file(&partial).ok();
    }
    written.map_err(failed)
}

fn create_partial(folder: &Path, prefix: &OsString) -> io::Result<(PathBuf, File)> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut name = prefix.clone();
        name.push(format!("{}-{number}{SUFFIX}", process::id()));
        let partial = folder.join(name);
        let file = match OpenOptions::new().write(true).create_new(true).open(&partial) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            file => file?,
        };
        // Between creating and locking, another writer may have taken the file for abandoned; then try again.
        if file.try_lock().is_ok() && partial.exists() {
            return Ok((partial, file));
        }
    }
}

fn remove_abandoned(folder: &Path, prefix: &OsString) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let bytes = name.as_encoded_bytes();
        if !bytes.starts_with(prefix.as_encoded_bytes()) || !bytes.ends_with(SUFFIX.as_bytes()) {
            continue;
        }
        // Gone in the meantime, or not ours to open: neither stands in the way of writing.
        let Ok(file) = riffle_files::open(entry.path()) else {
            continue;
        };
        if file.try_lock().is_ok() {
            fs::remove_file(entry.path()).ok();
        }
    }
    Ok(())
}

/// The rename is on the disk when its folder is.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) {
        File::open(folder)?.sync_all()
    } else {
        Ok(())
    }
}
