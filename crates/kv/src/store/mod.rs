//! One kind of plane, keys or values, of every page: page tables over the tiers.
//!
//! A table begins with the pages that it shares with other sequences. Of those after them, the sequence's own, some first
//! pages and the newest ones lie near, and those between are far: the older of them on disk, the newer in a RAM tier apart
//! from the device, if there is one. So a page's number tells its tier, and an entry is a slot number, or the number of a
//! [`SharedPlanes`].

mod room;
mod sharing;

use std::sync::{Arc, RwLock};

use riffle_attention::{Format, Plane, PlaneMut};

use crate::arena::{Arena, Slot, as_plane, as_plane_mut};
use crate::disk::{PlaneFile, PlaneFiles, PlaneId};
use crate::ledger::Ledger;
use crate::shared::{SharedPlace, SharedPlanes};
use crate::{CacheShape, CpuDevice, Device, KvError, KvTiers};

pub(crate) struct PlaneStore {
    /// `"keys"` or `"values"`.
    what: &'static str,
    kv_heads: usize,
    plane_bytes: usize,
    device: Arc<dyn Device>,
    ledger: Arc<Ledger>,
    near: Arena,
    near_slots: usize,
    ram: Option<RamPlanes>,
    disk: Option<PlaneFiles>,
    /// Numbered by the first entries of tables; `None` where no table names it any more.
    shared: Vec<Option<Arc<SharedPlanes>>>,
    /// `[layers, kv_heads]`
    tables: Vec<PlaneTable>,
}

/// What the tiers of a store may take, together with other stores.
pub(crate) struct Ledgers {
    pub(crate) near: Arc<Ledger>,
    pub(crate) ram: Arc<Ledger>,
    pub(crate) disk: Arc<Ledger>,
}

/// Planes in main memory that the device does not read in place.
struct RamPlanes {
    arena: Arc<RwLock<Arena>>,
    slots: usize,
}

#[derive(Clone)]
struct PlaneTable {
    slots: Vec<u32>,
    /// Pages before this one are shared.
    shared: u32,
    /// Own pages before this one lie near.
    first_far: u32,
    /// Far pages before this one lie on disk.
    disk_end: u32,
    /// Pages from this one on lie near.
    far_end: u32,
    /// Pages that left before those that are there: what a page's number lacks to tell its age.
    left: u32,
}

impl PlaneTable {
    fn new() -> Self {
        Self {
            slots: Vec::new(),
            shared: 0,
            first_far: 1,
            disk_end: 1,
            far_end: 1,
            left: 0,
        }
    }

    fn on_disk(&self) -> usize {
        (self.disk_end - self.first_far) as usize
    }

    fn far(&self) -> std::ops::Range<usize> {
        self.first_far as usize..self.far_end as usize
    }

    /// Names shared planes in the place of the first own page.
    fn name_shared(&mut self, page: usize, number: u32) {
        self.slots[page] = number;
        self.shared = page as u32 + 1;
        for bound in [&mut self.first_far, &mut self.disk_end, &mut self.far_end] {
            *bound = (*bound).max(self.shared);
        }
        self.begin_near();
    }

    /// Where no own page is far: only the first of them stays when others leave.
    fn begin_near(&mut self) {
        if self.first_far == self.far_end {
            let first = self.shared + 1;
            (self.first_far, self.disk_end, self.far_end) = (first, first, first);
        }
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
    Disk(Arc<PlaneFile>, u32),
}

impl Source {
    fn on_disk(files: &PlaneFiles, place: u32) -> Self {
        let (file, slot) = files.at(place);
        Self::Disk(Arc::clone(file), slot)
    }

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

/// Where a page lies.
enum Found<'a> {
    Near(&'a [u8]),
    Far(Source),
}

impl PlaneStore {
    pub(crate) fn new(
        what: &'static str,
        shape: &CacheShape,
        format: Format,
        tiers: &KvTiers,
        near_slots: usize,
        ram_slots: usize,
        ledgers: &Ledgers,
    ) -> Result<Self, KvError> {
        let arena = |device, ledger: &Arc<Ledger>| {
            Arena::new(device, Arc::clone(ledger), format, shape.page_tokens, shape.head_dim)
        };
        let plane_bytes = format.plane_bytes(shape.page_tokens, shape.head_dim);
        let disk = tiers.disk.as_ref();
        let disk = disk.map(|disk| PlaneFiles::create(&disk.folder, shape.layers, plane_bytes, &ledgers.disk));
        Ok(Self {
            what,
            kv_heads: shape.kv_heads,
            plane_bytes,
            device: Arc::clone(&tiers.device),
            ledger: Arc::clone(&ledgers.near),
            near: arena(Arc::clone(&tiers.device), &ledgers.near),
            near_slots,
            ram: (!tiers.device.reads_main_memory()).then(|| RamPlanes {
                arena: Arc::new(RwLock::new(arena(Arc::new(CpuDevice::new()), &ledgers.ram))),
                slots: ram_slots,
            }),
            disk: disk.transpose()?,
            shared: Vec::new(),
            tables: (0..shape.layers * shape.kv_heads).map(|_| PlaneTable::new()).collect(),
        })
    }

