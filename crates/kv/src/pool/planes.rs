//! The planes of one kind, keys or values, of all pages of a pool: their memory and files.

use std::sync::{Arc, RwLock};

use riffle_attention::{Format, Plane, PlaneMut};

use super::order::SizedKind;
use super::page::PlanePlace;
use crate::arena::{Arena, Slot};
use crate::disk::{PlaneFile, PlaneFiles, PlaneId};
use crate::ledger::Ledger;
use crate::tiers::Layout;
use crate::{CacheShape, CpuDevice, KvError, KvTiers};

pub(crate) struct PlaneStore {
    /// `"keys"` or `"values"`.
    pub(crate) what: &'static str,
    pub(crate) plane_bytes: usize,
    pub(crate) near: Arena,
    /// Maximum number of planes that may be near.
    pub(crate) near_slots: usize,
    pub(crate) ram: Option<RamPlanes>,
    pub(crate) disk: Option<PlaneFiles>,
}

/// Budgets of the tiers of a pool.
pub(crate) struct Ledgers {
    pub(crate) near: Arc<Ledger>,
    pub(crate) ram: Arc<Ledger>,
    pub(crate) disk: Arc<Ledger>,
}

/// Planes in main memory that the device cannot read in place.
pub(crate) struct RamPlanes {
    pub(crate) arena: Arc<RwLock<Arena>>,
    pub(crate) slots: usize,
}

/// A plane's bytes, aligned for its elements.
pub(crate) enum PlaneBytes<'a> {
    Near(&'a [u8]),
    Loaded(Vec<f32>, usize),
}

impl std::ops::Deref for PlaneBytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Near(bytes) => bytes,
            Self::Loaded(floats, bytes) => &bytemuck::cast_slice(floats)[..*bytes],
        }
    }
}

/// The tier from which a plane is loaded.
pub(crate) enum Source {
    Ram(Arc<RwLock<Arena>>, Slot),
    Disk(Arc<PlaneFile>, u32),
}

impl Source {
    /// Copies the plane to the start of `target`.
    pub(crate) fn read(&self, id: PlaneId, target: &mut [u8]) -> Result<(), KvError> {
        match self {
            Self::Ram(arena, slot) => {
                let arena = arena.read().expect("no thread panics while it holds the planes");
                let plane = arena.bytes(*slot);
                target[..plane.len()].copy_from_slice(plane);
                Ok(())
            }
            Self::Disk(file, slot) => file.read(*slot, id, target),
        }
    }
}

impl PlaneStore {
    /// The planes of pages of a size.
    pub(crate) fn new(
        (size, kind): SizedKind,
        shape: &CacheShape,
        layout: &Layout,
        tiers: &KvTiers,
        ledgers: &Ledgers,
    ) -> Result<Self, KvError> {
        let slots = layout.slots[size];
        let arena = |device, ledger: &Arc<Ledger>| {
            let (format, width) = (shape.format(kind), shape.width(size, kind));
            Arena::new(device, Arc::clone(ledger), format, shape.page_tokens, width)
        };
        let plane_bytes = shape.plane_bytes(size, kind) as usize;
        let layers = shape.layers_of_size(size).count();
        let disk = tiers.disk.as_ref().filter(|_| plane_bytes > 0);
        let disk = disk.map(|disk| PlaneFiles::create(&disk.folder, layers, plane_bytes, &ledgers.disk));
        Ok(Self {
            what: kind.what(),
            plane_bytes,
            near: arena(Arc::clone(&tiers.device), &ledgers.near),
            // Empty planes always fit.
            near_slots: if plane_bytes == 0 {
                usize::MAX
            } else {
                slots.near[kind as usize]
            },
            ram: (!tiers.device.reads_main_memory()).then(|| RamPlanes {
                arena: Arc::new(RwLock::new(arena(Arc::new(CpuDevice::new()), &ledgers.ram))),
                slots: slots.ram,
            }),
            disk: disk.transpose()?,
        })
    }

    /// Planes on disk if there were `total` planes.
    pub(crate) fn on_disk_of(&self, total: usize) -> usize {
        let ram = self.ram.as_ref().map_or(0, |ram| ram.slots);
        total.saturating_sub(self.near_slots).saturating_sub(ram)
    }

    pub(crate) fn format(&self) -> Format {
        self.near.format()
    }

