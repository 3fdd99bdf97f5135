//! Memory for packed weights: aligned to cache lines, in huge pages where the system grants them.
//!
//! Most matrices of a model are smaller than a huge page or end within one, so buffers are cut one after the other from
//! mappings that are much larger. [`pages`](super::pages) decides which of them get huge pages at once.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use memmap2::{MmapMut, MmapRaw};
use riffle_system::memory::MAPPINGS_ARE_LAZY;

use super::pages::{HUGE_PAGE_BYTES, prepare};
use crate::LinearError;

const LINE_BYTES: usize = 64;
/// Address space that buffers share. Memory is taken only for what is written.
const SHARED_BYTES: usize = if MAPPINGS_ARE_LAZY { 128 << 20 } else { 0 };
/// Longest buffer that is cut from shared space: what is left over when one does not fit stays unused.
const LARGEST_SHARED_BYTES: usize = SHARED_BYTES / 8;

/// The shared mapping that new buffers are cut from.
struct Open {
    /// It lives as long as any of its buffers.
    mapping: Weak<MmapRaw>,
    /// How far it is used.
    used: usize,
    /// How far its pages are [prepared](prepare).
    prepared: usize,
    /// The end of its last huge page.
    end: usize,
}

static OPEN: Mutex<Open> = Mutex::new(Open {
    mapping: Weak::new(),
    used: 0,
    prepared: 0,
    end: 0,
});

/// Zeroed bytes that start on a cache line.
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
        // Only whole huge pages, so that the last one does not cost memory the weights do not need.
        let end = start + len - len % HUGE_PAGE_BYTES;
        prepare(&mapping, start, end, end);
        Ok(Buffer { mapping, start, len })
    }

    /// The next bytes of the open mapping, or of a new one; `None` where the system gives no such address space.
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

/// A mapping of zeros with room for `len` bytes behind the first place in it where a huge page begins, and that place.
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
        // A freed one leaves the others alone, and its bytes are not given out again as if they were zero.
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
