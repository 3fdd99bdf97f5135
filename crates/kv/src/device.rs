use std::fmt::Debug;
use std::io;
use std::ops::Range;

use memmap2::MmapMut;
use riffle_system::memory::{prefer_huge_pages, release};

/// The nearest tier: memory that attention reads pages from.
///
/// On a CPU it is main memory ([`CpuDevice`]). An accelerator implements it over memory of its own that the host can
/// address; pages then travel into it before they are read.
pub trait Device: Debug + Send + Sync {
    /// True if kernels read main memory in place. Pages of the RAM tier are then attended to where they lie, and the
    /// device tier is the part of main memory that the newest pages count for.
    fn reads_main_memory(&self) -> bool;

    /// Allocates `bytes` of memory filled with zeros, at a boundary of 64 bytes or more.
    ///
    /// # Errors
    /// When there is no such memory.
    fn allocate(&self, bytes: usize) -> io::Result<Box<dyn DeviceMemory>>;
}

/// Memory of a [`Device`], as the host sees it.
pub trait DeviceMemory: Send + Sync {
    /// The bytes of the memory.
    fn bytes(&self) -> &[u8];

    /// The bytes of the memory, writable.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// A page has been written to `bytes` from a farther tier; called on the thread that wrote it, before any kernel
    /// reads it.
    fn loaded(&mut self, _bytes: Range<usize>) {}

    /// Nothing reads `bytes` before they are written again: their memory may go back to the system.
    fn release(&mut self, _bytes: Range<usize>) {}
}

/// Main memory, for kernels that run on the CPU.
#[derive(Debug, Clone, Copy)]
pub struct CpuDevice {
    in_place: bool,
}

impl CpuDevice {
    /// Kernels read every page of main memory where it lies.
    pub fn new() -> Self {
        Self { in_place: true }
    }

    /// Keeps the device tier apart from the RAM tier and copies pages between them, as an accelerator must: to measure
    /// and test that path on any machine.
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
