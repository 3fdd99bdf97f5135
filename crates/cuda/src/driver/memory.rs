use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use super::Gpu;
use crate::CudaError;

/// Memory on a device, freed when dropped (after everything queued has run).
pub struct DeviceBuffer {
    gpu: Gpu,
    address: u64,
    bytes: usize,
}

impl DeviceBuffer {
    pub(super) fn new(gpu: Gpu, bytes: usize) -> Result<Self, CudaError> {
        let address = gpu.driver().allocate(bytes.max(1))?;
        Ok(Self { gpu, address, bytes })
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The whole buffer.
    pub fn all(&self) -> Region<'_> {
        self.region(0..self.bytes)
    }

    /// A part of the buffer.
    ///
    /// # Panics
    /// If the range is outside the buffer.
    pub fn region(&self, bytes: Range<usize>) -> Region<'_> {
        self.all_region().part(bytes)
    }

    /// The device of this memory.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    fn all_region(&self) -> Region<'_> {
        Region {
            address: self.address,
            bytes: self.bytes,
            buffer: PhantomData,
        }
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // SAFETY: the address comes from `allocate` and is freed here alone.
        unsafe { self.gpu.driver().free(self.address) }
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuffer")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// Part of a [`DeviceBuffer`]. It is shared like a cell: kernels may write to it.
#[derive(Debug, Clone, Copy)]
pub struct Region<'a> {
    address: u64,
    bytes: usize,
    buffer: PhantomData<&'a DeviceBuffer>,
}

impl<'a> Region<'a> {
    /// Bytes in the region.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Device address of the region.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// A part of the region.
    ///
    /// # Panics
    /// If the range is outside the region.
    pub fn part(&self, bytes: Range<usize>) -> Region<'a> {
        assert!(
            bytes.start <= bytes.end && bytes.end <= self.bytes,
            "{bytes:?} of {} bytes",
            self.bytes
        );
        Region {
            address: self.address + bytes.start as u64,
            bytes: bytes.end - bytes.start,
            buffer: PhantomData,
        }
    }
}

/// Pinned main memory: copies to and from the device access it without the CPU.
///
/// A caller that writes to it, or reads bytes copied into it, first waits for the queued copies.
pub struct PinnedBuffer {
    gpu: Gpu,
    pointer: *mut u8,
    bytes: usize,
}

// SAFETY: the memory belongs to the buffer alone, and the driver's calls may come from any thread.
unsafe impl Send for PinnedBuffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    pub(super) fn new(gpu: Gpu, bytes: usize) -> Result<Self, CudaError> {
        let pointer = gpu.driver().allocate_host(bytes.max(1))?;
        // SAFETY: `allocate_host` gave that many bytes.
        unsafe { pointer.write_bytes(0, bytes.max(1)) };
        Ok(Self { gpu, pointer, bytes })
    }

    /// Bytes of the buffer.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is initialised and lives as long as the buffer.
        unsafe { std::slice::from_raw_parts(self.pointer, self.bytes) }
    }

    /// Bytes of the buffer, writable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as `bytes`, and the buffer is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.bytes) }
    }

    pub(super) fn address(&self) -> u64 {
        self.pointer as u64
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        // SAFETY: the pointer comes from `allocate_host` with these bytes and is freed here alone.
        unsafe { self.gpu.driver().free_host(self.pointer, self.bytes.max(1)) }
    }
}

impl fmt::Debug for PinnedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedBuffer")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
