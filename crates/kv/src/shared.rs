//! Planes that several sequences hold, unchanging for as long as any of them does.

use std::sync::{Arc, RwLock};

use crate::DeviceMemory;
use crate::arena::{Arena, Slot};
use crate::disk::PlaneFiles;
use crate::ledger::Taken;

/// Keys or values of one page of tokens in every (layer, KV head) that has them. Their room in every tier goes back when
/// the last sequence has let go of them.
pub(crate) struct SharedPlanes {
    /// `[layers, kv_heads]`
    pub(crate) places: Vec<SharedPlace>,
    pub(crate) plane_bytes: usize,
    /// The planes that lie near, one after the other.
    pub(crate) near: Option<NearPlanes>,
    pub(crate) ram: Option<Arc<RwLock<Arena>>>,
    pub(crate) files: Option<PlaneFiles>,
}

pub(crate) struct NearPlanes {
    pub(crate) memory: Box<dyn DeviceMemory>,
    pub(crate) _taken: Taken,
}

/// Where a shared plane lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SharedPlace {
    /// The (layer, KV head) has no such page.
    Nowhere,
    /// Its number among those that lie near.
    Near(u32),
    Ram(Slot),
    Disk(u32),
}

impl SharedPlanes {
    /// The bytes of the plane with this number among those that lie near.
    pub(crate) fn near_bytes(&self, number: u32) -> &[u8] {
        let near = self.near.as_ref().expect("planes that lie near have memory");
        &near.memory.bytes()[number as usize * self.plane_bytes..][..self.plane_bytes]
    }

    /// Bytes of memory in the nearest tier.
    pub(crate) fn mapped_bytes(&self) -> usize {
        self.near.as_ref().map_or(0, |near| near.memory.bytes().len())
    }

    pub(crate) fn bookkeeping_bytes(&self) -> usize {
        size_of::<Self>() + self.places.capacity() * size_of::<SharedPlace>()
    }
}

impl Drop for SharedPlanes {
    fn drop(&mut self) {
        let on_disk = self.places.iter().filter_map(|place| match place {
            SharedPlace::Disk(slot) => Some(*slot),
            _ => None,
        });
        if let Some(files) = &self.files {
            files.free(on_disk);
        }
        if let Some(ram) = &self.ram {
            let in_ram = self.places.iter().filter_map(|place| match place {
                SharedPlace::Ram(slot) => Some(*slot),
                _ => None,
            });
            let mut slots: Vec<Slot> = in_ram.collect();
            ram.write()
                .expect("no thread panics while it holds the planes")
                .free(&mut slots);
        }
    }
}
