//! Pages that several sequences hold.

use std::sync::Arc;

use super::PlaneStore;
use crate::KvError;
use crate::arena::Slot;
use crate::ledger::Taken;
use crate::shared::{NearPlanes, SharedPlace, SharedPlanes};

impl PlaneStore {
    /// Copies the shared pages of a table from page `first` on, so that they are its own; room for them has been made.
    pub(crate) fn own(&mut self, table: usize, first: usize) -> Result<(), KvError> {
        for page in (first..self.shared_pages(table)).rev() {
            let bytes = self.bytes(table, page)?.to_vec();
            let slot = self.near.take();
            self.near.bytes_mut(slot).copy_from_slice(&bytes);
            let entry = &mut self.tables[table];
            entry.slots[page] = slot.number();
            entry.shared = page as u32;
            entry.begin_near();
        }
        Ok(())
    }

    /// Moves page `page` of every table whose first own page it is to planes that may be shared, and names them there.
    ///
    /// # Errors
    /// [`KvError::NearBudget`] when the nearest tier has no room for a second copy of those that lie there: for that
    /// moment there are two. [`KvError::Memory`]. Nothing has changed then.
    pub(crate) fn publish(&mut self, page: usize) -> Result<Arc<SharedPlanes>, KvError> {
        let tables = 0..self.tables.len();
        let own = |table: &usize| self.shared_pages(*table) == page && page < self.pages(*table);
        let mut near = 0;
        let places = tables.clone().map(|table| {
            if !own(&table) {
                return SharedPlace::Nowhere;
            }
            let number = self.tables[table].slots[page];
            if !self.is_far(table, page) {
                near += 1;
                SharedPlace::Near(near - 1)
            } else if page < self.tables[table].disk_end as usize {
                SharedPlace::Disk(number)
            } else {
                SharedPlace::Ram(Slot::of_number(number))
            }
        });
        let places: Vec<SharedPlace> = places.collect();
        let bytes = near as usize * self.plane_bytes;
        let mut planes = SharedPlanes {
            places: Vec::new(),
            plane_bytes: self.plane_bytes,
            near: None,
            ram: self.ram.as_ref().map(|ram| Arc::clone(&ram.arena)),
            files: self.disk.clone(),
        };
        let mut freed = Vec::new();
        if near > 0 {
            let taken = Taken::take(&self.ledger, bytes as u64, "pages that are to be shared")?;
            let memory = self.device.allocate(bytes);
            let mut memory = memory.map_err(|source| KvError::Memory { bytes, source })?;
            for (table, place) in places.iter().enumerate() {
                if let SharedPlace::Near(number) = place {
                    let slot = self.slot(table, page);
                    let target = &mut memory.bytes_mut()[*number as usize * self.plane_bytes..][..self.plane_bytes];
                    target.copy_from_slice(self.near.bytes(slot));
                    freed.push(slot);
                }
            }
            memory.loaded(0..bytes);
            planes.near = Some(NearPlanes { memory, _taken: taken });
        }
        planes.places = places;
        let planes = Arc::new(planes);
        let number = self.name(&planes);
        for (table, place) in planes.places.iter().enumerate() {
            if *place != SharedPlace::Nowhere {
                self.tables[table].name_shared(page, number);
            }
        }
        self.near.free(&mut freed);
        Ok(planes)
    }

    /// Whether every table shares exactly its first `pages` pages.
    pub(crate) fn shares_exactly(&self, pages: usize) -> bool {
        self.tables.iter().all(|table| table.shared as usize == pages)
    }

    /// Whether every table shares page `page`.
    pub(crate) fn shares_beyond(&self, page: usize) -> bool {
        self.tables.iter().all(|table| table.shared as usize > page)
    }

    /// Puts shared planes in the place of page `page`, the first own one of every table.
    pub(crate) fn replace(&mut self, page: usize, planes: &Arc<SharedPlanes>) {
        let number = self.name(planes);
        let mut freed = Vec::new();
        for table in 0..self.tables.len() {
            if self.is_far(table, page) {
                self.forget_far(table, page);
            } else {
                freed.push(self.slot(table, page));
            }
            self.tables[table].name_shared(page, number);
        }
        self.near.free(&mut freed);
    }

    /// Adds shared planes to every table; all their pages are shared.
    pub(crate) fn adopt(&mut self, planes: &Arc<SharedPlanes>) {
        let number = self.name(planes);
        for table in &mut self.tables {
            table.slots.push(number);
            table.shared += 1;
            table.begin_near();
        }
    }

    /// Takes over the tables of a store of which every page is shared.
    pub(crate) fn adopt_all(&mut self, other: &Self) {
        self.shared.clone_from(&other.shared);
        self.tables.clone_from(&other.tables);
    }

    fn name(&mut self, planes: &Arc<SharedPlanes>) -> u32 {
        self.shared.push(Some(Arc::clone(planes)));
        self.shared.len() as u32 - 1
    }

    /// Lets go of shared planes that no table names any more.
    pub(crate) fn drop_unnamed(&mut self) {
        if self.shared.is_empty() {
            return;
        }
        let mut named = vec![false; self.shared.len()];
        for table in &self.tables {
            for number in &table.slots[..table.shared as usize] {
                named[*number as usize] = true;
            }
        }
        for (planes, named) in self.shared.iter_mut().zip(named) {
            if !named {
                *planes = None;
            }
        }
        let kept = self.shared.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        self.shared.truncate(kept);
    }
}
