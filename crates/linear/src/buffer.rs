//! Memory for packed weights: aligned to cache lines, in huge pages where the system grants them.

use memmap2::MmapMut;

use crate::LinearError;

const LINE_BYTES: usize = 64;
/// Size of a huge page, and the size from which a buffer asks for them.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Zeroed bytes that start on a cache line.
pub(crate) struct Buffer {
    memory: Memory,
    start: usize,
    len: usize,
}

enum Memory {
    Heap(Vec<u8>),
    Mapping(MmapMut),
}

impl Buffer {
    pub(crate) fn zeroed(len: usize) -> Result<Buffer, LinearError> {
        let out_of_memory = || LinearError::OutOfMemory { bytes: len };
        let (align, mut memory) = if len >= HUGE_PAGE_BYTES && cfg!(unix) {
            let room = len.checked_add(HUGE_PAGE_BYTES).ok_or_else(out_of_memory)?;
            let mapping = MmapMut::map_anon(room).map_err(|_| out_of_memory())?;
            (HUGE_PAGE_BYTES, Memory::Mapping(mapping))
        } else {
            let room = len.checked_add(LINE_BYTES).ok_or_else(out_of_memory)?;
            let mut heap = Vec::new();
            heap.try_reserve_exact(room).map_err(|_| out_of_memory())?;
            heap.resize(room, 0);
            (LINE_BYTES, Memory::Heap(heap))
        };
        let address = memory.bytes().as_ptr().addr();
        let start = address.next_multiple_of(align) - address;
        memory.ask_for_huge_pages(start, len);
        Ok(Buffer { memory, start, len })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        let all = match &self.memory {
            Memory::Heap(heap) => heap.as_slice(),
            Memory::Mapping(mapping) => mapping,
        };
        &all[self.start..][..self.len]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory.bytes()[self.start..][..self.len]
    }
}

impl Memory {
    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Memory::Heap(heap) => heap,
            Memory::Mapping(mapping) => mapping,
        }
    }

    /// Only whole huge pages, so that the last one does not cost memory the weights do not need. A refusal costs
    /// speed, not correctness.
    fn ask_for_huge_pages(&mut self, start: usize, len: usize) {
        #[cfg(target_os = "linux")]
        if let Memory::Mapping(mapping) = self {
            let whole = len - len % HUGE_PAGE_BYTES;
            let _ = mapping.advise_range(memmap2::Advice::HugePage, start, whole);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (start, len);
    }
}
