//! Errors of measurements.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use riffle_engine::EngineError;
use riffle_kv::OutputError;

/// Every way a measurement can fail.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    /// The model could not be run.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A file could not be read or written.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's reason and the remedy.
        reason: String,
    },
    /// A file may not be written, or cannot be.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// A token file contains something other than token ids.
    #[error("{path}: {found:?} is not a token id: give ids as a JSON array or separated by spaces or commas")]
    NotATokenId {
        /// The file.
        path: PathBuf,
        /// The text in place of an id.
        found: String,
    },
    /// A token file holds no ids.
    #[error("{0}: no token ids in it")]
    NoTokens(PathBuf),
    /// The caller asked to stop between or in cells.
    #[error("interrupted after {done} of {cells} cells")]
    Interrupted {
        /// Finished cells.
        done: usize,
        /// All cells.
        cells: usize,
    },
    /// A picture cannot be drawn.
    #[error("the picture cannot be drawn: {0}")]
    Picture(String),
    /// The options contradict each other.
    #[error("{0}")]
    Option(String),
}

impl EvalError {
    pub(crate) fn file(path: &Path, error: &std::io::Error) -> Self {
        Self::File {
            path: path.to_owned(),
            reason: plain_reason(error),
        }
    }
}

/// The system's reason, with the remedy.
pub(crate) fn plain_reason(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "no such file or folder; check the path".to_owned(),
        ErrorKind::PermissionDenied => "not allowed; check who owns it".to_owned(),
        ErrorKind::IsADirectory => "a folder; give a file".to_owned(),
        ErrorKind::NotADirectory => "a file stands where a folder is needed; check the path".to_owned(),
        _ => error.to_string(),
    }
}

impl From<riffle_model::ModelError> for EvalError {
    fn from(error: riffle_model::ModelError) -> Self {
        Self::Engine(error.into())
    }
}
