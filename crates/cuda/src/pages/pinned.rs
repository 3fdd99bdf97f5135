//! Pinned main memory of a cache, which a device reads directly.

use std::fmt;
use std::io;

use riffle_kv::{Device, DeviceMemory};

use crate::driver::GuardedBuffer;
use crate::{CudaError, Gpu};

/// Pinned main memory for the tiers of a cache with a [`DeviceRoom`](crate::DeviceRoom). Before the cache writes to
/// pages or frees them, it waits for copies that [read ahead](crate::DeviceRoom::read_ahead).
#[derive(Clone)]
pub struct PinnedMemory {
    gpu: Gpu,
}

impl PinnedMemory {
    /// Memory for copies by `gpu`.
    pub fn new(gpu: &Gpu) -> Self {
        Self { gpu: gpu.clone() }
    }
}

impl fmt::Debug for PinnedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PinnedMemory")
    }
}

impl Device for PinnedMemory {
    fn reads_main_memory(&self) -> bool {
        true
    }

    fn allocate(&self, bytes: usize) -> io::Result<Box<dyn DeviceMemory>> {
        let memory = GuardedBuffer::new(&self.gpu, bytes).map_err(io_error)?;
        Ok(Box::new(Pinned(memory)))
    }
}

fn io_error(error: CudaError) -> io::Error {
    let kind = match error {
        CudaError::OutOfMemory { .. } => io::ErrorKind::OutOfMemory,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

struct Pinned(GuardedBuffer);

impl DeviceMemory for Pinned {
    fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }
}
