//! Memory for packed weights: aligned to cache lines, in huge pages if the system grants them.
//!
//! Most matrices of a model are smaller than a huge page or end within one. Buffers are therefore consecutive slices
//! of much larger mappings. [`pages`](super::pages) decides which mappings get huge pages at once.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use memmap2::{MmapMut, MmapRaw};
use riffle_system::memory::MAPPINGS_ARE_LAZY;

use super::pages::{HUGE_PAGE_BYTES, prepare};
use crate::LinearError;

const LINE_BYTES: usize = 64;
/// Address space that buffers share. The system takes memory only for written pages.
const SHARED_BYTES: usize = if MAPPINGS_ARE_LAZY { 128 << 20 } else { 0 };
/// The longest buffer in shared space. The rest of a mapping is wasted when a buffer does not fit.
const LARGEST_SHARED_BYTES: usize = SHARED_BYTES / 8;

/// The shared mapping for new buffers.
struct Open {
    /// The mapping, which lives as long as any of its buffers.
    mapping: Weak<MmapRaw>,
    /// Offset up to which the mapping is used.
    used: usize,
    /// Offset up to which the mapping's pages are [prepared](prepare).
    prepared: usize,
    /// Offset of the end of the mapping's last huge page.
    end: usize,
}

static OPEN: Mutex<Open> = Mutex::new(Open {
    mapping: Weak::new(),
    used: 0,
    prepared: 0,
    end: 0,
});

/// Zeroed bytes, aligned to a cache line.
pub(crate) struct Buffer {
    mapping: Arc<MmapRaw>,
    start: usize,
    len: usize,
}

impl Buffer {
    pub(crate) fn zeroed(len: usize) -> Result<Buffer, LinearError> {
        if len <= LARGEST_SHARED_BYTES
            && let Some(buffer) = Buffer::cut(len)
        {
            return Ok(buffer);
        }
        let (mapping, start) = map(len).ok_or(LinearError::OutOfMemory { bytes: len })?;
        // Only whole huge pages are requested, so that the last one takes no memory that the weights do not need.
        let end = start + len - len % HUGE_PAGE_BYTES;
        prepare(&mapping, start, end, end);
        Ok(Buffer { mapping, start, len })
    }

    /// The next bytes of the open mapping, or of a new one; `None` if the system grants no such address space.
    fn cut(len: usize) -> Option<Buffer> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let same = open.mapping.upgrade();
        let (mapping, start) = match same.filter(|mapping| mapping.len() - open.used >= len) {
            Some(mapping) => (mapping, open.used),
            None => {
                let (mapping, start) = map(SHARED_BYTES)?;
                open.mapping = Arc::downgrade(&mapping);
                (open.prepared, open.end) = (start, start + SHARED_BYTES);
                (mapping, start)
            }
        };
        open.used = (start + len).next_multiple_of(LINE_BYTES).min(mapping.len());
        open.prepared = prepare(&mapping, open.prepared, start + len, open.end);
        Some(Buffer { mapping, start, len })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping holds `start + len` bytes for as long as this buffer, and no other buffer has these.
        unsafe { std::slice::from_raw_parts(self.mapping.as_ptr().add(self.start), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`, and this buffer is borrowed for itself alone.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.as_mut_ptr().add(self.start), self.len) }
    }
}

/// A mapping of zeros with `len` bytes after its first huge-page boundary, and the offset of this boundary.
fn map(len: usize) -> Option<(Arc<MmapRaw>, usize)> {
    let mapping = MmapMut::map_anon(len.checked_add(HUGE_PAGE_BYTES)?).ok()?;
    let address = mapping.as_ptr().addr();
    let start = address.next_multiple_of(HUGE_PAGE_BYTES) - address;
    Some((Arc::new(MmapRaw::from(mapping)), start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zeroed_aligned_and_do_not_touch_each_other() {
        let lengths = [
            1,
            63,
            64,
            4096,
            100_000,
            LARGEST_SHARED_BYTES,
            LARGEST_SHARED_BYTES + 1,
            7,
        ];
        let mut buffers: Vec<Buffer> = (0..24)
            .map(|index| Buffer::zeroed(lengths[index % lengths.len()]).unwrap())
            .collect();
        for (index, buffer) in buffers.iter_mut().enumerate() {
            assert_eq!(buffer.bytes().len(), lengths[index % lengths.len()]);
            assert!(buffer.bytes().as_ptr().addr().is_multiple_of(LINE_BYTES));
            assert!(buffer.bytes().iter().all(|byte| *byte == 0));
            buffer.bytes_mut().fill(index as u8 + 1);
        }
        // Freeing a buffer leaves the others unchanged, and its bytes are not reused as if they were zero.
        buffers.remove(4);
        let again = Buffer::zeroed(100_000).unwrap();
        assert!(again.bytes().iter().all(|byte| *byte == 0));
        for (index, buffer) in buffers.iter().enumerate() {
            let value = if index < 4 { index + 1 } else { index + 2 };
            assert!(
                buffer.bytes().iter().all(|byte| usize::from(*byte) == value),
                "buffer {index}"
            );
        }
    }

    #[test]
    fn more_than_there_is_is_refused() {
        assert!(Buffer::zeroed(usize::MAX).is_err());
        assert!(Buffer::zeroed(usize::MAX / 4).is_err());
    }
}
