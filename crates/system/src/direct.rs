//! Reads past the system's cache of files.

use std::fs::{File, Metadata};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::platform;

/// An open file that is read past the system's cache, if system and file system allow that. Offsets, lengths and addresses of reads
/// are multiples of [`GRAIN_BYTES`](Self::GRAIN_BYTES).
#[derive(Debug)]
pub struct DirectFile {
    file: File,
    /// The same file past the cache, where the system needs another handle for that.
    uncached: Option<File>,
    is_direct: AtomicBool,
}

impl DirectFile {
    /// Unit of reads.
    pub const GRAIN_BYTES: usize = 4096;

    /// Reads of this handle go past the cache from now on, where they may.
    pub fn new(file: File) -> Self {
        let (is_direct, uncached) = match platform::start_direct(&file) {
            Ok(uncached) => (true, uncached),
            Err(_) => (false, None),
        };
        Self {
            file,
            uncached,
            is_direct: AtomicBool::new(is_direct),
        }
    }

    /// Reads some bytes, through the cache from the first read on that the file system refuses to do without it.
    ///
    /// # Errors
    /// The system's.
    pub fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let uncached = self.uncached.as_ref().filter(|_| self.is_direct());
        match platform::read_at(uncached.unwrap_or(&self.file), bytes, offset) {
            Err(error)
                if error.kind() == io::ErrorKind::InvalidInput && self.is_direct.swap(false, Ordering::Relaxed) =>
            {
                platform::stop_direct(&self.file);
                platform::read_at(&self.file, bytes, offset)
            }
            read => read,
        }
    }

    /// True if reads go past the system's cache.
    pub fn is_direct(&self) -> bool {
        self.is_direct.load(Ordering::Relaxed)
    }

    /// Metadata of the open file.
    ///
    /// # Errors
    /// The system's.
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.file.metadata()
    }
}
