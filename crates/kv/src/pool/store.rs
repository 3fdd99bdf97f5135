//! The parts of a pool: pages with their holders, the planes of all tiers, and the offload engine.

use std::sync::{Mutex, MutexGuard, PoisonError};

use riffle_attention::{Plane, PlaneMut};

use super::order::LeaveOrder;
use super::page::{PageCounts, PageId, PageRecords, PageVersion, PlaneKind, PlanePlace};
use super::planes::{Ledgers, PlaneBytes, PlaneStore, Source};
use super::prefixes::KnownRows;
use super::row_watch::PlaneCounts;
use crate::arena::Slot;
use crate::disk::PlaneId;
use crate::ledger::Taken;
use crate::offload::OffloadEngine;
use crate::tiers::Layout;
use crate::{CacheShape, KvError, KvTiers};

pub(crate) struct PageStore {
    pub(crate) shape: CacheShape,
    records: PageRecords,
    /// Planes by page size: keys and values.
    pub(super) planes: Vec<[PlaneStore; 2]>,
    /// `None` if no plane can leave the nearest tier.
    pub(super) order: Option<LeaveOrder>,
    pub(crate) known: KnownRows,
    /// Loads planes that are not near. It never moves them, so readers can use it.
    offload: Mutex<OffloadEngine>,
    /// Number of planes that are not near.
    far_planes: usize,
    /// Number of rows of pages begun so far.
    rows: u64,
    pub(super) sequences: usize,
    /// Memory for planes being loaded and keys being scanned, as long as there are sequences.
    moving: Option<Taken>,
    pub(super) near_budget_bytes: u64,
    pub(super) disk_budget_bytes: u64,
}

impl PageStore {
    pub(crate) fn new(shape: &CacheShape, tiers: &KvTiers, ledgers: &Ledgers) -> Result<Self, KvError> {
        let layout = Layout::new(tiers, shape);
        let planes = |size, kind| PlaneStore::new((size, kind), shape, &layout, tiers, ledgers);
        let sizes =
            (0..shape.sizes()).map(|size| Ok([planes(size, PlaneKind::Keys)?, planes(size, PlaneKind::Values)?]));
        Ok(Self {
            shape: *shape,
            records: PageRecords::default(),
            planes: sizes.collect::<Result<_, KvError>>()?,
            order: tiers.has_farther().then(LeaveOrder::default),
            known: KnownRows::default(),
            offload: Mutex::new(OffloadEngine::new(tiers, shape)),
            far_planes: 0,
            rows: 0,
            sequences: 0,
            moving: None,
            near_budget_bytes: ledgers.near.budget_bytes(),
            disk_budget_bytes: ledgers.disk.budget_bytes(),
        })
    }

    /// Registers a new sequence; the first reserves the memory for planes being loaded.
    pub(crate) fn begin_sequence(&mut self, tiers: &KvTiers, ledgers: &Ledgers) {
        self.sequences += 1;
        let is_limited = tiers.has_farther() && tiers.near_budget_bytes().is_some();
        if !is_limited || self.moving.is_some() {
            return;
        }
        let scan_bytes = Layout::new(tiers, &self.shape).scan_bytes;
        let bytes = tiers.ring_bytes(&self.shape).saturating_add(scan_bytes);
        // A sequence with too little memory gets the error when it appends.
        let bytes = bytes.min(self.near_budget_bytes);
        self.moving = Taken::take(&ledgers.near, bytes, "pages on their way").ok();
    }

    /// Unregisters a sequence and its pages; the last releases the memory for planes being loaded.
    pub(crate) fn end_sequence(&mut self, tiers: &KvTiers) {
        self.sequences -= 1;
        if self.sequences == 0 {
            *self.offload_mut() = OffloadEngine::new(tiers, &self.shape);
            self.moving = None;
        }
    }

    /// The number of a new row of pages.
    pub(crate) fn begin_row(&mut self) -> u64 {
        self.rows += 1;
        self.rows
    }

    /// Pages with a holder.
    pub(crate) fn pages(&self) -> usize {
        self.records.count()
    }

