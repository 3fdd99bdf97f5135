//! One kind of plane, keys or values, of every page: page tables over the tiers.
//!
//! In each table the first page and the newest ones lie near, and those between are far: the older of them on disk, the
//! newer in a RAM tier apart from the device, if there is one. So a page's number tells its tier, and an entry is a
//! slot number.

use std::ops::Range;
use std::sync::{Arc, RwLock};

use riffle_attention::{Format, PlaneMut};

use crate::arena::{Arena, Slot, as_plane_mut};
use crate::disk::{DiskFile, DiskSpace, HASH_BYTES, PlaneFile, PlaneId};
use crate::{CacheShape, CpuDevice, KvError, KvTiers};

pub(crate) struct PlaneStore {
    /// `"keys"` or `"values"`.
    what: &'static str,
    kv_heads: usize,
    plane_bytes: usize,
    pub(crate) near: Arena,
    near_slots: usize,
    near_used: usize,
    ram: Option<RamPlanes>,
    disk: Option<PlaneFile>,
    /// `[layers, kv_heads]`
    tables: Vec<PlaneTable>,
}

/// Planes in main memory that the device does not read in place.
struct RamPlanes {
    arena: Arc<RwLock<Arena>>,
    slots: usize,
    used: usize,
}

struct PlaneTable {
    slots: Vec<u32>,
    /// Pages before this one lie near.
    first_far: u32,
    /// Far pages before this one lie on disk.
    disk_end: u32,
    /// Pages from this one on lie near.
    far_end: u32,
}

impl PlaneTable {
    fn new() -> Self {
        Self {
            slots: Vec::new(),
            first_far: 1,
            disk_end: 1,
            far_end: 1,
        }
    }

    fn on_disk(&self) -> usize {
        (self.disk_end - self.first_far) as usize
    }
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

/// A plane that has to be loaded before it is read.
pub(crate) enum Source {
    Ram(Arc<RwLock<Arena>>, Slot),
    Disk(Arc<DiskFile>, u32),
}

impl Source {
    /// Copies the plane to the start of `target`, which has room for a checksum behind it.
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
    pub(crate) fn new(
        what: &'static str,
        shape: &CacheShape,
        format: Format,
        tiers: &KvTiers,
        near_slots: usize,
        ram_slots: usize,
        space: &Arc<DiskSpace>,
    ) -> Result<Self, KvError> {
        let arena = |device| Arena::new(device, format, shape.page_tokens, shape.head_dim);
        let plane_bytes = format.plane_bytes(shape.page_tokens, shape.head_dim);
        let disk = tiers.disk.as_ref();
        let disk = disk.map(|disk| PlaneFile::create(&disk.folder, plane_bytes, Arc::clone(space)));
        Ok(Self {
            what,
            kv_heads: shape.kv_heads,
            plane_bytes,
            near: arena(Arc::clone(&tiers.device)),
            near_slots,
            near_used: 0,
            ram: (!tiers.device.reads_main_memory()).then(|| RamPlanes {
                arena: Arc::new(RwLock::new(arena(Arc::new(CpuDevice::new())))),
                slots: ram_slots,
                used: 0,
            }),
            disk: disk.transpose()?,
            tables: (0..shape.layers * shape.kv_heads).map(|_| PlaneTable::new()).collect(),
        })
    }

    /// Pages of a table.
    pub(crate) fn pages(&self, table: usize) -> usize {
        self.tables[table].slots.len()
    }

    /// Pages of a table that have to be loaded before they are read.
    pub(crate) fn far(&self, table: usize) -> Range<usize> {
        let table = &self.tables[table];
        table.first_far as usize..table.far_end as usize
    }

    pub(crate) fn is_far(&self, table: usize, page: usize) -> bool {
        self.far(table).contains(&page)
    }

    /// The slot of a page that lies near.
    pub(crate) fn slot(&self, table: usize, page: usize) -> Slot {
        debug_assert!(!self.is_far(table, page));
        Slot::of_number(self.tables[table].slots[page])
    }

    pub(crate) fn id(&self, table: usize, page: usize) -> PlaneId {
        PlaneId {
            what: self.what,
            layer: table / self.kv_heads,
            kv_head: table % self.kv_heads,
            page,
        }
    }

    /// Where a page that does not lie near is loaded from.
    pub(crate) fn source(&self, table: usize, page: usize) -> Source {
        let PlaneTable { slots, disk_end, .. } = &self.tables[table];
        if page < *disk_end as usize {
            let file = self.disk.as_ref().expect("pages on disk have a file").file();
            Source::Disk(Arc::clone(file), slots[page])
        } else {
            let ram = self.ram.as_ref().expect("far pages lie on disk or in a RAM tier apart");
            Source::Ram(Arc::clone(&ram.arena), Slot::of_number(slots[page]))
        }
    }

    /// A plane's bytes, wherever it lies.
    pub(crate) fn bytes(&self, table: usize, page: usize) -> Result<PlaneBytes<'_>, KvError> {
        if !self.is_far(table, page) {
            return Ok(PlaneBytes::Near(self.near.bytes(self.slot(table, page))));
        }
        let mut floats = vec![0.0f32; (self.plane_bytes + HASH_BYTES).div_ceil(4)];
        let target = bytemuck::cast_slice_mut(&mut floats);
        self.source(table, page).read(self.id(table, page), target)?;
        Ok(PlaneBytes::Loaded(floats, self.plane_bytes))
    }

