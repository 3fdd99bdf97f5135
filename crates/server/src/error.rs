//! Errors of starting a server.

use std::path::PathBuf;

use riffle_engine::EngineError;

use crate::ListenAddress;

/// Error of starting or running a server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The server cannot listen on the address.
    #[error("cannot listen on {address}: {source}; choose another `port`, or another `host`")]
    Listen {
        /// The address.
        address: ListenAddress,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The engine cannot serve many requests.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// KV events cannot be published.
    #[error("`kv_events`: {0}")]
    Events(#[from] riffle_events::EventsError),
    /// A thread failed to start.
    #[error("a thread of the server could not be started: {0}")]
    Thread(std::io::Error),
    /// The folder of sessions cannot be used.
    #[error("`session_folder={path}`: {source}; create the folder, or choose another", path = path.display())]
    Sessions {
        /// The folder.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// An option is invalid.
    #[error("`{option}={value}`: {problem}")]
    Option {
        /// The field of the options.
        option: &'static str,
        /// The rejected value.
        value: String,
        /// The problem, and a valid value.
        problem: String,
    },
}