    /// Pages with a holder, by size.
    pub(crate) fn counts(&self) -> PageCounts {
        self.records.counts()
    }

    /// The store of a page's keys or values.
    pub(crate) fn planes(&self, page: PageId, kind: PlaneKind) -> &PlaneStore {
        &self.planes[self.records.size(page)][kind as usize]
    }

    pub(super) fn planes_mut(&mut self, page: PageId, kind: PlaneKind) -> &mut PlaneStore {
        &mut self.planes[self.records.size(page)][kind as usize]
    }

    /// Index of a page's size.
    pub(crate) fn size(&self, page: PageId) -> usize {
        self.records.size(page)
    }

    pub(crate) fn place(&self, page: PageId, kind: PlaneKind) -> PlanePlace {
        self.records.place(page, kind)
    }

    pub(crate) fn version(&self, page: PageId) -> PageVersion {
        self.records.version(page)
    }

    /// Records that existing bytes of a page will be overwritten.
    pub(crate) fn renew(&mut self, page: PageId) {
        self.records.renew(page);
    }

    pub(crate) fn is_near(&self, page: PageId) -> bool {
        self.far_planes == 0 || PlaneKind::BOTH.iter().all(|kind| self.place(page, *kind).is_near())
    }

    /// True if all of these pages are near.
    pub(crate) fn are_near(&self, pages: &[PageId]) -> bool {
        self.far_planes == 0 || pages.iter().all(|page| self.is_near(*page))
    }

    /// Number of the pages' planes in each tier.
    pub(crate) fn plane_counts(&self, pages: impl Iterator<Item = PageId>) -> PlaneCounts {
        let mut counts = PlaneCounts::default();
        for page in pages {
            PlaneKind::BOTH
                .iter()
                .for_each(|kind| counts.add(self.place(page, *kind)));
        }
        counts
    }

    /// True if more than one page table holds the page.
    pub(crate) fn is_shared(&self, page: PageId) -> bool {
        self.records.holders(page) > 1
    }

