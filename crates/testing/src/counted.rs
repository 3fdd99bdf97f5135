//! A device for tests that counts the copied planes.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use riffle_kv::{CpuDevice, Device, DeviceMemory};

/// Main memory that counts the planes copied into it from slower tiers.
#[derive(Debug)]
pub struct Counted {
    memory: CpuDevice,
    loads: Arc<Loads>,
}

#[derive(Debug, Default)]
struct Loads {
    planes: AtomicU64,
    bytes: AtomicU64,
}

struct CountedMemory(Box<dyn DeviceMemory>, Arc<Loads>);

impl Counted {
    /// A counter around another device.
    pub fn over(memory: CpuDevice) -> Arc<Self> {
        Arc::new(Self {
            memory,
            loads: Arc::default(),
        })
    }

    /// Planes loaded so far.
    pub fn planes(&self) -> u64 {
        self.loads.planes.load(Ordering::Relaxed)
    }

    /// Bytes of these planes.
    pub fn bytes(&self) -> u64 {
        self.loads.bytes.load(Ordering::Relaxed)
    }
}

impl Device for Counted {
    fn reads_main_memory(&self) -> bool {
        self.memory.reads_main_memory()
    }

    fn allocate(&self, bytes: usize) -> io::Result<Box<dyn DeviceMemory>> {
        Ok(Box::new(CountedMemory(
            self.memory.allocate(bytes)?,
            Arc::clone(&self.loads),
        )))
    }
}

impl DeviceMemory for CountedMemory {
    fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }

    fn loaded(&mut self, bytes: Range<usize>) {
        self.1.planes.fetch_add(1, Ordering::Relaxed);
        self.1.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.0.loaded(bytes);
    }

    fn release(&mut self, bytes: Range<usize>) {
        self.0.release(bytes);
    }
}
