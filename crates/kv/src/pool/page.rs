//! Records of pages: their holders and the locations of their planes.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::arena::Slot;
use crate::shape::MAX_LAYER_KINDS;
use crate::slots::SlotMap;

/// Identifies a page of a [`PagePool`](crate::PagePool) as long as a sequence holds it. After the last sequence
/// releases the page, its id may be reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(u32);

#[cfg(test)]
impl PageId {
    pub(crate) fn from_number(number: u32) -> Self {
        Self(number)
    }
}

/// Version of a page's contents. As long as a page keeps its version, the tokens copied from it are unchanged to the
/// bit; appending tokens keeps the version. The version changes when existing bytes are overwritten or the id is
/// reused. No two pages of a process ever have the same version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageVersion([u16; 3]);

impl PageVersion {
    /// A version that no page has.
    pub fn unused() -> Self {
        // All pools share one counter, because one holder of copies may copy pages of several pools.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        assert!(number < 1 << 48, "at a million versions a second these last nine years");
        Self([32, 16, 0].map(|shift| (number >> shift) as u16))
    }
}

/// The planes of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlaneKind {
    Keys,
    Values,
}

impl PlaneKind {
    pub(crate) const BOTH: [Self; 2] = [Self::Keys, Self::Values];

    /// `"keys"` or `"values"`.
    pub(crate) fn what(self) -> &'static str {
        match self {
            Self::Keys => "keys",
            Self::Values => "values",
        }
    }
}

/// Number of pages by size.
pub(crate) type PageCounts = [usize; MAX_LAYER_KINDS];

/// The tier and location of a plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlanePlace {
    /// A slot in the nearest tier.
    Near(Slot),
    /// A slot in a separate RAM tier.
    Ram(Slot),
    /// A location in the files.
    Disk(u32),
}

impl PlanePlace {
    pub(crate) fn is_near(self) -> bool {
        matches!(self, Self::Near(_))
    }
}

/// The pages of a pool, by id.
#[derive(Debug, Default)]
pub(crate) struct PageRecords {
    records: Vec<Record>,
    used: SlotMap,
    counts: PageCounts,
}

/// A page's record, of 20 bytes, because small pages are many.
#[derive(Debug, Clone, Copy)]
struct Record {
    version: PageVersion,
    /// Number of page tables with this page; 0 for a free id.
    holders: u32,
    /// Slot, or location on disk, of keys and of values.
    numbers: [u32; 2],
    tiers: Tiers,
    /// Number of the page's size ([`CacheShape::sizes`](crate::CacheShape)).
    size: u8,
}

#[derive(Debug, Clone, Copy)]
enum Tier {
    Near,
    Ram,
    Disk,
}

/// The tiers of keys and of values, four bits each.
#[derive(Debug, Clone, Copy, Default)]
struct Tiers(u8);

impl Tiers {
    fn get(self, kind: PlaneKind) -> Tier {
        match self.0 >> (4 * kind as u8) & 0xF {
            0 => Tier::Near,
            1 => Tier::Ram,
            _ => Tier::Disk,
        }
    }

    fn set(&mut self, kind: PlaneKind, tier: Tier) {
        let shift = 4 * kind as u8;
        self.0 = self.0 & !(0xF << shift) | (tier as u8) << shift;
    }
}

impl PageId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

impl PageRecords {
    /// Pages with a holder.
    pub(crate) fn count(&self) -> usize {
        self.counts.iter().sum()
    }

    /// Pages with a holder, by size.
    pub(crate) fn counts(&self) -> PageCounts {
        self.counts
    }

    /// A new page of a size with one holder and near planes.
    pub(crate) fn take(&mut self, size: usize, slots: [Slot; 2]) -> PageId {
        let index = self.used.lowest_free();
        self.used.take(index);
        let record = Record {
            version: PageVersion::unused(),
            holders: 1,
            numbers: slots.map(Slot::number),
            tiers: Tiers::default(),
            size: size as u8,
        };
        if index == self.records.len() {
            if index == self.records.capacity() {
                // Doubling would waste memory with many small pages.
                self.records.reserve_exact((index / 8).max(16));
            }
            self.records.push(record);
        } else {
            self.records[index] = record;
        }
        self.counts[size] += 1;
        PageId(u32::try_from(index).expect("a plane takes bytes, so slots run out before ids"))
    }

