//! Pages come, leave for farther tiers when room is needed, and go.

use std::sync::Arc;

use super::{PlaneStore, PlaneTable, RamPlanes, Source};
use crate::KvError;
use crate::arena::Slot;

impl PlaneStore {
    /// Planes that `total` of them would put on disk, where at most `near_slots` of them may lie near.
    pub(crate) fn on_disk_of(&self, total: usize, near_slots: usize) -> usize {
        let ram = self.ram.as_ref().map_or(0, |ram| ram.slots);
        total.saturating_sub(near_slots).saturating_sub(ram)
    }

    /// Planes that may lie near, as far as this store alone is concerned.
    pub(crate) fn near_slots(&self) -> usize {
        self.near_slots
    }

    fn near_used(&self) -> usize {
        self.near.used_slots()
    }

    pub(crate) fn has_disk(&self) -> bool {
        self.disk.is_some()
    }

    /// Sees to it that `planes` more can be taken. Pages before `full(table)` may leave, the oldest first.
    pub(crate) fn make_room(&mut self, planes: usize, full: &dyn Fn(usize) -> usize) -> Result<(), KvError> {
        while self.near_slots.saturating_sub(self.near_used()) < planes
            || !self.near.reserve(planes, self.near_slots)?
        {
            let oldest = self.oldest(full, |table| table.far_end);
            let near_bytes = (self.near_slots as u64).saturating_mul(self.plane_bytes as u64);
            let too_little = KvError::NearBudget {
                what: self.what,
                needed_bytes: (self.near_used() + planes) as u64 * self.plane_bytes as u64,
                near_bytes: near_bytes.min(self.ledger.budget_bytes()),
                shared_bytes: self.shared_near_bytes() as u64,
            };
            self.send_away(oldest.ok_or(too_little)?)?;
        }
        Ok(())
    }

    /// Moves the oldest near plane of full pages one tier away; false where none may leave.
    pub(crate) fn send_oldest_away(&mut self, full: &dyn Fn(usize) -> usize) -> Result<bool, KvError> {
        match self.oldest(full, |table| table.far_end) {
            Some(table) => self.send_away(table).map(|()| true),
            None => Ok(false),
        }
    }

    /// The table whose oldest page behind its frontier is the oldest of all, of those that are full.
    fn oldest(&self, full: &dyn Fn(usize) -> usize, frontier: impl Fn(&PlaneTable) -> u32) -> Option<usize> {
        let tables = self.tables.iter().enumerate();
        let candidates = tables.map(|(number, table)| (frontier(table) as usize, table.left, number));
        let full = candidates.filter(|(page, _, number)| *page < full(*number));
        full.min_by_key(|(page, left, number)| (page + *left as usize, *number))
            .map(|(.., number)| number)
    }

    /// Moves the oldest near plane of a table one tier away.
    fn send_away(&mut self, table: usize) -> Result<(), KvError> {
        let page = self.tables[table].far_end as usize;
        let slot = self.slot(table, page);
        let number = match self.ram.is_some() {
            true => self.copy_to_ram(slot)?,
            false => {
                let disk = self
                    .disk
                    .as_ref()
                    .ok_or_else(|| self.too_little(self.near_used(), self.near_slots))?;
                let number = disk.write(table / self.kv_heads, self.near.bytes(slot))?;
                self.tables[table].disk_end = page as u32 + 1;
                number
            }
        };
        let entry = &mut self.tables[table];
        entry.slots[page] = number;
        entry.far_end = page as u32 + 1;
        self.near.free_for_reuse(slot);
        Ok(())
    }