    /// Changes a plane, wherever it lies.
    pub(crate) fn change(
        &mut self,
        table: usize,
        page: usize,
        change: impl FnOnce(&mut PlaneMut<'_>),
    ) -> Result<(), KvError> {
        if !self.is_far(table, page) {
            let slot = self.slot(table, page);
            change(&mut self.near.plane_mut(slot));
            return Ok(());
        }
        let (id, number) = (self.id(table, page), self.tables[table].slots[page]);
        match (self.source(table, page), &mut self.disk) {
            (Source::Ram(arena, slot), _) => {
                let mut arena = arena.write().expect("no thread panics while it holds the planes");
                change(&mut arena.plane_mut(slot));
            }
            (Source::Disk(..), Some(disk)) => {
                let mut floats = vec![0.0f32; (self.plane_bytes + HASH_BYTES).div_ceil(4)];
                let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut floats);
                disk.file().read(number, id, bytes)?;
                let bytes = &mut bytes[..self.plane_bytes];
                change(&mut as_plane_mut(self.near.format(), bytes));
                disk.rewrite(number, id, bytes)?;
            }
            (Source::Disk(..), None) => unreachable!("pages on disk have a file"),
        }
        Ok(())
    }

    /// Planes that `total` of them would put on disk.
    pub(crate) fn on_disk_of(&self, total: usize) -> usize {
        let ram = self.ram.as_ref().map_or(0, |ram| ram.slots);
        total.saturating_sub(self.near_slots).saturating_sub(ram)
    }

    pub(crate) fn has_disk(&self) -> bool {
        self.disk.is_some()
    }

    /// Sees to it that `planes` more can be taken. Pages before `full(table)` may leave, the oldest first.
    pub(crate) fn make_room(&mut self, planes: usize, full: &dyn Fn(usize) -> usize) -> Result<(), KvError> {
        while self.near_slots - self.near_used < planes {
            let oldest = self.oldest(full, |table| table.far_end);
            let near_bytes = self.near_slots as u64 * self.plane_bytes as u64;
            let needed_bytes = (self.near_used + planes) as u64 * self.plane_bytes as u64;
            let too_little = KvError::NearBudget {
                what: self.what,
                needed_bytes,
                near_bytes,
            };
            self.send_away(oldest.ok_or(too_little)?)?;
        }
        self.near.reserve(planes, self.near_slots)
    }

    /// The table whose oldest page behind its frontier is the oldest of all, of those that are full.
    fn oldest(&self, full: &dyn Fn(usize) -> usize, frontier: impl Fn(&PlaneTable) -> u32) -> Option<usize> {
        let tables = self.tables.iter().enumerate();
        let candidates = tables.map(|(number, table)| (frontier(table) as usize, number));
        let full = candidates.filter(|(page, number)| *page < full(*number));
        full.min().map(|(_, number)| number)
    }

    /// Moves the oldest near plane of a table one tier away.
    fn send_away(&mut self, table: usize) -> Result<(), KvError> {
        let page = self.far(table).end;
        let slot = self.slot(table, page);
        let number = match &mut self.ram {
            Some(ram) => {
                if ram.used == ram.slots {
                    let oldest = self.oldest(&|table| self.far(table).end, |table| table.disk_end);
                    let oldest = oldest.ok_or(KvError::NearBudget {
                        what: self.what,
                        needed_bytes: self.plane_bytes as u64,
                        near_bytes: 0,
                    })?;
                    self.send_from_ram(oldest)?;
                }
                let ram = self.ram.as_mut().expect("it was there");
                let mut arena = ram.arena.write().expect("no thread panics while it holds the planes");
                arena.reserve(1, ram.slots)?;
                let target = arena.take();
                arena.bytes_mut(target).copy_from_slice(self.near.bytes(slot));
                ram.used += 1;
                target.number()
            }
            None => {
                let id = self.id(table, page);
                let disk = self.disk.as_mut().ok_or(KvError::NearBudget {
                    what: self.what,
                    needed_bytes: (self.near_used as u64 + 1) * self.plane_bytes as u64,
                    near_bytes: self.near_slots as u64 * self.plane_bytes as u64,
                })?;
                let number = disk.write(id, self.near.bytes(slot))?;
                self.tables[table].disk_end = page as u32 + 1;
                number
            }
        };
        let entry = &mut self.tables[table];
        entry.slots[page] = number;
        entry.far_end = page as u32 + 1;
        self.near.free_for_reuse(slot);
        self.near_used -= 1;
        Ok(())
    }

