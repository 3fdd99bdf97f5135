//! Planes in a file of their own, each with a checksum behind it.
//!
//! The file belongs to one sequence in one process: it has no name once it is open (or is removed when it is dropped,
//! where a system cannot do that), so a killed process leaves nothing behind and two processes never meet. It is as
//! long as its last plane in use.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use twox_hash::XxHash3_64;

use crate::KvError;
use crate::slots::SlotMap;

/// Bytes of a plane's checksum.
pub(crate) const HASH_BYTES: usize = 8;

/// Which plane of which page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlaneId {
    pub(crate) what: &'static str,
    pub(crate) layer: usize,
    pub(crate) kv_head: usize,
    pub(crate) page: usize,
}

impl PlaneId {
    /// Ties a plane's checksum to its place, so that a plane that lies in a wrong place is found out. Pages are counted
    /// anew when earlier ones leave, so the page's number is not part of it.
    fn hash(&self, slot: u32, plane: &[u8]) -> [u8; HASH_BYTES] {
        let seed = (self.layer as u64) << 48 ^ (self.kv_head as u64) << 32 ^ u64::from(slot);
        XxHash3_64::oneshot_with_seed(seed, plane).to_le_bytes()
    }
}

/// Bytes that the files of a sequence may take together.
#[derive(Debug)]
pub(crate) struct DiskSpace {
    pub(crate) budget_bytes: Option<u64>,
    used_bytes: AtomicU64,
}

impl DiskSpace {
    pub(crate) fn new(budget_bytes: Option<u64>) -> Self {
        Self {
            budget_bytes,
            used_bytes: AtomicU64::new(0),
        }
    }
}

/// The planes of one kind that lie on disk.
pub(crate) struct PlaneFile {
    file: Arc<DiskFile>,
    slots: SlotMap,
    space: Arc<DiskSpace>,
    staging: Vec<u8>,
}

/// The file itself: what the threads that load share.
pub(crate) struct DiskFile {
    file: File,
    folder: PathBuf,
    plane_bytes: usize,
    /// Where the file has to be removed by name.
    path: Option<PathBuf>,
}

impl PlaneFile {
    pub(crate) fn create(folder: &Path, plane_bytes: usize, space: Arc<DiskSpace>) -> Result<Self, KvError> {
        Ok(Self {
            file: Arc::new(DiskFile::create(folder, plane_bytes)?),
            slots: SlotMap::default(),
            space,
            staging: Vec::new(),
        })
    }

    pub(crate) fn file(&self) -> &Arc<DiskFile> {
        &self.file
    }

    /// Writes a plane and says where.
    pub(crate) fn write(&mut self, id: PlaneId, plane: &[u8]) -> Result<u32, KvError> {
        let slot = self.slots.lowest_free();
        let stride = self.file.stride() as u64;
        let grown = (slot as u64 + 1) * stride;
        let before = self.file_bytes();
        if grown > before {
            let used = self.space.used_bytes.load(Ordering::Relaxed) - before + grown;
            if let Some(budget_bytes) = self.space.budget_bytes.filter(|budget| used > *budget) {
                return Err(KvError::DiskBudget { budget_bytes });
            }
        }
        let number = u32::try_from(slot).map_err(|_| self.file.failed("write", io::ErrorKind::FileTooLarge.into()))?;
        self.rewrite(number, id, plane)?;
        self.slots.take(slot);
        self.count(before);
        Ok(number)
    }

    /// Writes a plane in place of the one in this slot.
    pub(crate) fn rewrite(&mut self, slot: u32, id: PlaneId, plane: &[u8]) -> Result<(), KvError> {
        self.staging.clear();
        self.staging.extend_from_slice(plane);
        self.staging.extend_from_slice(&id.hash(slot, plane));
        let written = write_all_at(
            &self.file.file,
            &self.staging,
            u64::from(slot) * self.file.stride() as u64,
        );
        written.map_err(|source| self.file.failed("write", source))
    }

    /// Forgets planes; the file ends behind the last one in use.
    pub(crate) fn free(&mut self, slots: impl IntoIterator<Item = u32>) {
        let before = self.file_bytes();
        for slot in slots {
            self.slots.free(slot as usize);
        }
        if self.file_bytes() < before {
            // A file that stays longer costs room on the disk and nothing else.
            self.file.file.set_len(self.file_bytes()).ok();
            self.count(before);
        }
    }

    /// Length of the file.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.slots.end() as u64 * self.file.stride() as u64
    }

    pub(crate) fn bookkeeping_bytes(&self) -> usize {
        self.slots.bookkeeping_bytes() + self.slots.used() * HASH_BYTES
    }

    fn count(&self, before: u64) {
        self.space.used_bytes.fetch_sub(before, Ordering::Relaxed);
        self.space.used_bytes.fetch_add(self.file_bytes(), Ordering::Relaxed);
    }
}