    /// Copies a near plane to the RAM tier apart, from which the oldest leave for the disk where it is full.
    fn copy_to_ram(&mut self, slot: Slot) -> Result<u32, KvError> {
        loop {
            let RamPlanes { arena, slots } = self.ram.as_ref().expect("asked for where there is one");
            let (arena, slots) = (Arc::clone(arena), *slots);
            let mut arena = arena.write().expect("no thread panics while it holds the planes");
            let used = arena.used_slots();
            if used < slots && arena.reserve(1, slots)? {
                let target = arena.take();
                arena.bytes_mut(target).copy_from_slice(self.near.bytes(slot));
                return Ok(target.number());
            }
            let oldest = self.oldest(&|table| self.tables[table].far().end, |table| table.disk_end);
            let table = oldest.ok_or_else(|| self.too_little(used, slots))?;
            // Moves the oldest plane that lies in RAM to disk.
            let page = self.tables[table].disk_end as usize;
            let oldest = Slot::of_number(self.tables[table].slots[page]);
            let disk = self.disk.as_ref().ok_or_else(|| self.too_little(used, slots))?;
            let number = disk.write(table / self.kv_heads, arena.bytes(oldest))?;
            arena.free_for_reuse(oldest);
            let entry = &mut self.tables[table];
            entry.slots[page] = number;
            entry.disk_end = page as u32 + 1;
        }
    }

    fn too_little(&self, used: usize, slots: usize) -> KvError {
        KvError::NearBudget {
            what: self.what,
            needed_bytes: (used as u64 + 1) * self.plane_bytes as u64,
            near_bytes: (slots as u64).saturating_mul(self.plane_bytes as u64),
            shared_bytes: self.shared_near_bytes() as u64,
        }
    }

    /// Whether the last page of a table has to be [brought](Self::bring_last) before it is written to.
    pub(crate) fn must_bring_last(&self, table: usize) -> bool {
        let pages = self.pages(table);
        pages > 0 && (self.is_far(table, pages - 1) || self.shared_pages(table) == pages)
    }

    /// Makes the last page of a table one that lies near and is its own; room for it has been made.
    pub(crate) fn bring_last(&mut self, table: usize) -> Result<(), KvError> {
        let page = self.pages(table) - 1;
        if page < self.shared_pages(table) {
            self.own(table, page)?;
            self.drop_unnamed();
            return Ok(());
        }
        let bytes = self.bytes(table, page)?.to_vec();
        let slot = self.near.take();
        self.near.bytes_mut(slot).copy_from_slice(&bytes);
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
    }

    /// Takes `pages` pages from page `first` on out of tables; later ones move down.
    pub(crate) fn drain(&mut self, tables: std::ops::Range<usize>, first: usize, pages: usize) {
        let mut near = Vec::new();
        for table in tables {
            let end = first.saturating_add(pages).min(self.pages(table));
            let gone = first.min(end)..end;
            for page in gone.start.max(self.shared_pages(table))..gone.end {
                if self.is_far(table, page) {
                    self.forget_far(table, page);
                } else {
                    near.push(self.slot(table, page));
                }
            }
            let entry = &mut self.tables[table];
            entry.slots.drain(gone.clone());
            entry.slots.shrink_to(entry.slots.len() * 2);
            match entry.slots.len() {
                0 => entry.left = 0,
                held if gone.start < held => entry.left += gone.len() as u32,
                _ => {}
            }
            // Each bound moves down by what left before it.
            let bounds = [
                &mut entry.shared,
                &mut entry.first_far,
                &mut entry.disk_end,
                &mut entry.far_end,
            ];
            for bound in bounds {
                let before = (*bound as usize).clamp(gone.start, gone.end) - gone.start;
                *bound -= before as u32;
            }
            entry.begin_near();
        }
        self.near.free(&mut near);
        self.drop_unnamed();
    }

    pub(super) fn forget_far(&mut self, table: usize, page: usize) {
        match self.source(table, page) {
            Source::Disk(file, slot) => file.free([slot]),
            Source::Ram(arena, slot) => {
                let mut arena = arena.write().expect("no thread panics while it holds the planes");
                arena.free(&mut [slot]);
            }
        }
    }

    /// Gives back slabs that were reserved and not used.
    pub(crate) fn unreserve(&mut self) {
        self.near.trim();
    }

    /// Moves near planes together, so that other sequences can have the slabs that run empty.
    pub(crate) fn defragment(&mut self) {
        while let Some(slab) = self.near.spare_slab() {
            for table in &mut self.tables {
                let far = table.far();
                for page in table.shared as usize..table.slots.len() {
                    let slot = Slot::of_number(table.slots[page]);
                    if !far.contains(&page) && slot.slab() == slab {
                        table.slots[page] = self.near.move_down(slot).number();
                    }
                }
            }
            self.near.trim();
        }
    }
}