    /// Moves the oldest plane of a table that lies in RAM to disk.
    fn send_from_ram(&mut self, table: usize) -> Result<(), KvError> {
        let page = self.tables[table].disk_end as usize;
        let (id, slot) = (self.id(table, page), Slot::of_number(self.tables[table].slots[page]));
        let ram = self.ram.as_mut().expect("only planes in RAM are sent from there");
        let mut arena = ram.arena.write().expect("no thread panics while it holds the planes");
        let disk = self.disk.as_mut().ok_or(KvError::NearBudget {
            what: self.what,
            needed_bytes: (ram.used as u64 + 1) * self.plane_bytes as u64,
            near_bytes: ram.slots as u64 * self.plane_bytes as u64,
        })?;
        let number = disk.write(id, arena.bytes(slot))?;
        arena.free_for_reuse(slot);
        ram.used -= 1;
        let entry = &mut self.tables[table];
        entry.slots[page] = number;
        entry.disk_end = page as u32 + 1;
        Ok(())
    }

    /// Brings the last page of a table near, so that it can be written to; room for it has been made.
    pub(crate) fn bring_last(&mut self, table: usize) -> Result<(), KvError> {
        let page = self.pages(table) - 1;
        let bytes = self.bytes(table, page)?.to_vec();
        let slot = self.near.take();
        self.near.bytes_mut(slot).copy_from_slice(&bytes);
        self.near_used += 1;
        self.forget_far(table, page);
        let entry = &mut self.tables[table];
        entry.slots[page] = slot.number();
        entry.far_end = page as u32;
        entry.disk_end = entry.disk_end.min(entry.far_end);
        Ok(())
    }

    /// Adds pages to a table; room for them has been made.
    pub(crate) fn take(&mut self, table: usize, pages: usize) {
        let near = &mut self.near;
        let slots = (0..pages).map(|_| near.take().number());
        let entry = &mut self.tables[table].slots;
        if entry.len() + pages > entry.capacity() {
            // Doubling would make the tables of small pages heavy.
            entry.reserve_exact(pages.max(entry.len() / 8));
        }
        entry.extend(slots);
        self.near_used += pages;
    }

    /// Takes `pages` pages from page `first` on out of every table; later ones move down.
    pub(crate) fn drain(&mut self, first: usize, pages: usize) {
        let mut near = Vec::new();
        for table in 0..self.tables.len() {
            let end = first.saturating_add(pages).min(self.pages(table));
            let gone = first.min(end)..end;
            for page in gone.clone() {
                if self.is_far(table, page) {
                    self.forget_far(table, page);
                } else {
                    near.push(self.slot(table, page));
                }
            }
            let entry = &mut self.tables[table];
            entry.slots.drain(gone.clone());
            entry.slots.shrink_to(entry.slots.len() * 2);
            // Each bound moves down by what left before it.
            for bound in [&mut entry.first_far, &mut entry.disk_end, &mut entry.far_end] {
                let before = (*bound as usize).clamp(gone.start, gone.end) - gone.start;
                *bound -= before as u32;
            }
            if entry.first_far == entry.far_end {
                (entry.first_far, entry.disk_end, entry.far_end) = (1, 1, 1);
            }
        }
        self.near_used -= near.len();
        self.near.free(&mut near);
    }

    fn forget_far(&mut self, table: usize, page: usize) {
        let PlaneTable { slots, disk_end, .. } = &self.tables[table];
        if page < *disk_end as usize {
            let disk = self.disk.as_mut().expect("pages on disk have a file");
            disk.free([slots[page]]);
        } else if let Some(ram) = &mut self.ram {
            let mut arena = ram.arena.write().expect("no thread panics while it holds the planes");
            arena.free(&mut [Slot::of_number(slots[page])]);
            ram.used -= 1;
        }
    }

    /// Gives back slabs that were reserved and not used.
    pub(crate) fn unreserve(&mut self) {
        self.near.free(&mut []);
    }

    /// Bytes of planes that lie near, in a RAM tier apart, and on disk.
    pub(crate) fn tier_bytes(&self) -> [u64; 3] {
        let on_disk: usize = self.tables.iter().map(PlaneTable::on_disk).sum();
        let ram = self.ram.as_ref().map_or(0, |ram| ram.used);
        [self.near_used, ram, on_disk].map(|planes| (planes * self.plane_bytes) as u64)
    }

    /// Bytes mapped in the nearest tier and in a RAM tier apart.
    pub(crate) fn mapped_bytes(&self) -> [usize; 2] {
        let ram = self.ram.as_ref().map_or(0, |ram| {
            let arena = ram.arena.read().expect("no thread panics while it holds the planes");
            arena.mapped_bytes()
        });
        [self.near.mapped_bytes(), ram]
    }

    /// Length of the file.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.disk.as_ref().map_or(0, PlaneFile::file_bytes)
    }

    pub(crate) fn bookkeeping_bytes(&self) -> usize {
        let tables = self
            .tables
            .iter()
            .map(|table| table.slots.capacity() * size_of::<u32>());
        let ram = self.ram.as_ref().map_or(0, |ram| {
            let arena = ram.arena.read().expect("no thread panics while it holds the planes");
            arena.bookkeeping_bytes()
        });
        tables.sum::<usize>()
            + self.tables.capacity() * size_of::<PlaneTable>()
            + self.near.bookkeeping_bytes()
            + ram
            + self.disk.as_ref().map_or(0, PlaneFile::bookkeeping_bytes)
    }
}
