//! Limits on reading.

use std::time::Duration;

/// Limits on untrusted files. A file beyond a limit is refused by name; nothing is truncated.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of one file on disk.
    pub file_bytes: u64,
    /// Decompressed bytes of one EPUB, DOCX or PDF, and of its text.
    pub expanded_bytes: u64,
    /// Bytes of text of all documents together.
    pub text_bytes: u64,
    /// Files of all folders together, and parts of one archive.
    pub files: usize,
    /// Depth of nested folders.
    pub depth: usize,
    /// Time limit for the parser of one file.
    pub time: Duration,
    /// Maximum number of bytes of memory for reading, including the texts of all documents; `None` means only the other
    /// limits apply. Each kind has a share for its file, its unpacked parts and its text; a file that needs more is
    /// refused by name.
    pub memory_bytes: Option<u64>,
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
            memory_bytes: None,
        }
    }
}

/// Memory for reading besides the file and its text, such as the tables of encodings.
const FIXED_BYTES: u64 = 4 << 20;

impl Limits {
    /// Limits of the next file, with `held` bytes of text kept.
    pub(crate) fn after(&self, held: u64) -> Self {
        let Some(memory) = self.memory_bytes else {
            return self.clone();
        };
        let left = memory.saturating_sub(held).saturating_sub(FIXED_BYTES);
        Self {
            // A plain text may exist twice while it is cleaned.
            file_bytes: self.file_bytes.min(left / 2),
            // Unpacked bytes are decoded, and become a tree and a text.
            expanded_bytes: self.expanded_bytes.min(left / 8),
            memory_bytes: Some(left),
            ..self.clone()
        }
    }

    /// True if these limits are narrower than `usual` because of memory.
    pub(crate) fn are_narrower(&self, usual: &Self) -> bool {
        self.file_bytes < usual.file_bytes || self.expanded_bytes < usual.expanded_bytes
    }

    /// The most items of `bytes` each that a parser keeps: `usual`, or fewer if memory is short.
    pub(crate) fn kept(&self, usual: usize, bytes: u64) -> usize {
        let most = self.memory_bytes.map_or(u64::MAX, |memory| memory / 4 / bytes.max(1));
        usual.min(usize::try_from(most).unwrap_or(usize::MAX))
    }
}
