//! Reads that bypass the system's file cache.

use std::fs::{File, Metadata};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::platform;

/// An open file whose reads bypass the system's cache, if system and file system allow it. Offsets, lengths and
/// addresses of reads are multiples of [`GRAIN_BYTES`](Self::GRAIN_BYTES).
#[derive(Debug)]
pub struct DirectFile {
    file: File,
    /// A second handle that bypasses the cache, on systems that need one.
    uncached: Option<File>,
    is_direct: AtomicBool,
}

impl DirectFile {
    /// Unit of reads.
    pub const GRAIN_BYTES: usize = 4096;

    /// Makes reads of this handle bypass the cache from now on, if possible.
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

    /// Reads some bytes. After the first read that the file system refuses to do uncached, reads use the cache.
    ///
    /// # Errors
    /// Errors of the system.
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

    /// True if reads bypass the system's cache.
    pub fn is_direct(&self) -> bool {
        self.is_direct.load(Ordering::Relaxed)
    }

    /// Metadata of the open file.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.file.metadata()
    }
}