    /// Pages of a table.
    pub(crate) fn pages(&self, table: usize) -> usize {
        self.tables[table].slots.len()
    }

    /// Pages of all tables that are not shared.
    pub(crate) fn own_pages(&self) -> usize {
        let tables = self.tables.iter();
        tables.map(|table| table.slots.len() - table.shared as usize).sum()
    }

    /// Pages that a table begins with and shares.
    pub(crate) fn shared_pages(&self, table: usize) -> usize {
        self.tables[table].shared as usize
    }

    /// Whether a page has to be loaded before it is read.
    pub(crate) fn is_far(&self, table: usize, page: usize) -> bool {
        match self.shared_place(table, page) {
            Some((_, place)) => !matches!(place, SharedPlace::Near(_)),
            None => self.tables[table].far().contains(&page),
        }
    }

    /// Whether no page of a table has to be loaded.
    pub(crate) fn is_near(&self, table: usize) -> bool {
        self.tables[table].far().is_empty() && (0..self.shared_pages(table)).all(|page| !self.is_far(table, page))
    }

    /// A plane that lies near.
    pub(crate) fn plane(&self, table: usize, page: usize) -> Plane<'_> {
        match self.find(table, page) {
            Found::Near(bytes) => as_plane(self.near.format(), bytes),
            Found::Far(_) => unreachable!("only planes that lie near are read in place"),
        }
    }

    /// A plane that lies near and is not shared, to be written to.
    pub(crate) fn plane_mut(&mut self, table: usize, page: usize) -> PlaneMut<'_> {
        let slot = self.slot(table, page);
        self.near.plane_mut(slot)
    }

    /// The bytes of a plane that lies near and is not shared, to be written to.
    pub(crate) fn bytes_mut(&mut self, table: usize, page: usize) -> &mut [u8] {
        let slot = self.slot(table, page);
        self.near.bytes_mut(slot)
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
        match self.find(table, page) {
            Found::Far(source) => source,
            Found::Near(_) => unreachable!("only far planes are loaded"),
        }
    }

