//! A file of planes; their checksums stay in memory.
//!
//! The file belongs to one process and disappears with it: a killed process leaves no file, and processes never share
//! files. The file ends after its last plane in use.
//!
//! One request reads adjacent planes. While reads wait for the disk, the system is told about later, non-adjacent
//! reads. The disk then processes several requests at a time.

mod files;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use riffle_system::files::{
    Found, RemovedOnDrop, create_unnamed, expect_read, forget_cached, read_run_at, write_all_at,
};
use twox_hash::XxHash3_64;

use crate::KvError;
use crate::ledger::Ledger;
use crate::slots::SlotMap;
pub(crate) use files::PlaneFiles;

/// After a read that waited for the disk, this many further requests announce the reads that follow them.
const COLD_REQUESTS: u32 = 64;

/// Identifies a plane of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlaneId {
    pub(crate) what: &'static str,
    pub(crate) layer: usize,
    pub(crate) kv_head: usize,
    pub(crate) page: usize,
}

/// A plane to read to the start of `target`.
pub(crate) struct PlaneRead<'t> {
    pub(crate) slot: u32,
    pub(crate) id: PlaneId,
    pub(crate) target: &'t mut [u8],
}

/// The planes of one kind on disk.
#[derive(Debug)]
pub(crate) struct PlaneFile {
    file: File,
    folder: PathBuf,
    plane_bytes: usize,
    /// Removes the file's name on drop, if it still has one.
    _name: Option<RemovedOnDrop>,
    space: Arc<Ledger>,
    used: Mutex<Used>,
    /// Number of requests that still announce later reads.
    cold: AtomicU32,
    /// First slot after the planes that were announced last.
    expected_end: AtomicU32,
}

/// The used slots of the file, and the hashes of their planes. The hash also detects a plane in a wrong slot and an
/// older plane of the same slot.
#[derive(Debug, Default)]
struct Used {
    slots: SlotMap,
    /// Checksums by slot.
    sums: Vec<u64>,
}

