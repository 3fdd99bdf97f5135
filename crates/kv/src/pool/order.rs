//! The order in which planes leave a tier: the oldest first.

use std::collections::BTreeSet;

use super::page::{PageId, PlaneKind, PlanePlace};
use crate::shape::MAX_LAYER_KINDS;

/// The planes that may move to a farther tier, oldest first. A page is as old as its row: the pages with the same
/// number in all tables of a sequence. A page that a sequence wants near is in no queue of the nearest tier.
#[derive(Debug, Default)]
pub(crate) struct LeaveOrder {
    /// Ages by page.
    ages: Vec<Age>,
    /// `[page size][keys, values]`: near planes in the order in which they leave.
    near: [[BTreeSet<Queued>; 2]; MAX_LAYER_KINDS],
    ram: [[BTreeSet<Queued>; 2]; MAX_LAYER_KINDS],
}

#[derive(Debug, Clone, Copy, Default)]
struct Age {
    /// Count of the pool when the row's first page was taken.
    row: u64,
    table: u32,
    /// Number of page tables that want the page near.
    wishes: u32,
}

/// Keys or values of pages of a size.
pub(crate) type SizedKind = (usize, PlaneKind);

/// (row, table, page)
type Queued = (u64, u32, PageId);

impl LeaveOrder {
    /// Records a new page.
    pub(crate) fn begin(&mut self, id: PageId, row: u64, table: usize) {
        if id.index() >= self.ages.len() {
            self.ages.resize(id.index() + 1, Age::default());
        }
        self.ages[id.index()] = Age {
            row,
            table: table as u32,
            wishes: 0,
        };
    }

    /// The number of the page's table: its layer and KV head.
    pub(crate) fn table(&self, id: PageId) -> usize {
        self.ages[id.index()].table as usize
    }

    pub(crate) fn wishes_mut(&mut self, id: PageId) -> &mut u32 {
        &mut self.ages[id.index()].wishes
    }

    /// Adds a plane to the queue of its tier.
    pub(crate) fn queue(&mut self, id: PageId, kind: SizedKind, place: PlanePlace) {
        let queued = self.queued(id);
        if let Some(queue) = self.queue_of(id, kind, place) {
            queue.insert(queued);
        }
    }

    /// Removes a plane from its queue.
    pub(crate) fn unqueue(&mut self, id: PageId, kind: SizedKind, place: PlanePlace) {
        let queued = self.queued(id);
        if let Some(queue) = self.queue_of(id, kind, place) {
            queue.remove(&queued);
        }
    }

    /// The oldest plane that may leave the nearest tier.
    pub(crate) fn oldest_near(&self, (size, kind): SizedKind) -> Option<PageId> {
        self.near[size][kind as usize].first().map(|(.., id)| *id)
    }

    /// The oldest plane in a separate RAM tier.
    pub(crate) fn oldest_in_ram(&self, (size, kind): SizedKind) -> Option<PageId> {
        self.ram[size][kind as usize].first().map(|(.., id)| *id)
    }

    pub(crate) fn bookkeeping_bytes(&self) -> usize {
        let queued: usize = self.near.iter().chain(&self.ram).flatten().map(BTreeSet::len).sum();
        // The nodes of a B-tree are two thirds full on average, hence the factor 3/2.
        self.ages.capacity() * size_of::<Age>() + queued * size_of::<Queued>() * 3 / 2
    }

    fn queued(&self, id: PageId) -> Queued {
        let age = &self.ages[id.index()];
        (age.row, age.table, id)
    }

    fn queue_of(&mut self, id: PageId, (size, kind): SizedKind, place: PlanePlace) -> Option<&mut BTreeSet<Queued>> {
        match place {
            PlanePlace::Near(_) if self.ages[id.index()].wishes > 0 => None,
            PlanePlace::Near(_) => Some(&mut self.near[size][kind as usize]),
            PlanePlace::Ram(_) => Some(&mut self.ram[size][kind as usize]),
            PlanePlace::Disk(_) => None,
        }
    }
}
