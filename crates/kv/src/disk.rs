//! Planes in a file of their own; their checksums stay in memory.
//!
//! The file belongs to sequences of one process: it has no name once it is open (or is removed when it is dropped,
//! where a system cannot do that), so a killed process leaves nothing behind and two processes never meet. It is as
//! long as its last plane in use.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use twox_hash::XxHash3_64;

use crate::KvError;
use crate::ledger::Ledger;
use crate::slots::SlotMap;

/// Which plane of which page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlaneId {
    pub(crate) what: &'static str,
    pub(crate) layer: usize,
    pub(crate) kv_head: usize,
    pub(crate) page: usize,
}

/// The planes of one kind that lie on disk.
#[derive(Debug)]
pub(crate) struct PlaneFile {
    file: File,
    folder: PathBuf,
    plane_bytes: usize,
    /// Where the file has to be removed by name.
    path: Option<PathBuf>,
    space: Arc<Ledger>,
    used: Mutex<Used>,
}

/// Which slots of the file are in use, and what their planes hash to: a plane that lies in a wrong place, or is an older
/// one of the same place, is found out as well.
#[derive(Debug, Default)]
struct Used {
    slots: SlotMap,
    /// By slot.
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
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true);
            let file = match options.open(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                file => file.map_err(failed)?,
            };
            let unnamed = cfg!(unix) && std::fs::remove_file(&path).is_ok();
            return Ok(Self {
                file,
                folder: folder.to_owned(),
                plane_bytes,
                path: (!unnamed).then_some(path),
                space,
                used: Mutex::default(),
            });
        }
    }

    /// Writes a plane and says where.
    pub(crate) fn write(&self, plane: &[u8]) -> Result<u32, KvError> {
        let mut used = self.used();
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

    /// Writes a plane in place of the one in this slot.
    pub(crate) fn rewrite(&self, slot: u32, plane: &[u8]) -> Result<(), KvError> {
        let written = write_all_at(&self.file, plane, self.place(slot));
        written.map_err(|source| self.failed("write", source))?;
        self.used().sums[slot as usize] = sum(plane);
        Ok(())
    }

    /// Reads a plane into `target`, `[plane_bytes]`, and checks it.
    pub(crate) fn read(&self, slot: u32, id: PlaneId, target: &mut [u8]) -> Result<(), KvError> {
        let target = &mut target[..self.plane_bytes];
        let damaged = || KvError::DamagedPage {
            what: id.what,
            page: id.page,
            layer: id.layer,
            kv_head: id.kv_head,
            folder: self.folder.clone(),
        };
        let read = read_exact_at(&self.file, target, self.place(slot));
        read.map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => damaged(),
            _ => self.failed("read", source),
        })?;
        let expected = self.used().sums[slot as usize];
        if sum(target) != expected {
            return Err(damaged());
        }
        Ok(())
    }

    /// Forgets planes; the file ends behind the last one in use.
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
            // A file that stays longer costs room on the disk and nothing else.
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
        if let Some(path) = &self.path {
            std::fs::remove_file(path).ok();
        }
    }
}

fn sum(plane: &[u8]) -> u64 {
    XxHash3_64::oneshot(plane)
}

#[cfg(unix)]
fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

#[cfg(unix)]
fn read_exact_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

#[cfg(windows)]
fn write_all_at(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    use std::os::windows::fs::FileExt;
    while !bytes.is_empty() {
        let written = file.seek_write(bytes, offset)?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[written..];
        offset += written as u64;
    }
    Ok(())
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
    use std::os::windows::fs::FileExt;
    while !bytes.is_empty() {
        let read = file.seek_read(bytes, offset)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes = &mut bytes[read..];
        offset += read as u64;
    }
    Ok(())
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
        // Whole, but of another place; then an older plane of the same place.
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
        file.file = OpenOptions::new().write(true).open("/dev/full").unwrap();
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
