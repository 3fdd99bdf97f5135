//! Layout and memory of pages on a device.

use riffle_attention::Format;
use riffle_kv::CacheShape;

use super::heads_of;
use crate::{CudaError, DeviceBuffer, Gpu, Region};

/// Bytes of a slab of pages; slabs are allocated as pages arrive.
const SLAB_BYTES: usize = 64 << 20;
/// Alignment of planes, in bytes.
const ALIGNMENT: usize = 256;

/// Offsets of keys and values in a page's slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct PageLayout {
    pub(super) key_bytes: usize,
    pub(super) values_at: usize,
    pub(super) value_bytes: usize,
    pub(super) page_bytes: usize,
}

impl PageLayout {
    pub(super) fn new(shape: &CacheShape) -> Self {
        let bytes = |format: Format| format.plane_bytes(shape.page_tokens, heads_of(shape).key_width);
        let (key_bytes, value_bytes) = (bytes(shape.key_format), bytes(shape.value_format));
        let values_at = key_bytes.next_multiple_of(ALIGNMENT);
        Self {
            key_bytes,
            values_at,
            value_bytes,
            page_bytes: values_at + value_bytes.next_multiple_of(ALIGNMENT),
        }
    }
}

/// Place of a page on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PagePlace {
    /// Slot of a page that stays.
    Slot(usize),
    /// Temporary place of a page, until the end of the call.
    Visitor(usize),
}

/// Memory of resident pages, in slabs allocated on first use, and of pages in transit.
pub(super) struct PageMemory {
    gpu: Gpu,
    slabs: Vec<DeviceBuffer>,
    slots: usize,
    slab_pages: usize,
    page_bytes: usize,
    visitors: DeviceBuffer,
}

impl PageMemory {
    pub(super) fn new(gpu: &Gpu, page_bytes: usize, slots: usize, visitors: usize) -> Result<Self, CudaError> {
        Ok(Self {
            gpu: gpu.clone(),
            slabs: Vec::new(),
            slots,
            slab_pages: (SLAB_BYTES / page_bytes).max(1),
            page_bytes,
            visitors: gpu.allocate(visitors * page_bytes)?,
        })
    }

    /// Allocates memory for a slot if it has none.
    pub(super) fn make(&mut self, slot: usize) -> Result<(), CudaError> {
        while self.slabs.len() * self.slab_pages <= slot {
            let left = self.slots - self.slabs.len() * self.slab_pages;
            self.slabs
                .push(self.gpu.allocate(self.slab_pages.min(left) * self.page_bytes)?);
        }
        Ok(())
    }

    pub(super) fn at(&self, place: PagePlace) -> Region<'_> {
        let bytes = self.page_bytes;
        match place {
            PagePlace::Slot(slot) => {
                let within = slot % self.slab_pages * bytes;
                self.slabs[slot / self.slab_pages].region(within..within + bytes)
            }
            PagePlace::Visitor(visitor) => self.visitors.region(visitor * bytes..(visitor + 1) * bytes),
        }
    }

    pub(super) fn slots(&self) -> usize {
        self.slots
    }

    pub(super) fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Number of temporary places.
    pub(super) fn visitors(&self) -> usize {
        self.visitors.bytes() / self.page_bytes
    }

    /// Allocated bytes.
    pub(super) fn bytes(&self) -> usize {
        let slabs: usize = self.slabs.iter().map(DeviceBuffer::bytes).sum();
        slabs + self.visitors.bytes()
    }
}
