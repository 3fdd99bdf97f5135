use std::fmt::Debug;
use std::io;
use std::ops::Range;

use memmap2::MmapMut;
use riffle_system::memory::{prefer_huge_pages, release};

/// The nearest tier: the memory from which attention reads pages.
///
/// On a CPU it is main memory ([`CpuDevice`]). An accelerator implements it over its own host-addressable memory, and
/// pages are copied there before they are read.
pub trait Device: Debug + Send + Sync {
    /// True if kernels read main memory in place. They then read pages of the RAM tier without copies. The device tier
    /// is then the part of main memory for the newest pages.
    fn reads_main_memory(&self) -> bool;

    /// Allocates `bytes` of zeroed memory, aligned to at least 64 bytes.
    ///
    /// # Errors
    /// If there is too little memory.
    fn allocate(&self, bytes: usize) -> io::Result<Box<dyn DeviceMemory>>;
}

/// Memory of a [`Device`], addressable by the host.
pub trait DeviceMemory: Send + Sync {
    /// The bytes of the memory.
    fn bytes(&self) -> &[u8];

    /// The bytes of the memory, writable.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// Called after a page was written to `bytes` from a farther tier, on the writing thread, before any kernel reads
    /// it.
    fn loaded(&mut self, _bytes: Range<usize>) {}

    /// Called when `bytes` will be written before they are read again: their memory may return to the system.
    fn release(&mut self, _bytes: Range<usize>) {}
}

/// Main memory, for kernels that run on the CPU.
#[derive(Debug, Clone, Copy)]
pub struct CpuDevice {
    in_place: bool,
}

impl CpuDevice {
    /// A device whose kernels read every page of main memory in place.
    pub fn new() -> Self {
        Self { in_place: true }
    }

    /// Separates the device tier from the RAM tier and copies pages between them, as an accelerator must. For
    /// measurements and tests on any machine.
    pub fn apart() -> Self {
        Self { in_place: false }
    }
}

impl Default for CpuDevice {
    fn default() -> Self {
        Self::new()
    }
}

impl Device for CpuDevice {
    fn reads_main_memory(&self) -> bool {
        self.in_place
    }

    fn allocate(&self, bytes: usize) -> io::Result<Box<dyn DeviceMemory>> {
        let map = MmapMut::map_anon(bytes)?;
        prefer_huge_pages(&map);
        Ok(Box::new(Mapping(map)))
    }
}

/// An anonymous mapping.
struct Mapping(MmapMut);

impl DeviceMemory for Mapping {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn release(&mut self, bytes: Range<usize>) {
        release(&mut self.0, bytes);
    }
}
