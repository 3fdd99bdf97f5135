//! Main memory and files that fail on request.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use riffle_kv::{CpuDevice, Device, DeviceMemory};

/// Main memory that fails after a number of further allocations.
#[derive(Debug)]
pub(super) struct Refusing {
    pub(super) left: AtomicU32,
}

pub(super) const NEVER: u32 = u32::MAX;

impl Device for Refusing {
    fn reads_main_memory(&self) -> bool {
        true
    }

    fn allocate(&self, bytes: usize) -> io::Result<Box<dyn DeviceMemory>> {
        let count = |left: u32| match left {
            NEVER | 0 => None,
            left => Some(left - 1),
        };
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count) {
            Err(0) => Err(io::ErrorKind::OutOfMemory.into()),
            _ => CpuDevice::new().allocate(bytes),
        }
    }
}

/// Changed bytes on disk, so that reading them fails.
pub(super) struct Damage<'f> {
    file: &'f File,
    at: u64,
    before: [u8; 32],
}

impl<'f> Damage<'f> {
    pub(super) fn new(file: &'f File, at: u64) -> Option<Self> {
        let mut before = [0; 32];
        file.read_exact_at(&mut before, at).ok()?;
        file.write_all_at(&before.map(|byte| !byte), at).unwrap();
        Some(Self { file, at, before })
    }

    /// Restores the bytes that were not overwritten in the meantime.
    pub(super) fn mend(&self) {
        let mut now = [0; 32];
        let read = self.file.read_exact_at(&mut now, self.at);
        if read.is_ok() && now == self.before.map(|byte| !byte) {
            self.file.write_all_at(&self.before, self.at).unwrap();
        }
    }
}

/// The unnamed files of a folder that this process has open.
pub(super) fn open_files(folder: &Path) -> Vec<File> {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    // Lists all paths before opening any, because an open file appears in the list again.
    let paths = open.filter_map(|entry| Some(entry.ok()?.path()));
    let is_ours = |path: &Path| {
        let target = std::fs::read_link(path).ok();
        target.is_some_and(|target| target.starts_with(folder))
    };
    let paths: Vec<_> = paths.filter(|path| is_ours(path)).collect();
    let open = paths
        .iter()
        .map(|path| OpenOptions::new().read(true).write(true).open(path));
    open.map(Result::unwrap).collect()
}