impl PlaneFile {
    pub(crate) fn create(folder: &Path, plane_bytes: usize, space: Arc<Ledger>) -> Result<Self, KvError> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let failed = |source| KvError::Disk {
            action: "create a file for",
            folder: folder.to_owned(),
            source,
        };
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = folder.join(format!(".riffle-kv.{}-{number}.pages", process::id()));
            let made = match create_unnamed(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                made => made.map_err(failed)?,
            };
            return Ok(Self {
                file: made.file,
                _name: made.name,
                folder: folder.to_owned(),
                plane_bytes,
                space,
                used: Mutex::default(),
                cold: AtomicU32::new(0),
                expected_end: AtomicU32::new(0),
            });
        }
    }

    /// Writes a plane and returns its slot.
    pub(crate) fn write(&self, plane: &[u8]) -> Result<u32, KvError> {
        let mut used = self.used();
        self.write_to_lowest(&mut used, plane)
    }

    /// Writes a plane to a free slot if the file need not grow.
    pub(crate) fn write_within(&self, plane: &[u8]) -> Result<Option<u32>, KvError> {
        let mut used = self.used();
        if used.slots.lowest_free() >= used.slots.end() {
            return Ok(None);
        }
        self.write_to_lowest(&mut used, plane).map(Some)
    }

    fn write_to_lowest(&self, used: &mut Used, plane: &[u8]) -> Result<u32, KvError> {
        let slot = used.slots.lowest_free();
        let number = u32::try_from(slot).map_err(|_| self.failed("write", io::ErrorKind::FileTooLarge.into()))?;
        let grown = (slot + 1).saturating_sub(used.slots.end()) as u64 * self.plane_bytes as u64;
        if !self.space.take(grown) {
            let budget_bytes = self.space.budget_bytes();
            return Err(KvError::DiskBudget { budget_bytes });
        }
        if let Err(source) = write_all_at(&self.file, plane, self.place(number)) {
            self.space.give(grown);
            return Err(self.failed("write", source));
        }
        used.slots.take(slot);
        if slot >= used.sums.len() {
            used.sums.resize(slot + 1, 0);
        }
        used.sums[slot] = sum(plane);
        Ok(number)
    }

    /// Overwrites the plane in this slot.
    pub(crate) fn rewrite(&self, slot: u32, plane: &[u8]) -> Result<(), KvError> {
        let written = write_all_at(&self.file, plane, self.place(slot));
        written.map_err(|source| self.failed("write", source))?;
        self.used().sums[slot as usize] = sum(plane);
        Ok(())
    }

    /// Reads a plane to the start of `target` and checks it.
    pub(crate) fn read(&self, slot: u32, id: PlaneId, target: &mut [u8]) -> Result<(), KvError> {
        self.read_run(&mut [PlaneRead { slot, id, target }])
    }

    /// Reads planes of consecutive slots with one request, and checks each.
    pub(crate) fn read_run(&self, planes: &mut [PlaneRead<'_>]) -> Result<(), KvError> {
        let Some(first) = planes.first() else { return Ok(()) };
        let (place, id) = (self.place(first.slot), first.id);
        let targets = planes.iter_mut().map(|plane| &mut plane.target[..self.plane_bytes]);
        let read = read_run_at(&self.file, targets.collect(), place);
        let found = read.map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => self.damaged(id),
            _ => self.failed("read", source),
        })?;
        match found {
            Found::OnDisk => self.cold.store(COLD_REQUESTS, Ordering::Relaxed),
            Found::Cached => {
                let cold = self.cold.load(Ordering::Relaxed);
                self.cold.store(cold.saturating_sub(1), Ordering::Relaxed);
            }
        }
        let first = planes[0].slot as usize;
        let sums = self.used().sums[first..first + planes.len()].to_vec();
        for (plane, expected) in planes.iter().zip(sums) {
            if sum(&plane.target[..self.plane_bytes]) != expected {
                return Err(self.damaged(plane.id));
            }
        }
        Ok(())
    }

    /// Announces that `planes` planes from a slot on will be read soon.
    pub(crate) fn expect(&self, slot: u32, planes: usize) {
        let end = slot.saturating_add(planes as u32);
        // The system already reads ahead for consecutive reads.
        let follows = self.expected_end.swap(end, Ordering::Relaxed) == slot;
        if !follows && self.cold.load(Ordering::Relaxed) > 0 {
            expect_read(&self.file, self.place(slot), (planes * self.plane_bytes) as u64);
        }
    }

    /// Writes the file to the disk and drops it from the system's cache.
    pub(crate) fn forget_cached(&self) -> Result<(), KvError> {
        let forgotten = forget_cached(&self.file);
        forgotten.map_err(|source| self.failed("write out", source))
    }

    /// Frees planes; the file then ends after the last plane in use.
    pub(crate) fn free(&self, slots: impl IntoIterator<Item = u32>) {
        let mut used = self.used();
        let before = used.slots.end();
        for slot in slots {
            used.slots.free(slot as usize);
        }
        let end = used.slots.end();
        if end < before {
            used.sums.truncate(end);
            used.sums.shrink_to(2 * end);
            // A file that stays longer only costs disk space.
            self.file.set_len((end * self.plane_bytes) as u64).ok();
            self.space.give(((before - end) * self.plane_bytes) as u64);
        }
    }

    /// Length of the file.
    pub(crate) fn file_bytes(&self) -> u64 {
        (self.used().slots.end() * self.plane_bytes) as u64
    }

    pub(crate) fn bookkeeping_bytes(&self) -> usize {
        let used = self.used();
        used.slots.bookkeeping_bytes() + used.sums.capacity() * size_of::<u64>()
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().expect("no thread panics while it holds the slots")
    }

    fn place(&self, slot: u32) -> u64 {
        u64::from(slot) * self.plane_bytes as u64
    }

    fn damaged(&self, id: PlaneId) -> KvError {
        KvError::DamagedPage {
            what: id.what,
            page: id.page,
            layer: id.layer,
            kv_head: id.kv_head,
            folder: self.folder.clone(),
        }
    }

    fn failed(&self, action: &'static str, source: io::Error) -> KvError {
        KvError::Disk {
            action,
            folder: self.folder.clone(),
            source,
        }
    }
}

