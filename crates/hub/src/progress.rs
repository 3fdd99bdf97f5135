//! How far a pull has come.

/// Progress of a pull.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// The file that is downloaded; empty before the first.
    pub file: String,
    /// Bytes of all files that are there.
    pub bytes_done: u64,
    /// Bytes of those that had been there when the pull began.
    pub bytes_found: u64,
    /// Bytes of all files; 0 while the hub is asked what they are.
    pub bytes: u64,
    /// Activity of the pull at the moment.
    pub activity: Activity,
}

/// Activity of a pull at the moment.
#[derive(Debug, Clone, PartialEq)]
pub enum Activity {
    /// The hub is asked what the repository holds.
    Asking,
    /// Bytes come in.
    Downloading,
    /// The bytes of an earlier pull are read for their checksum.
    Checking,
    /// Another process downloads the same file.
    WaitingForProcess,
    /// The next try comes in this many seconds.
    WaitingToRetry {
        /// Why the last one failed.
        why: String,
        /// Seconds until the next.
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