    /// A near plane; `None` for others.
    pub(crate) fn near_plane(&self, page: PageId, kind: PlaneKind) -> Option<Plane<'_>> {
        self.planes(page, kind).near_plane(self.place(page, kind))
    }

    /// The source for loading a plane; `None` if it is near.
    pub(crate) fn source(&self, page: PageId, kind: PlaneKind) -> Option<Source> {
        self.planes(page, kind).source(self.place(page, kind))
    }

    /// A plane's bytes, in any tier.
    pub(crate) fn bytes(&self, page: PageId, kind: PlaneKind, id: PlaneId) -> Result<PlaneBytes<'_>, KvError> {
        self.planes(page, kind).bytes(self.place(page, kind), id)
    }

    /// The engine that loads planes which are not near. A panic in a callback leaves it intact.
    pub(crate) fn offload(&self) -> MutexGuard<'_, OffloadEngine> {
        self.offload.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn offload_mut(&mut self) -> &mut OffloadEngine {
        self.offload.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new page with one holder; call [`make_room`](Self::make_room) first.
    pub(crate) fn take(&mut self, table: usize, row: u64) -> PageId {
        let size = self.shape.size_of_table(table);
        let slots = self.planes[size].each_mut().map(|planes| planes.near.take());
        let page = self.records.take(size, slots);
        if let Some(order) = &mut self.order {
            order.begin(page, row, table);
            for kind in PlaneKind::BOTH {
                order.queue(page, (size, kind), PlanePlace::Near(slots[kind as usize]));
            }
        }
        page
    }

    /// Adds a holder.
    pub(crate) fn hold(&mut self, page: PageId) {
        *self.records.holders_mut(page) += 1;
    }

    /// Removes one holder from each page; pages without holders are freed in every tier.
    pub(crate) fn let_go(&mut self, pages: &[PageId]) {
        let mut freed = Vec::new();
        for page in pages {
            let holders = self.records.holders_mut(*page);
            *holders -= 1;
            if *holders == 0 {
                freed.push(*page);
            }
        }
        if freed.is_empty() {
            return;
        }
        self.offload_mut().forget(&freed);
        for (size, kind) in (0..self.planes.len()).flat_map(|size| PlaneKind::BOTH.map(|kind| (size, kind))) {
            let of_size = freed.iter().filter(|page| self.records.size(**page) == size);
            let placed: Vec<(PageId, PlanePlace)> = of_size.map(|page| (*page, self.place(*page, kind))).collect();
            self.far_planes -= placed.iter().filter(|(_, place)| !place.is_near()).count();
            if let Some(order) = &mut self.order {
                let queued = placed.iter();
                queued.for_each(|(page, place)| order.unqueue(*page, (size, kind), *place));
            }
            let places: Vec<PlanePlace> = placed.iter().map(|(_, place)| *place).collect();
            self.planes[size][kind as usize].free(&places);
        }
        for page in freed {
            self.known.forget(page);
            self.records.free(page);
        }
        if self.records.count() == 0 {
            self.order = self.order.take().map(|_| LeaveOrder::default());
        }
    }

    /// Records that a page table wants a page near, so that it stays there.
    pub(crate) fn wish_near(&mut self, page: PageId) {
        self.change_wishes(page, |wishes| wishes + 1);
    }

    /// Records that a page table no longer wants a page near.
    pub(crate) fn drop_wish(&mut self, page: PageId) {
        self.change_wishes(page, |wishes| wishes - 1);
    }

    fn change_wishes(&mut self, page: PageId, change: impl Fn(u32) -> u32) {
        let Some(order) = &mut self.order else { return };
        let places = PlaneKind::BOTH.map(|kind| self.records.place(page, kind));
        let size = self.records.size(page);
        for kind in PlaneKind::BOTH {
            order.unqueue(page, (size, kind), places[kind as usize]);
        }
        let wishes = order.wishes_mut(page);
        *wishes = change(*wishes);
        for kind in PlaneKind::BOTH {
            order.queue(page, (size, kind), places[kind as usize]);
        }
    }

    /// Records a plane's new location and frees its old slot. The bytes are the same.
    pub(super) fn move_plane(&mut self, page: PageId, kind: PlaneKind, to: PlanePlace) {
        let from = self.place(page, kind);
        if let Some(order) = &mut self.order {
            let size = self.records.size(page);
            order.unqueue(page, (size, kind), from);
            order.queue(page, (size, kind), to);
        }
        self.records.set_place(page, kind, to);
        self.known.note_move(page, from, to);
        self.far_planes = self.far_planes + usize::from(!to.is_near()) - usize::from(!from.is_near());
        if !from.is_near() {
            // A load from the old location may be in progress.
            self.offload_mut().settle();
        }
        self.planes_mut(page, kind).free_for_reuse(from);
    }

    /// Near planes of keys and of values that a write to this page needs: a shared page is copied, and a far page is
    /// loaded.
    pub(crate) fn planes_to_write(&self, page: PageId) -> [usize; 2] {
        let is_shared = self.is_shared(page);
        PlaneKind::BOTH.map(|kind| usize::from(is_shared || !self.place(page, kind).is_near()))
    }

    /// Loads the planes of a page so that they can be written; room for them must exist.
    pub(crate) fn bring(&mut self, page: PageId, id: impl Fn(PlaneKind) -> PlaneId) -> Result<(), KvError> {
        let read = |kind: PlaneKind| -> Result<Option<Vec<u8>>, KvError> {
            let place = self.place(page, kind);
            let far = (!place.is_near()).then(|| self.planes(page, kind).bytes(place, id(kind)));
            Ok(far.transpose()?.map(|bytes| bytes.to_vec()))
        };
        let far = [read(PlaneKind::Keys)?, read(PlaneKind::Values)?];
        self.offload_mut().forget(&[page]);
        for (kind, bytes) in PlaneKind::BOTH.into_iter().zip(far) {
            if let Some(bytes) = bytes {
                let near = &mut self.planes_mut(page, kind).near;
                let slot = near.take();
                near.bytes_mut(slot).copy_from_slice(&bytes);
                self.move_plane(page, kind, PlanePlace::Near(slot));
            }
        }
        Ok(())
    }

    /// A near copy of a page with one holder; room for it must exist.
    pub(crate) fn copy(
        &mut self,
        page: PageId,
        (table, row): (usize, u64),
        id: impl Fn(PlaneKind) -> PlaneId,
    ) -> Result<PageId, KvError> {
        let read = |kind: PlaneKind| self.bytes(page, kind, id(kind)).map(|bytes| bytes.to_vec());
        let planes = [read(PlaneKind::Keys)?, read(PlaneKind::Values)?];
        let copy = self.take(table, row);
        for (kind, bytes) in PlaneKind::BOTH.into_iter().zip(planes) {
            self.bytes_mut(copy, kind).copy_from_slice(&bytes);
        }
        Ok(copy)
    }

    /// The bytes of a near plane, writable for the page's only holder.
    pub(crate) fn bytes_mut(&mut self, page: PageId, kind: PlaneKind) -> &mut [u8] {
        let slot = self.writable(page, kind);
        self.planes_mut(page, kind).near.bytes_mut(slot)
    }

    /// A near plane, writable for the page's only holder.
    pub(crate) fn plane_mut(&mut self, page: PageId, kind: PlaneKind) -> PlaneMut<'_> {
        let slot = self.writable(page, kind);
        self.planes_mut(page, kind).near.plane_mut(slot)
    }

    fn writable(&self, page: PageId, kind: PlaneKind) -> Slot {
        assert!(!self.is_shared(page), "a page is written while one sequence holds it");
        match self.place(page, kind) {
            PlanePlace::Near(slot) => slot,
            _ => unreachable!("pages are brought near before they are written to"),
        }
    }

    /// Changes a plane in its tier, for the page's only holder.
    pub(crate) fn change(
        &mut self,
        page: PageId,
        kind: PlaneKind,
        id: PlaneId,
        change: impl FnOnce(&mut PlaneMut<'_>),
    ) -> Result<(), KvError> {
        assert!(!self.is_shared(page), "a page is written while one sequence holds it");
        self.forget_contents(page);
        self.renew(page);
        let place = self.place(page, kind);
        self.planes_mut(page, kind).change(place, id, change)
    }

    /// Drops all knowledge of a page that will change.
    pub(crate) fn forget_contents(&mut self, page: PageId) {
        self.known.forget(page);
        self.offload_mut().forget(&[page]);
    }

    /// Moves near planes together after many were freed, so that slabs become empty.
    pub(crate) fn defragment(&mut self) {
        for (size, kind) in (0..self.planes.len()).flat_map(|size| PlaneKind::BOTH.map(|kind| (size, kind))) {
            let near = &mut self.planes[size][kind as usize].near;
            while let Some(slab) = near.spare_slab() {
                let records = &self.records;
                let of_size: Vec<PageId> = records.ids().filter(|page| records.size(*page) == size).collect();
                for page in of_size {
                    match self.records.place(page, kind) {
                        PlanePlace::Near(slot) if slot.slab() == slab => {
                            self.records
                                .set_place(page, kind, PlanePlace::Near(near.move_down(slot)));
                        }
                        _ => {}
                    }
                }
                near.trim();
            }
        }
    }

    /// Bytes of near planes and of planes being loaded.
    pub(crate) fn mapped_bytes(&self) -> usize {
        let planes: usize = self.planes.iter().flatten().map(PlaneStore::mapped_bytes).sum();
        planes + self.offload().allocated_bytes()
    }

    pub(crate) fn bookkeeping_bytes(&self) -> usize {
        let planes: usize = self.planes.iter().flatten().map(PlaneStore::bookkeeping_bytes).sum();
        let order = self.order.as_ref().map_or(0, LeaveOrder::bookkeeping_bytes);
        planes + order + self.records.bookkeeping_bytes() + self.known.bookkeeping_bytes()
    }

    pub(crate) fn forget_cached_files(&mut self) -> Result<(), KvError> {
        self.offload_mut().forget_all();
        let files = self.planes.iter().flatten().filter_map(|planes| planes.disk.as_ref());
        files.into_iter().try_for_each(|files| files.forget_cached())
    }
}
