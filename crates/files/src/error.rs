//! Errors of reading files.

use std::error::Error;
use std::{fmt, io};

/// The reason a file was not opened or read, without its path, which the caller knows.
#[derive(Debug)]
#[non_exhaustive]
pub enum FileError {
    /// The path names something other than a regular file.
    NotRegular {
        /// Kind of the path's target, for example `"a pipe"`.
        found: &'static str,
    },
    /// The file is larger than files of its kind may be.
    TooLarge {
        /// Allowed bytes.
        limit_bytes: u64,
    },
    /// The file changed since it was opened.
    Changed,
    /// The system's reason.
    Io(io::Error),
}

impl FileError {
    /// The kind of the system's error; for other errors the nearest kind.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::NotRegular { found: "a folder" } => io::ErrorKind::IsADirectory,
            Self::NotRegular { .. } => io::ErrorKind::InvalidInput,
            Self::TooLarge { .. } => io::ErrorKind::FileTooLarge,
            Self::Changed => io::ErrorKind::UnexpectedEof,
            Self::Io(error) => error.kind(),
        }
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRegular { found } => write!(f, "it is {found}, not a regular file"),
            Self::TooLarge { limit_bytes } => {
                write!(
                    f,
                    "it holds more than {limit_bytes} bytes, the limit for files of its kind"
                )
            }
            Self::Changed => f.write_str("it was changed or cut off while it was in use; load it again"),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl Error for FileError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<FileError> for io::Error {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Io(error) => error,
            other => io::Error::new(other.kind(), other),
        }
    }
}