impl Drop for PlaneFile {
    fn drop(&mut self) {
        self.space.give(self.file_bytes());
    }
}

fn sum(plane: &[u8]) -> u64 {
    XxHash3_64::oneshot(plane)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(page: usize) -> PlaneId {
        PlaneId {
            what: "keys",
            layer: 2,
            kv_head: 1,
            page,
        }
    }

    fn file(folder: &Path, budget_bytes: Option<u64>) -> PlaneFile {
        PlaneFile::create(folder, 100, Ledger::new(budget_bytes)).unwrap()
    }

    #[test]
    fn a_plane_reads_back_and_any_other_bytes_are_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(folder.path(), None);
        let plane: Vec<u8> = (0..100).collect();
        let first = file.write(&[7; 100]).unwrap();
        let second = file.write(&plane).unwrap();
        let mut target = vec![0; 100];
        file.read(second, id(7), &mut target).unwrap();
        assert_eq!(target, plane);
        for at in 0..100 {
            let place = u64::from(second) * 100 + at;
            write_all_at(&file.file, &[plane[at as usize] ^ 4], place).unwrap();
            let error = file.read(second, id(7), &mut target).unwrap_err().to_string();
            assert!(error.contains("keys of page 7 of layer 2, KV head 1"), "{error}");
            write_all_at(&file.file, &[plane[at as usize]], place).unwrap();
        }
        // An intact plane of another slot; then an older plane of the same slot.
        write_all_at(&file.file, &plane, 0).unwrap();
        assert!(matches!(
            file.read(first, id(0), &mut target),
            Err(KvError::DamagedPage { .. })
        ));
        file.rewrite(second, &[9; 100]).unwrap();
        file.read(second, id(7), &mut target).unwrap();
        write_all_at(&file.file, &plane, 100).unwrap();
        assert!(file.read(second, id(7), &mut target).is_err());
        file.file.set_len(150).unwrap();
        assert!(matches!(
            file.read(second, id(7), &mut target),
            Err(KvError::DamagedPage { .. })
        ));
    }

    #[test]
    fn the_file_follows_its_planes_within_the_budget_of_both_files() {
        let folder = tempfile::tempdir().unwrap();
        let space = Ledger::new(Some(500));
        let keys = PlaneFile::create(folder.path(), 100, Arc::clone(&space)).unwrap();
        let values = PlaneFile::create(folder.path(), 100, Arc::clone(&space)).unwrap();
        for _ in 0..3 {
            keys.write(&[0; 100]).unwrap();
        }
        values.write(&[0; 100]).unwrap();
        values.write(&[0; 100]).unwrap();
        let full = values.write(&[0; 100]);
        assert!(matches!(full, Err(KvError::DiskBudget { budget_bytes: 500 })));
        keys.free([0, 2]);
        assert_eq!(keys.file.metadata().unwrap().len(), 200);
        assert_eq!(keys.write(&[0; 100]).unwrap(), 0);
        values.write(&[0; 100]).unwrap();
        assert!(values.write(&[0; 100]).is_err());
        drop((keys, values));
        assert_eq!(space.used_bytes(), 0);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_an_error_and_takes_no_slot() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = file(folder.path(), None);
        file.file = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let error = file.write(&[0; 100]).unwrap_err().to_string();
        assert!(error.contains("cannot write KV pages in"), "{error}");
        assert_eq!((file.file_bytes(), file.space.used_bytes()), (0, 0));
    }

    #[cfg(unix)]
    #[test]
    fn nothing_is_left_in_the_folder_even_while_the_file_is_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let files = [file(folder.path(), None), file(folder.path(), None)];
        for (number, file) in files.iter().enumerate() {
            file.write(&[number as u8; 100]).unwrap();
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let mut target = vec![9; 100];
        files[0].read(0, id(0), &mut target).unwrap();
        assert_eq!(target[0], 0);
        let missing = PlaneFile::create(&folder.path().join("none"), 100, Ledger::new(None));
        assert!(matches!(missing, Err(KvError::Disk { .. })));
    }
}
