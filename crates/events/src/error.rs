//! Errors of publishing events.

use thiserror::Error;

/// An error of publishing events.
#[derive(Debug, Error)]
pub enum EventsError {
    /// An address on which listening failed.
    #[error("{address}: {problem}")]
    Address {
        /// The given address.
        address: String,
        /// The problem with the address and its remedy.
        problem: String,
    },
    /// The publishing thread failed to start.
    #[error("the thread that publishes events cannot be started: {0}")]
    Thread(#[source] std::io::Error),
}
