//! Progress of a pull.

/// Progress of a pull.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// The current file; empty before the first.
    pub file: String,
    /// Finished bytes of all files.
    pub bytes_done: u64,
    /// Finished bytes at the start of the pull.
    pub bytes_found: u64,
    /// Bytes of all files; 0 until the hub has listed them.
    pub bytes: u64,
    /// Activity of the pull at the moment.
    pub activity: Activity,
}

/// Activity of a pull at the moment.
#[derive(Debug, Clone, PartialEq)]
pub enum Activity {
    /// Requests the repository's listing from the hub.
    Asking,
    /// Downloads bytes.
    Downloading,
    /// Reads the bytes of an earlier pull for their checksum.
    Checking,
    /// Waits for another process that downloads the same file.
    WaitingForProcess,
    /// Waits for the next attempt.
    WaitingToRetry {
        /// Reason for the last failure.
        why: String,
        /// Seconds until the next attempt.
        seconds: f64,
    },
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self {
            file: String::new(),
            bytes_done: 0,
            bytes_found: 0,
            bytes: 0,
            activity: Activity::Asking,
        }
    }
}
