//! Reads parts of a large file at given offsets.
//!
//! Reads bypass the system's file cache, if system and file system allow it. A program that caches parts under its
//! own budget would otherwise hold them twice.

use std::fs::File;
use std::io;
use std::time::SystemTime;

use riffle_system::DirectFile;

use crate::FileError;

const GRAIN_BYTES: usize = DirectFile::GRAIN_BYTES;

/// An open file. It must not change while its parts are read.
#[derive(Debug)]
pub struct FileParts {
    file: DirectFile,
    bytes: u64,
    modified: Option<SystemTime>,
}

/// Reusable memory for reading parts.
#[derive(Debug, Default)]
pub struct PartBuffer {
    memory: Vec<u8>,
}

impl PartBuffer {
    /// Memory for parts of up to `bytes` bytes.
    pub fn new(bytes: usize) -> Self {
        Self {
            memory: vec![0; Self::memory_bytes(bytes)],
        }
    }

    /// Size of the memory for parts of up to `bytes` bytes.
    pub fn memory_bytes(bytes: usize) -> usize {
        // A part begins and ends within a grain, and so does the memory.
        bytes.saturating_add(3 * GRAIN_BYTES)
    }

    /// Aligned memory for `bytes` bytes.
    fn aligned(&mut self, bytes: usize) -> &mut [u8] {
        if self.memory.len() < bytes + GRAIN_BYTES {
            self.memory.resize(bytes + GRAIN_BYTES, 0);
        }
        let address = self.memory.as_ptr().addr();
        let start = address.next_multiple_of(GRAIN_BYTES) - address;
        &mut self.memory[start..start + bytes]
    }
}

impl FileParts {
    /// Notes the size and the time of change of the file.
    ///
    /// # Errors
    /// [`FileError::Io`].
    pub fn new(file: File) -> Result<Self, FileError> {
        let metadata = file.metadata()?;
        Ok(Self {
            bytes: metadata.len(),
            modified: metadata.modified().ok(),
            file: DirectFile::new(file),
        })
    }

    /// Reads `bytes` bytes from `offset` on.
    ///
    /// # Errors
    /// [`FileError::Changed`] if the file changed or ends before the part; [`FileError::Io`].
    pub fn read<'b>(&self, offset: u64, bytes: usize, buffer: &'b mut PartBuffer) -> Result<&'b [u8], FileError> {
        let grain = GRAIN_BYTES as u64;
        let end = offset.saturating_add(bytes as u64);
        if end > self.bytes {
            return Err(FileError::Changed);
        }
        let first = offset / grain * grain;
        let skipped = (offset - first) as usize;
        let memory = buffer.aligned((skipped + bytes).next_multiple_of(GRAIN_BYTES));
        fill(first, skipped + bytes, memory, |bytes, offset| {
            self.file.read_at(bytes, offset)
        })?;
        let now = self.file.metadata()?;
        if now.len() != self.bytes || now.modified().ok() != self.modified {
            return Err(FileError::Changed);
        }
        Ok(&memory[skipped..skipped + bytes])
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// True if reads bypass the system's cache.
    pub fn is_direct(&self) -> bool {
        self.file.is_direct()
    }
}

/// Reads at least `needed` bytes from `first` on, in whole grains if possible; `read` may return fewer bytes than
/// requested.
fn fill(
    first: u64,
    needed: usize,
    memory: &mut [u8],
    read: impl Fn(&mut [u8], u64) -> io::Result<usize>,
) -> Result<(), FileError> {
    let mut done = 0;
    while done < needed {
        match read(&mut memory[done..], first + done as u64) {
            // The file ends before the part does.
            Ok(0) => return Err(FileError::Changed),
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file.as_file().sync_all().unwrap();
        file
    }

    #[test]
    fn parts_hold_what_the_file_holds_wherever_they_begin_and_end() {
        let bytes: Vec<u8> = (0..70_001u32).map(|at| (at * 31 % 251) as u8).collect();
        let file = file(&bytes);
        let parts = FileParts::new(crate::open(file.path()).unwrap()).unwrap();
        let mut buffer = PartBuffer::new(100);
        for (offset, length) in [
            (0, 1),
            (1, 4096),
            (4095, 2),
            (4096, 4096),
            (69_000, 1001),
            (70_000, 1),
            (70_001, 0),
            (0, 70_001),
        ] {
            let read = parts.read(offset, length, &mut buffer).unwrap();
            assert!(
                read == &bytes[offset as usize..][..length],
                "{length} bytes from {offset} on"
            );
        }
        let error = parts.read(69_999, 3, &mut buffer).unwrap_err();
        assert!(matches!(error, FileError::Changed), "{error}");
    }

    #[test]
    fn short_and_interrupted_reads_go_on_where_they_ended_and_a_failed_one_is_an_error() {
        let stored: Vec<u8> = (0..=255).collect();
        let calls = std::cell::Cell::new(0);
        let read = |fails_at: usize| {
            let (stored, calls) = (&stored, &calls);
            move |bytes: &mut [u8], offset: u64| {
                calls.set(calls.get() + 1);
                match calls.get() {
                    call if call == fails_at => Err(io::Error::other("the disk is broken")),
                    call if call.is_multiple_of(3) => Err(io::ErrorKind::Interrupted.into()),
                    call => {
                        let left = &stored[offset as usize..];
                        let count = (call % 7 + 1).min(left.len()).min(bytes.len());
                        bytes[..count].copy_from_slice(&left[..count]);
                        Ok(count)
                    }
                }
            }
        };
        let mut memory = [0; 200];
        fill(40, 200, &mut memory, read(usize::MAX)).unwrap();
        assert!(memory == stored[40..240]);
        calls.set(0);
        let error = fill(40, 200, &mut memory, read(8)).unwrap_err();
        assert!(error.to_string().contains("the disk is broken"), "{error}");
        let ended = fill(100, 200, &mut memory, read(usize::MAX)).unwrap_err();
        assert!(matches!(ended, FileError::Changed), "{ended}");
    }

    #[test]
    fn a_file_that_is_cut_off_or_written_to_is_an_error() {
        for damage in [
            |file: &File| file.set_len(3000).unwrap(),
            |mut file: &File| file.write_all(b"more").unwrap(),
        ] {
            let file = file(&[7; 10_000]);
            let parts = FileParts::new(crate::open(file.path()).unwrap()).unwrap();
            let mut buffer = PartBuffer::default();
            parts.read(2000, 4000, &mut buffer).unwrap();
            damage(file.as_file());
            let error = parts.read(2000, 4000, &mut buffer).unwrap_err();
            assert_eq!(
                error.to_string(),
                "it was changed or cut off while it was in use; load it again"
            );
        }
    }
}
