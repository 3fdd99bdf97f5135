//! The files of keys or of values: one per layer, so that a layer is read sequentially.

use std::path::Path;
use std::sync::Arc;

use super::PlaneFile;
use crate::KvError;
use crate::ledger::Ledger;

/// The most files; deeper models store several layers per file.
const MOST_FILES: usize = 32;

/// Bits of a plane's number that hold the slot within its file.
const SLOT_BITS: u32 = 27;

/// The files on disk with the planes of some layers.
#[derive(Debug, Clone)]
pub(crate) struct PlaneFiles {
    files: Arc<[Arc<PlaneFile>]>,
}

impl PlaneFiles {
    pub(crate) fn create(
        folder: &Path,
        layers: usize,
        plane_bytes: usize,
        space: &Arc<Ledger>,
    ) -> Result<Self, KvError> {
        let create = |_| Ok(Arc::new(PlaneFile::create(folder, plane_bytes, Arc::clone(space))?));
        let files: Result<Vec<_>, KvError> = (0..layers.clamp(1, MOST_FILES)).map(create).collect();
        Ok(Self { files: files?.into() })
    }

    /// Writes a plane of a layer and returns its number. If the budget does not let the layer's file grow, the plane
    /// goes to another file with a free slot.
    pub(crate) fn write(&self, layer: usize, plane: &[u8]) -> Result<u32, KvError> {
        let number = layer % self.files.len();
        let full = match self.files[number].write(plane) {
            Ok(slot) => return self.place(number, slot),
            Err(full @ KvError::DiskBudget { .. }) => full,
            Err(error) => return Err(error),
        };
        for (number, file) in self.files.iter().enumerate() {
            if let Some(slot) = file.write_within(plane)? {
                return self.place(number, slot);
            }
        }
        Err(full)
    }

    /// The file and the slot of a plane's number.
    pub(crate) fn at(&self, place: u32) -> (&Arc<PlaneFile>, u32) {
        (
            &self.files[(place >> SLOT_BITS) as usize],
            place & ((1 << SLOT_BITS) - 1),
        )
    }

    /// Forgets planes.
    pub(crate) fn free(&self, places: impl IntoIterator<Item = u32>) {
        let mut places: Vec<u32> = places.into_iter().collect();
        places.sort_unstable();
        for of_file in places.chunk_by(|a, b| a >> SLOT_BITS == b >> SLOT_BITS) {
            let (file, _) = self.at(of_file[0]);
            file.free(of_file.iter().map(|place| self.at(*place).1));
        }
    }

    pub(crate) fn bookkeeping_bytes(&self) -> usize {
        self.files.iter().map(|file| file.bookkeeping_bytes()).sum()
    }

    pub(crate) fn forget_cached(&self) -> Result<(), KvError> {
        self.files.iter().try_for_each(|file| file.forget_cached())
    }

    fn place(&self, file: usize, slot: u32) -> Result<u32, KvError> {
        if slot >> SLOT_BITS == 0 {
            return Ok((file as u32) << SLOT_BITS | slot);
        }
        self.files[file].free([slot]);
        Err(self.files[file].failed("write", std::io::ErrorKind::FileTooLarge.into()))
    }
}

#[cfg(all(test, target_os = "linux"))]
impl PlaneFiles {
    /// Files on a full disk.
    pub(crate) fn on_full_disk(folder: &Path, plane_bytes: usize) -> Result<Self, KvError> {
        let mut file = PlaneFile::create(folder, plane_bytes, Ledger::new(None))?;
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
        file.file = full.expect("there is such a device");
        Ok(Self {
            files: [Arc::new(file)].into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::PlaneId;

    #[test]
    fn layers_lie_apart_until_the_budget_is_used_up_and_no_hole_is_wasted() {
        let folder = tempfile::tempdir().unwrap();
        let space = Ledger::new(Some(600));
        let files = PlaneFiles::create(folder.path(), 3, 100, &space).unwrap();
        let places: Vec<u32> = (0..6).map(|n| files.write(n % 3, &[n as u8; 100]).unwrap()).collect();
        for n in 0..3 {
            assert_eq!(places[n] >> SLOT_BITS, n as u32);
            assert_eq!(places[n] + 1, places[n + 3], "one after another in the layer's file");
        }
        assert!(matches!(files.write(0, &[9; 100]), Err(KvError::DiskBudget { .. })));
        // The first plane of layer 1 leaves a free slot, which layer 2 takes.
        files.free([places[1]]);
        let place = files.write(2, &[9; 100]).unwrap();
        assert_eq!(place, places[1]);
        let (file, slot) = files.at(place);
        let mut plane = [0; 100];
        let id = PlaneId {
            what: "keys",
            layer: 2,
            kv_head: 0,
            page: 0,
        };
        file.read(slot, id, &mut plane).unwrap();
        assert_eq!((plane, space.used_bytes()), ([9; 100], 600));
        files.free(places);
        assert_eq!(space.used_bytes(), 0);
    }
}