    /// A plane's bytes, wherever it lies.
    pub(crate) fn bytes(&self, table: usize, page: usize) -> Result<PlaneBytes<'_>, KvError> {
        let source = match self.find(table, page) {
            Found::Near(bytes) => return Ok(PlaneBytes::Near(bytes)),
            Found::Far(source) => source,
        };
        let mut floats = vec![0.0f32; self.plane_bytes.div_ceil(4)];
        source.read(self.id(table, page), bytemuck::cast_slice_mut(&mut floats))?;
        Ok(PlaneBytes::Loaded(floats, self.plane_bytes))
    }

    /// Changes a plane that is not shared, wherever it lies.
    pub(crate) fn change(
        &mut self,
        table: usize,
        page: usize,
        change: impl FnOnce(&mut PlaneMut<'_>),
    ) -> Result<(), KvError> {
        if !self.is_far(table, page) {
            change(&mut self.plane_mut(table, page));
            return Ok(());
        }
        match self.source(table, page) {
            Source::Ram(arena, slot) => {
                let mut arena = arena.write().expect("no thread panics while it holds the planes");
                change(&mut arena.plane_mut(slot));
            }
            Source::Disk(file, slot) => {
                let mut floats = vec![0.0f32; self.plane_bytes.div_ceil(4)];
                let bytes = &mut bytemuck::cast_slice_mut(&mut floats)[..self.plane_bytes];
                file.read(slot, self.id(table, page), bytes)?;
                change(&mut as_plane_mut(self.near.format(), bytes));
                file.rewrite(slot, bytes)?;
            }
        }
        Ok(())
    }

    /// The slot of a page that lies near and is not shared.
    fn slot(&self, table: usize, page: usize) -> Slot {
        debug_assert!(!self.is_far(table, page) && page >= self.shared_pages(table));
        Slot::of_number(self.tables[table].slots[page])
    }

    fn shared_place(&self, table: usize, page: usize) -> Option<(&Arc<SharedPlanes>, SharedPlace)> {
        let PlaneTable { slots, shared, .. } = &self.tables[table];
        (page < *shared as usize).then(|| {
            let planes = self.shared[slots[page] as usize].as_ref();
            let planes = planes.expect("what a table names is there");
            (planes, planes.places[table])
        })
    }

    fn find(&self, table: usize, page: usize) -> Found<'_> {
        let there = "planes lie in tiers that there are";
        if let Some((planes, place)) = self.shared_place(table, page) {
            return match place {
                SharedPlace::Near(number) => Found::Near(planes.near_bytes(number)),
                SharedPlace::Ram(slot) => Found::Far(Source::Ram(Arc::clone(planes.ram.as_ref().expect(there)), slot)),
                SharedPlace::Disk(place) => Found::Far(Source::on_disk(planes.files.as_ref().expect(there), place)),
                SharedPlace::Nowhere => unreachable!("a table names pages that it has"),
            };
        }
        let PlaneTable { slots, disk_end, .. } = &self.tables[table];
        if !self.tables[table].far().contains(&page) {
            Found::Near(self.near.bytes(Slot::of_number(slots[page])))
        } else if page < *disk_end as usize {
            Found::Far(Source::on_disk(self.disk.as_ref().expect(there), slots[page]))
        } else {
            let ram = self.ram.as_ref().expect(there);
            Found::Far(Source::Ram(Arc::clone(&ram.arena), Slot::of_number(slots[page])))
        }
    }

    /// Bytes of planes that lie near, in a RAM tier apart, and on disk.
    pub(crate) fn tier_bytes(&self) -> [u64; 3] {
        let own = self.own_pages();
        let on_disk: usize = self.tables.iter().map(PlaneTable::on_disk).sum();
        let far: usize = self.tables.iter().map(|table| table.far().len()).sum();
        let mut planes = [own - far, far - on_disk, on_disk];
        self.each_shared(|_, place| match place {
            SharedPlace::Ram(_) => planes[1] += 1,
            SharedPlace::Disk(_) => planes[2] += 1,
            _ => planes[0] += 1,
        });
        planes.map(|planes| (planes * self.plane_bytes) as u64)
    }

    pub(crate) fn plane_bytes(&self) -> usize {
        self.plane_bytes
    }

    /// Bytes of planes that another sequence holds as well.
    pub(crate) fn shared_bytes(&self) -> u64 {
        let mut count = 0;
        self.each_shared(|planes, _| count += usize::from(Arc::strong_count(planes) > 1));
        (count * self.plane_bytes) as u64
    }

    fn each_shared(&self, mut each: impl FnMut(&Arc<SharedPlanes>, SharedPlace)) {
        for (number, table) in self.tables.iter().enumerate() {
            for page in 0..table.shared as usize {
                if let Some((planes, place)) = self.shared_place(number, page) {
                    each(planes, place);
                }
            }
        }
    }

    /// Bytes mapped in the nearest tier and in a RAM tier apart.
    pub(crate) fn mapped_bytes(&self) -> [usize; 2] {
        let ram = self.ram.as_ref().map_or(0, |ram| {
            let arena = ram.arena.read().expect("no thread panics while it holds the planes");
            arena.mapped_bytes()
        });
        [self.near.mapped_bytes() + self.shared_near_bytes(), ram]
    }

    /// Bytes of shared pages in the nearest tier.
    fn shared_near_bytes(&self) -> usize {
        self.shared.iter().flatten().map(|planes| planes.mapped_bytes()).sum()
    }

    /// Bytes mapped in the nearest tier for pages that are not shared.
    pub(crate) fn own_mapped_bytes(&self) -> usize {
        self.near.mapped_bytes()
    }

    pub(crate) fn forget_cached_files(&self) -> Result<(), KvError> {
        self.disk.as_ref().map_or(Ok(()), PlaneFiles::forget_cached)
    }

    /// Length of the files.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.disk.as_ref().map_or(0, PlaneFiles::file_bytes)
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
        let shared: usize = self
            .shared
            .iter()
            .flatten()
            .map(|planes| planes.bookkeeping_bytes())
            .sum();
        tables.sum::<usize>()
            + self.tables.capacity() * size_of::<PlaneTable>()
            + self.near.bookkeeping_bytes()
            + ram
            + shared
            + self.shared.capacity() * size_of::<Option<Arc<SharedPlanes>>>()
            + self.disk.as_ref().map_or(0, PlaneFiles::bookkeeping_bytes)
    }
}
