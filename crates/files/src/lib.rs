//! Opens and reads regular files within limits.
//!
//! A user's path may be a pipe, a socket, a device or a folder. Opening a pipe waits for its writer, and reading a
//! device such as `/dev/zero` never ends. These functions open without waiting, check the kind of the opened file,
//! and read no more bytes than the caller allows.
//!
//! ```
//! # let folder = std::env::temp_dir();
//! let path = folder.join(format!("riffle-files-{}", std::process::id()));
//! std::fs::write(&path, "some text")?;
//! assert_eq!(riffle_files::read(&path, 100)?, b"some text");
//! let error = riffle_files::read(&path, 4).unwrap_err();
//! assert_eq!(error.to_string(), "it holds more than 4 bytes, the limit for files of its kind");
//! let error = riffle_files::open(&folder).unwrap_err();
//! assert_eq!(error.to_string(), "it is a folder, not a regular file");
//! # std::fs::remove_file(&path)?;
//! # Ok::<(), std::io::Error>(())
//! ```

mod error;
mod gguf_name;
mod locked;
mod parts;
mod size;
mod tokenizer_name;

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

pub use error::FileError;
pub use gguf_name::{GgufShard, gguf_shard, gguf_stem};
pub use locked::LockedFile;
pub use parts::{FileParts, PartBuffer};
use riffle_system::files::{Links, is_pipe, is_socket, without_waiting};
pub use size::{grouped, human_bytes};
pub use tokenizer_name::TOKENIZER_FILES;

/// Opens a regular file for reading.
///
/// # Errors
/// [`FileError::NotRegular`] immediately for anything else; [`FileError::Io`].
pub fn open(path: impl AsRef<Path>) -> Result<File, FileError> {
    open_with(path, OpenOptions::new().read(true))
}

/// Opens a regular file with `options`, which may create it.
///
/// # Errors
/// [`FileError::NotRegular`] immediately for anything that exists and is not a regular file; [`FileError::Io`].
pub fn open_with(path: impl AsRef<Path>, options: &mut OpenOptions) -> Result<File, FileError> {
    open_checked(path.as_ref(), options, Links::Followed)
}

/// As [`open_with`], but the path itself must not be a link.
///
/// # Errors
/// As [`open_with`]; [`FileError::NotRegular`] also for a link.
pub fn open_no_link(path: impl AsRef<Path>, options: &mut OpenOptions) -> Result<File, FileError> {
    open_checked(path.as_ref(), options, Links::Refused)
}

fn open_checked(path: &Path, options: &mut OpenOptions, links: Links) -> Result<File, FileError> {
    // The kind is also checked before opening, because opening some devices has an effect.
    let there = match links {
        Links::Followed => std::fs::metadata(path),
        Links::Refused => std::fs::symlink_metadata(path),
    };
    match there {
        Ok(metadata) => check_regular(&metadata)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    let file = without_waiting(options, links).open(path)?;
    check_regular(&file.metadata()?)?;
    Ok(file)
}

/// Reads a complete regular file of at most `limit_bytes` bytes.
///
/// # Errors
/// [`FileError::NotRegular`], [`FileError::TooLarge`], [`FileError::Io`].
pub fn read(path: impl AsRef<Path>, limit_bytes: u64) -> Result<Vec<u8>, FileError> {
    let file = open(path)?;
    let length = file.metadata()?.len();
    if length > limit_bytes {
        return Err(FileError::TooLarge { limit_bytes });
    }
    read_within(file, limit_bytes)
}

/// As [`read`], for text.
///
/// # Errors
/// As [`read`]; [`FileError::Io`] of kind [`InvalidData`](io::ErrorKind::InvalidData) for invalid UTF-8.
pub fn read_text(path: impl AsRef<Path>, limit_bytes: u64) -> Result<String, FileError> {
    String::from_utf8(read(path, limit_bytes)?)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()).into())
}

/// Reads a complete regular file or pipe of at most `limit_bytes` bytes; waits for a pipe's writer.
///
/// # Errors
/// As [`read`].
pub fn read_file_or_pipe(path: impl AsRef<Path>, limit_bytes: u64) -> Result<Vec<u8>, FileError> {
    let path = path.as_ref();
    if !is_pipe(std::fs::metadata(path)?.file_type()) {
        return read(path, limit_bytes);
    }
    let file = File::open(path)?;
    let opened = file.metadata()?;
    if !is_pipe(opened.file_type()) {
        check_regular(&opened)?;
    }
    read_within(file, limit_bytes)
}

/// Reads a stream of at most `limit_bytes` bytes to its end.
///
/// # Errors
/// [`FileError::TooLarge`], [`FileError::Io`].
pub fn read_within(stream: impl Read, limit_bytes: u64) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    stream.take(limit_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit_bytes {
        Err(FileError::TooLarge { limit_bytes })
    } else {
        Ok(bytes)
    }
}

/// Name of a file type for messages: `"a pipe"`, `"a device"`, `"a folder"`.
pub fn kind_name(file_type: FileType) -> &'static str {
    match () {
        () if is_pipe(file_type) => "a pipe",
        () if is_socket(file_type) => "a socket",
        () if file_type.is_dir() => "a folder",
        () if file_type.is_symlink() => "a link",
        () if file_type.is_file() => "a file",
        () => "a device",
    }
}

fn check_regular(metadata: &Metadata) -> Result<(), FileError> {
    let file_type = metadata.file_type();
    if file_type.is_file() {
        Ok(())
    } else {
        Err(FileError::NotRegular {
            found: kind_name(file_type),
        })
    }
}
