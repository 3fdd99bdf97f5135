//! Errors of the hub and of its cache, a line each.

use riffle_files::human_bytes;
use std::io;
use std::path::PathBuf;

use riffle_files::FileError;

/// Why a model was not pulled, found or removed. Each message is one line that says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// A name that is none.
    #[error(
        "{name:?} is not a model's name; give owner/name, owner/name:Q4_K_M or owner/name/file.gguf, or a short name of riffle pull --list"
    )]
    Name {
        /// The given name.
        name: String,
    },
    /// A short name that no model has.
    #[error(
        "there is no model named {name:?}; near are {near}; riffle pull --list shows all short names, and owner/name takes any model of the hub"
    )]
    Unknown {
        /// The given name.
        name: String,
        /// Short names that are near.
        near: String,
    },
    /// A model of another program that cannot be opened.
    #[error("{name} is a model of {program}, and {problem}")]
    OtherProgram {
        /// Its name there.
        name: String,
        /// The program.
        program: crate::Program,
        /// The reason.
        problem: String,
    },
    /// An environment variable with a value that cannot be used.
    #[error("{variable} {problem}")]
    Variable {
        /// Its name.
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
    /// Nothing may be downloaded.
    #[error("HF_HUB_OFFLINE is set, so that {name} cannot be downloaded; unset it, and run the same command again")]
    Offline {
        /// The model.
        name: String,
    },
    /// The repository has no model that Riffle reads.
    #[error("{repository} has no model that riffle reads: {problem}")]
    NoModel {
        /// `owner/name`.
        repository: String,
        /// Contents of the repository in place of a model.
        problem: String,
    },
    /// The one who asked looked at the beginning of the model and does not want the rest.
    #[error("{repository}: {problem}; the rest of the model was not downloaded")]
    NotWanted {
        /// `owner/name`.
        repository: String,
        /// The reason.
        problem: String,
    },
    /// Nothing of the repository matches the name.
    #[error("{repository} has no {wanted}; it has {choices}")]
    NoSuchPart {
        /// `owner/name`.
        repository: String,
        /// The quantisation or the file asked for.
        wanted: String,
        /// Names that the repository has.
        choices: String,
    },
    /// Several files of the repository match the name.
    #[error("{repository} has several models for this name; give one of {choices}")]
    Several {
        /// `owner/name`.
        repository: String,
        /// Their full names.
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
    /// The repository is gated, or the token may not read it.
    #[error(
        "{repository} is for those who have been given access; ask for it at {page}, then give a token that may read it ({})",
        TOKEN_HINT
    )]
    Gated {
        /// `owner/name`.
        repository: String,
        /// Page on which to ask for access.
        page: String,
    },
    /// The hub does not take the token.
    #[error("{host} does not take the token that was given by {source_of_token}; make one at {host}/settings/tokens")]
    Token {
        /// The hub, with its scheme.
        host: String,
        /// The variable or the file.
        source_of_token: String,
    },
    /// The server asks to wait for longer than we do.
    #[error("{host} asks to wait for {} s before the next request; run the same command then: it goes on where it was{}", wait.as_secs(), RATE_HINT)]
    Busy {
        /// Host of the server.
        host: String,
        /// For how long.
        wait: std::time::Duration,
    },
    /// A server's answer that is neither the file nor a reason known here.
    #[error("{url}: {problem}")]
    Answer {
        /// The address.
        url: String,
        /// The problem with the answer.
        problem: String,
    },
    /// The connection failed as often as it is tried.
    #[error(
        "{host}: {problem}, {attempts} times in a row; what was downloaded is kept: run the same command later, it goes on from there"
    )]
    Connection {
        /// Host that does not answer.
        host: String,
        /// Failure of the last try.
        problem: String,
        /// How often.
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
    /// This processor lacks what encryption needs here.
    #[error(
        "this processor lacks {missing}, which encrypted connections of riffle need; get the model with another program (hf download {repository}): riffle finds it afterwards"
    )]
    Processor {
        /// Features of the processor.
        missing: String,
        /// `owner/name`.
        repository: String,
    },
    /// The sum of a file's bytes is not the one that the hub states.
    #[error(
        "{file}: its bytes have the sum {found}, and the hub states {stated}; the file was removed: run the same command again, and if it fails again ask the model's author"
    )]
    Sum {
        /// The file in the repository.
        file: String,
        /// The sum of what came.
        found: String,
        /// The sum that the hub states.
        stated: String,
    },
    /// The disk has no room.
    #[error("{} are to be downloaded, and {} has {} free; riffle list shows what is stored, riffle rm NAME removes it, HF_HUB_CACHE names another folder", human_bytes(*needed), folder.display(), human_bytes(*free))]
    NoRoom {
        /// Bytes still to come.
        needed: u64,
        /// Bytes that the file system can take.
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
        /// Which.
        path: PathBuf,
        /// Failure of the file operation.
        #[source]
        source: FileError,
    },
}

/// How to give a token.
const TOKEN_HINT: &str = "HF_TOKEN=…, or hf auth login, which keeps it in a file";
/// Why servers ask to wait.
const RATE_HINT: &str = " (with a token more requests are allowed)";

impl HubError {
    /// Makes an error of a file operation on `path`.
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(FileError) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }

    /// As [`HubError::file`], for errors of the standard library.
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File {
            path,
            source: source.into(),
        }
    }
}