    /// Forgets a page.
    pub(crate) fn free(&mut self, id: PageId) {
        self.records[id.index()].holders = 0;
        self.used.free(id.index());
        self.counts[self.size(id)] -= 1;
        self.records.truncate(self.used.end());
        if self.records.is_empty() {
            *self = Self::default();
        }
    }

    /// The number of a page's size.
    pub(crate) fn size(&self, id: PageId) -> usize {
        usize::from(self.records[id.index()].size)
    }

    pub(crate) fn version(&self, id: PageId) -> PageVersion {
        self.records[id.index()].version
    }

    /// Gives a page a new version.
    pub(crate) fn renew(&mut self, id: PageId) {
        self.records[id.index()].version = PageVersion::unused();
    }

    pub(crate) fn holders(&self, id: PageId) -> u32 {
        self.records[id.index()].holders
    }

    pub(crate) fn holders_mut(&mut self, id: PageId) -> &mut u32 {
        &mut self.records[id.index()].holders
    }

    pub(crate) fn place(&self, id: PageId, kind: PlaneKind) -> PlanePlace {
        let record = &self.records[id.index()];
        let number = record.numbers[kind as usize];
        match record.tiers.get(kind) {
            Tier::Near => PlanePlace::Near(Slot::of_number(number)),
            Tier::Ram => PlanePlace::Ram(Slot::of_number(number)),
            Tier::Disk => PlanePlace::Disk(number),
        }
    }

    pub(crate) fn set_place(&mut self, id: PageId, kind: PlaneKind, place: PlanePlace) {
        let record = &mut self.records[id.index()];
        let (tier, number) = match place {
            PlanePlace::Near(slot) => (Tier::Near, slot.number()),
            PlanePlace::Ram(slot) => (Tier::Ram, slot.number()),
            PlanePlace::Disk(number) => (Tier::Disk, number),
        };
        record.tiers.set(kind, tier);
        record.numbers[kind as usize] = number;
    }

    /// Ids of the pages with a holder, ascending.
    pub(crate) fn ids(&self) -> impl Iterator<Item = PageId> + use<> {
        let held: Vec<PageId> = (0..self.records.len())
            .filter(|index| self.records[*index].holders > 0)
            .map(|index| PageId(index as u32))
            .collect();
        held.into_iter()
    }

    pub(crate) fn bookkeeping_bytes(&self) -> usize {
        self.records.capacity() * size_of::<Record>() + self.used.bookkeeping_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_keeps_where_both_planes_lie_and_a_freed_id_is_used_again() {
        let slot = Slot::of_number;
        let mut records = PageRecords::default();
        let first = records.take(0, [slot(1), slot(2)]);
        let second = records.take(1, [slot(3), slot(4)]);
        records.set_place(first, PlaneKind::Values, PlanePlace::Disk(u32::MAX));
        records.set_place(second, PlaneKind::Keys, PlanePlace::Ram(slot(9)));
        assert_eq!(records.place(first, PlaneKind::Keys), PlanePlace::Near(slot(1)));
        assert_eq!(records.place(first, PlaneKind::Values), PlanePlace::Disk(u32::MAX));
        assert_eq!(records.place(second, PlaneKind::Keys), PlanePlace::Ram(slot(9)));
        let version = records.version(first);
        records.free(first);
        assert_eq!((records.count(), records.ids().collect::<Vec<_>>()), (1, vec![second]));
        assert_eq!(records.take(0, [slot(5), slot(6)]), first);
        assert_eq!((&records.counts()[..2], records.size(second)), (&[1, 1][..], 1));
        assert_ne!(records.version(first), version);
        records.free(first);
        records.free(second);
        assert_eq!((records.count(), records.bookkeeping_bytes()), (0, 0));
        assert_eq!(size_of::<Record>(), 20);
    }
}