    /// A near plane; `None` for others.
    pub(crate) fn near_plane(&self, place: PlanePlace) -> Option<Plane<'_>> {
        match place {
            PlanePlace::Near(slot) => Some(Plane::from_bytes(self.format(), self.near.bytes(slot))),
            _ => None,
        }
    }

    /// The source for loading a plane; `None` if it is near.
    pub(crate) fn source(&self, place: PlanePlace) -> Option<Source> {
        const THERE: &str = "planes lie in tiers that there are";
        match place {
            PlanePlace::Near(_) => None,
            PlanePlace::Ram(slot) => {
                let ram = self.ram.as_ref().expect(THERE);
                Some(Source::Ram(Arc::clone(&ram.arena), slot))
            }
            PlanePlace::Disk(number) => {
                let (file, slot) = self.disk.as_ref().expect(THERE).at(number);
                Some(Source::Disk(Arc::clone(file), slot))
            }
        }
    }

    /// A plane's bytes, in any tier.
    pub(crate) fn bytes(&self, place: PlanePlace, id: PlaneId) -> Result<PlaneBytes<'_>, KvError> {
        if let PlanePlace::Near(slot) = place {
            return Ok(PlaneBytes::Near(self.near.bytes(slot)));
        }
        let mut floats = vec![0.0f32; self.plane_bytes.div_ceil(4)];
        if let Some(source) = self.source(place) {
            source.read(id, bytemuck::cast_slice_mut(&mut floats))?;
        }
        Ok(PlaneBytes::Loaded(floats, self.plane_bytes))
    }

    /// Changes a plane in its tier.
    pub(crate) fn change(
        &mut self,
        place: PlanePlace,
        id: PlaneId,
        change: impl FnOnce(&mut PlaneMut<'_>),
    ) -> Result<(), KvError> {
        if let PlanePlace::Near(slot) = place {
            change(&mut self.near.plane_mut(slot));
            return Ok(());
        }
        match self.source(place) {
            None => {}
            Some(Source::Ram(arena, slot)) => {
                let mut arena = arena.write().expect("no thread panics while it holds the planes");
                change(&mut arena.plane_mut(slot));
            }
            Some(Source::Disk(file, slot)) => {
                let mut floats = vec![0.0f32; self.plane_bytes.div_ceil(4)];
                let bytes = &mut bytemuck::cast_slice_mut(&mut floats)[..self.plane_bytes];
                file.read(slot, id, bytes)?;
                change(&mut PlaneMut::from_bytes(self.format(), bytes));
                file.rewrite(slot, bytes)?;
            }
        }
        Ok(())
    }

    /// Frees planes, in every tier.
    pub(crate) fn free(&mut self, places: &[PlanePlace]) {
        let (mut near, mut ram, mut disk) = (Vec::new(), Vec::new(), Vec::new());
        for place in places {
            match *place {
                PlanePlace::Near(slot) => near.push(slot),
                PlanePlace::Ram(slot) => ram.push(slot),
                PlanePlace::Disk(number) => disk.push(number),
            }
        }
        if !near.is_empty() {
            self.near.free(&mut near);
        }
        if let Some(planes) = self.ram.as_ref().filter(|_| !ram.is_empty()) {
            let mut arena = planes
                .arena
                .write()
                .expect("no thread panics while it holds the planes");
            arena.free(&mut ram);
        }
        if let Some(files) = self.disk.as_ref().filter(|_| !disk.is_empty()) {
            files.free(disk);
        }
    }

    /// Frees a slot for immediate reuse: its memory stays mapped.
    pub(crate) fn free_for_reuse(&mut self, place: PlanePlace) {
        match (place, &self.ram) {
            (PlanePlace::Near(slot), _) => self.near.free_for_reuse(slot),
            (PlanePlace::Ram(slot), Some(RamPlanes { arena, .. })) => {
                let mut arena = arena.write().expect("no thread panics while it holds the planes");
                arena.free_for_reuse(slot);
            }
            (place, _) => self.free(&[place]),
        }
    }

    /// Bytes mapped in the nearest tier and in a separate RAM tier.
    pub(crate) fn mapped_bytes(&self) -> usize {
        self.near.mapped_bytes() + self.of_ram(Arena::mapped_bytes)
    }

    pub(crate) fn bookkeeping_bytes(&self) -> usize {
        self.near.bookkeeping_bytes()
            + self.of_ram(Arena::bookkeeping_bytes)
            + self.disk.as_ref().map_or(0, PlaneFiles::bookkeeping_bytes)
    }

    fn of_ram(&self, count: impl Fn(&Arena) -> usize) -> usize {
        self.ram.as_ref().map_or(0, |ram| {
            count(&ram.arena.read().expect("no thread panics while it holds the planes"))
        })
    }
}
