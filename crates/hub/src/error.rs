//! Errors of the hub and of its cache, each of one line.

use riffle_files::human_bytes;
use std::io;
use std::path::PathBuf;

use riffle_files::FileError;

/// Errors of pulling, finding or removing a model. Each message is one line with the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// An invalid name.
    #[error(
        "{name:?} is not a model's name; give owner/name, owner/name:Q4_K_M or owner/name/file.gguf, or a short name of riffle pull --list"
    )]
    Name {
        /// The given name.
        name: String,
    },
    /// An unknown short name.
    #[error(
        "there is no model named {name:?}; near are {near}; riffle pull --list shows all short names, and owner/name takes any model of the hub"
    )]
    Unknown {
        /// The given name.
        name: String,
        /// Similar short names.
        near: String,
    },
    /// An unusable model of another program.
    #[error("{name} is a model of {program}, and {problem}")]
    OtherProgram {
        /// The model's name in that program.
        name: String,
        /// The program.
        program: crate::Program,
        /// The reason.
        problem: String,
    },
    /// An environment variable with an invalid value.
    #[error("{variable} {problem}")]
    Variable {
        /// Name of the variable.
        variable: String,
        /// The problem with the value.
        problem: String,
    },
    /// The model is not in the cache.
    #[error("{name} is not in the cache of models; get it: riffle pull {name}")]
    NotStored {
        /// The requested name.
        name: String,
    },
    /// Files of the model are missing in the cache.
    #[error("{name} is not complete in the cache of models ({missing}); get the rest: riffle pull {name}")]
    Incomplete {
        /// The requested name.
        name: String,
        /// Names of the missing files.
        missing: String,
    },
    /// Downloads are disabled.
    #[error("HF_HUB_OFFLINE is set, so that {name} cannot be downloaded; unset it, and run the same command again")]
    Offline {
        /// The model.
        name: String,
    },
    /// The repository has no model for Riffle.
    #[error("{repository} has no model that riffle reads: {problem}")]
    NoModel {
        /// `owner/name`.
        repository: String,
        /// Contents of the repository.
        problem: String,
    },
    /// The caller inspected the beginning of the model and refused the rest.
    #[error("{repository}: {problem}; the rest of the model was not downloaded")]
    NotWanted {
        /// `owner/name`.
        repository: String,
        /// The reason.
        problem: String,
    },
    /// No file of the repository matches the name.
    #[error("{repository} has no {wanted}; it has {choices}")]
    NoSuchPart {
        /// `owner/name`.
        repository: String,
        /// The requested quantisation or file.
        wanted: String,
        /// Names that the repository has.
        choices: String,
    },
    /// Several files of the repository match the name.
    #[error("{repository} has several models for this name; give one of {choices}")]
    Several {
        /// `owner/name`.
        repository: String,
        /// Full names of these files.
        choices: String,
    },
    /// The hub does not know the repository.
    #[error(
        "{host} has no model {repository}, or it is private; check the name, and for a private one give a token that may read it ({})",
        TOKEN_HINT
    )]
    NotFound {
        /// The hub's host.
        host: String,
        /// `owner/name`.
        repository: String,
    },
    /// The repository is gated, or the token does not allow reading it.
    #[error(
        "{repository} is for those who have been given access; ask for it at {page}, then give a token that may read it ({})",
        TOKEN_HINT
    )]
    Gated {
        /// `owner/name`.
        repository: String,
        /// Page to request access.
        page: String,
    },
    /// The hub refuses the token.
    #[error("{host} does not take the token that was given by {source_of_token}; make one at {host}/settings/tokens")]
    Token {
        /// The hub, with its scheme.
        host: String,
        /// The variable or the file.
        source_of_token: String,
    },
    /// The server requests a longer delay than the limit.
    #[error("{host} asks to wait for {} s before the next request; run the same command then: it goes on where it was{}", wait.as_secs(), RATE_HINT)]
    Busy {
        /// Host of the server.
        host: String,
        /// The requested delay.
        wait: std::time::Duration,
    },
    /// An unknown answer of a server.
    #[error("{url}: {problem}")]
    Answer {
        /// The address.
        url: String,
        /// The problem with the answer.
        problem: String,
    },
    /// The connection failed in every attempt.
    #[error(
        "{host}: {problem}, {attempts} times in a row; what was downloaded is kept: run the same command later, it goes on from there"
    )]
    Connection {
        /// The host without an answer.
        host: String,
        /// Failure of the last try.
        problem: String,
        /// Number of attempts.
        attempts: u32,
    },
    /// No connection at all.
    #[error(
        "no connection to {host}: {problem}; check the network (HTTPS_PROXY names a proxy, HF_ENDPOINT another hub)"
    )]
    Unreachable {
        /// Host of the request.
        host: String,
        /// Failure of the connection.
        problem: String,
    },
    /// This processor lacks instructions for the encryption.
    #[error(
        "this processor lacks {missing}, which encrypted connections of riffle need; get the model with another program (hf download {repository}): riffle finds it afterwards"
    )]
    Processor {
        /// Features of the processor.
        missing: String,
        /// `owner/name`.
        repository: String,
    },
    /// The checksum of a file differs from the hub's.
    #[error(
        "{file}: its bytes have the sum {found}, and the hub states {stated}; the file was removed: run the same command again, and if it fails again ask the model's author"
    )]
    Sum {
        /// The file in the repository.
        file: String,
        /// The checksum of the received bytes.
        found: String,
        /// The hub's checksum.
        stated: String,
    },
    /// The disk is full.
    #[error("{} are to be downloaded, and {} has {} free; riffle list shows what is stored, riffle rm NAME removes it, HF_HUB_CACHE names another folder", human_bytes(*needed), folder.display(), human_bytes(*free))]
    NoRoom {
        /// Bytes still to download.
        needed: u64,
        /// Free bytes of the file system.
        free: u64,
        /// The cache.
        folder: PathBuf,
    },
    /// Another process downloads this repository.
    #[error("{repository} is being downloaded by another process; wait until it ends, or end it")]
    InUse {
        /// `owner/name`.
        repository: String,
    },
    /// The caller asked to stop.
    #[error("interrupted; what was downloaded is kept: the same command goes on from there")]
    Interrupted,
    /// A file or a folder of the cache.
    #[error("{}: {source}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Failure of the file operation.
        #[source]
        source: FileError,
    },
}

/// Ways to give a token.
const TOKEN_HINT: &str = "HF_TOKEN=…, or hf auth login, which keeps it in a file";
/// A hint in errors of rate limits.
const RATE_HINT: &str = " (with a token more requests are allowed)";

impl HubError {
    /// Makes an error of a file operation on `path`.
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(FileError) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }

    /// [`HubError::file`] for errors of the standard library.
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File {
            path,
            source: source.into(),
        }
    }
}
