//! A device for tests of pages that arrive at different times.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use riffle_kv::{CpuDevice, Device, DeviceMemory};

/// Main memory that delays every page by a varying time.
#[derive(Debug)]
pub struct Unhurried(AtomicU64);

impl Unhurried {
    /// Equal seeds give equal delays.
    pub fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }
}

struct UnhurriedMemory(Box<dyn DeviceMemory>, u64);

impl Device for Unhurried {
    fn reads_main_memory(&self) -> bool {
        true
    }

    fn allocate(&self, bytes: usize) -> io::Result<Box<dyn DeviceMemory>> {
        let seed = self.0.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed) | 1;
        Ok(Box::new(UnhurriedMemory(CpuDevice::new().allocate(bytes)?, seed)))
    }
}

impl DeviceMemory for UnhurriedMemory {
    fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }

    fn loaded(&mut self, bytes: Range<usize>) {
        self.1 ^= self.1 << 13;
        self.1 ^= self.1 >> 7;
        self.1 ^= self.1 << 17;
        std::thread::sleep(Duration::from_micros(self.1 % 4 * 60));
        self.0.loaded(bytes);
    }
}
