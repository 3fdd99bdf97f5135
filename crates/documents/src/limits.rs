//! How much is read at most.

use std::time::Duration;

/// Limits on files by strangers. A file beyond a limit is refused by name; nothing is cut.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of one file on disk.
    pub file_bytes: u64,
    /// Bytes of what one EPUB, DOCX or PDF holds, decompressed, and of its text.
    pub expanded_bytes: u64,
    /// Bytes of text of all documents together.
    pub text_bytes: u64,
    /// Files of all folders together, and parts of one archive.
    pub files: usize,
    /// Folders within one another.
    pub depth: usize,
    /// Time that the parser of one file may take.
    pub time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            file_bytes: 256 << 20,
            expanded_bytes: 256 << 20,
            text_bytes: 256 << 20,
            files: 20_000,
            depth: 64,
            time: Duration::from_secs(120),
        }
    }
}