impl DiskFile {
    fn create(folder: &Path, plane_bytes: usize) -> Result<Self, KvError> {
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
            });
        }
    }

    /// Bytes from one plane to the next: the plane and its checksum.
    pub(crate) fn stride(&self) -> usize {
        self.plane_bytes + HASH_BYTES
    }

    /// Reads a plane and its checksum into `target`, `[stride]`, and checks it.
    pub(crate) fn read(&self, slot: u32, id: PlaneId, target: &mut [u8]) -> Result<(), KvError> {
        let target = &mut target[..self.stride()];
        let damaged = || KvError::DamagedPage {
            what: id.what,
            page: id.page,
            layer: id.layer,
            kv_head: id.kv_head,
            folder: self.folder.clone(),
        };
        let read = read_exact_at(&self.file, target, u64::from(slot) * self.stride() as u64);
        read.map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => damaged(),
            _ => self.failed("read", source),
        })?;
        let (plane, hash) = target.split_at(self.plane_bytes);
        if id.hash(slot, plane) != hash {
            return Err(damaged());
        }
        Ok(())
    }

    fn failed(&self, action: &'static str, source: io::Error) -> KvError {
        KvError::Disk {
            action,
            folder: self.folder.clone(),
            source,
        }
    }
}

impl Drop for DiskFile {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            std::fs::remove_file(path).ok();
        }
    }
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
        PlaneFile::create(folder, 100, Arc::new(DiskSpace::new(budget_bytes))).unwrap()
    }

    #[test]
    fn a_plane_reads_back_and_any_other_bytes_are_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = file(folder.path(), None);
        let plane: Vec<u8> = (0..100).collect();
        let first = file.write(id(0), &plane).unwrap();
        let second = file.write(id(7), &plane).unwrap();
        let mut target = vec![0; 108];
        file.file().read(second, id(7), &mut target).unwrap();
        assert_eq!(target[..100], plane);
        for at in 0..108 {
            let place = u64::from(second) * 108 + at;
            let mut byte = [0];
            read_exact_at(&file.file().file, &mut byte, place).unwrap();
            write_all_at(&file.file().file, &[byte[0] ^ 4], place).unwrap();
            let error = file.file().read(second, id(7), &mut target).unwrap_err().to_string();
            assert!(error.contains("keys of page 7 of layer 2, KV head 1"), "{error}");
            write_all_at(&file.file().file, &byte, place).unwrap();
        }
        // Whole, but written for another place.
        let moved = {
            let mut bytes = vec![0; 108];
            read_exact_at(&file.file().file, &mut bytes, u64::from(second) * 108).unwrap();
            write_all_at(&file.file().file, &bytes, u64::from(first) * 108).unwrap();
            file.file().read(first, id(7), &mut target)
        };
        assert!(matches!(moved, Err(KvError::DamagedPage { .. })));
        file.file().file.set_len(150).unwrap();
        assert!(matches!(
            file.file().read(second, id(7), &mut target),
            Err(KvError::DamagedPage { .. })
        ));
    }

    #[test]
    fn the_file_follows_its_planes_within_the_budget_of_both_files() {
        let folder = tempfile::tempdir().unwrap();
        let space = Arc::new(DiskSpace::new(Some(5 * 108)));
        let mut keys = PlaneFile::create(folder.path(), 100, Arc::clone(&space)).unwrap();
        let mut values = PlaneFile::create(folder.path(), 100, space).unwrap();
        for page in 0..3 {
            keys.write(id(page), &[0; 100]).unwrap();
        }
        values.write(id(0), &[0; 100]).unwrap();
        values.write(id(1), &[0; 100]).unwrap();
        let full = values.write(id(2), &[0; 100]);
        assert!(matches!(full, Err(KvError::DiskBudget { budget_bytes: 540 })));
        keys.free([0, 2]);
        assert_eq!(keys.file().file.metadata().unwrap().len(), 2 * 108);
        assert_eq!(keys.write(id(9), &[0; 100]).unwrap(), 0);
        values.write(id(2), &[0; 100]).unwrap();
        assert!(values.write(id(3), &[0; 100]).is_err());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_an_error_and_takes_no_slot() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = file(folder.path(), None);
        file.file = Arc::new(DiskFile {
            file: OpenOptions::new().write(true).open("/dev/full").unwrap(),
            folder: folder.path().to_owned(),
            plane_bytes: 100,
            path: None,
        });
        let error = file.write(id(0), &[0; 100]).unwrap_err().to_string();
        assert!(error.contains("cannot write KV pages in"), "{error}");
        assert_eq!(file.file_bytes(), 0);
    }

    #[cfg(unix)]
    #[test]
    fn nothing_is_left_in_the_folder_even_while_the_file_is_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = [file(folder.path(), None), file(folder.path(), None)];
        for (number, file) in files.iter_mut().enumerate() {
            file.write(id(number), &[number as u8; 100]).unwrap();
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let mut target = vec![0; 108];
        files[0].file().read(0, id(0), &mut target).unwrap();
        assert_eq!(target[0], 0);
        let missing = PlaneFile::create(&folder.path().join("none"), 100, Arc::new(DiskSpace::new(None)));
        assert!(matches!(missing, Err(KvError::Disk { .. })));
    }
}
