//! The pages on the device and their slots, within a budget.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use riffle_device::{LayerPages, SequenceId};
use riffle_kv::{CacheShape, PageVersion};

use super::heads_of;
use super::memory::{PageMemory, PagePlace};
use crate::{CudaError, Region};

/// The pages of all sequences in a fixed number of slots, found by version. A page of several sequences has one slot,
/// and overwritten or freed pages are never found. The first page and the newest of each (layer, KV head) of a
/// sequence stay. If there is no room, the oldest of the others leave, and pages of fewest sequences leave first.
/// Another order does not help a policy that reads everything, and selected pages rarely come through the ring.
pub(super) struct Residence {
    kv_heads: usize,
    memory: PageMemory,
    resident: HashMap<PageVersion, Resident>,
    /// Removable pages in the order of removal: all except first pages.
    order: BTreeSet<Rank>,
    sequences: BTreeMap<SequenceId, Tables>,
    free: Vec<usize>,
}

/// The latest known versions of a sequence's pages, by (layer, KV head); `None` for unknown ones.
type Tables = Vec<Vec<Option<PageVersion>>>;

/// Resident part of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) slot: usize,
    /// Loaded tokens.
    pub(super) tokens: usize,
}

struct Resident {
    held: Held,
    table: usize,
    page: usize,
    holders: Vec<SequenceId>,
}

/// Order of removal: the page with the lowest rank first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    holders: usize,
    page: usize,
    table: usize,
    version: PageVersion,
}

impl Resident {
    fn rank(&self, version: PageVersion) -> Rank {
        Rank {
            holders: self.holders.len(),
            page: self.page,
            table: self.table,
            version,
        }
    }
}

impl Residence {
    pub(super) fn new(shape: &CacheShape, memory: PageMemory) -> Self {
        Self {
            kv_heads: heads_of(shape).kv_heads,
            resident: HashMap::new(),
            order: BTreeSet::new(),
            sequences: BTreeMap::new(),
            free: (0..memory.slots()).rev().collect(),
            memory,
        }
    }

    /// Number of empty slots.
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// Bytes of pages in slots.
    pub(super) fn used_bytes(&self) -> u64 {
        ((self.memory.slots() - self.free.len()) * self.memory.page_bytes()) as u64
    }

    /// Bytes of a sequence's pages in slots, including shared ones.
    pub(super) fn bytes_of(&self, sequence: SequenceId) -> u64 {
        let tables = self.sequences.get(&sequence).into_iter().flatten();
        let pages = tables.flatten().flatten();
        let resident = pages.filter(|version| self.resident.contains_key(version));
        (resident.count() * self.memory.page_bytes()) as u64
    }

    /// Allocated bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Number of temporary places.
    pub(super) fn visitors(&self) -> usize {
        self.memory.visitors()
    }

    pub(super) fn at(&self, place: PagePlace) -> Region<'_> {
        self.memory.at(place)
    }

    pub(super) fn find(&self, version: PageVersion) -> Option<Held> {
        self.resident.get(&version).map(|resident| resident.held)
    }

    /// Records that a resident page now has this many tokens.
    pub(super) fn extend(&mut self, version: PageVersion, tokens: usize) {
        if let Some(resident) = self.resident.get_mut(&version) {
            resident.held.tokens = tokens;
        }
    }

    /// Records the current pages of a layer of a sequence. Its earlier pages leave, unless other sequences have them.
    pub(super) fn enter(&mut self, of: LayerPages<'_>) {
        for (kv_head, versions) in of.versions.iter().enumerate() {
            self.enter_head(of.sequence, of.layer, kv_head, 0, versions);
        }
    }

    /// As [`enter`](Self::enter), for the pages of one KV head from page `first` on.
    pub(super) fn enter_head(
        &mut self,
        sequence: SequenceId,
        layer: usize,
        kv_head: usize,
        first: usize,
        versions: &[PageVersion],
    ) {
        let number = layer * self.kv_heads + kv_head;
        let tables = self.sequences.entry(sequence).or_default();
        tables.resize(tables.len().max(number + 1), Vec::new());
        let table = &mut tables[number];
        table.resize(table.len().max(first), None);
        let pairs = table[first..].iter().zip(versions);
        let same = pairs.take_while(|(before, now)| **before == Some(**now)).count();
        let before = table.split_off(first + same);
        let now = &versions[same..];
        table.extend(now.iter().map(|version| Some(*version)));
        let stay: HashSet<PageVersion> = now.iter().copied().collect();
        for version in before.into_iter().flatten().filter(|version| !stay.contains(version)) {
            self.release(sequence, version);
        }
        for (version, page) in now.iter().zip(first + same..) {
            self.hold(sequence, *version, number, page);
        }
    }

    /// A slot for a page of a layer, or `None` if there is none. Pages of this layer keep their slots, because they
    /// are being read.
    pub(super) fn place(
        &mut self,
        sequence: SequenceId,
        layer: usize,
        kv_head: usize,
        page: usize,
        version: PageVersion,
    ) -> Result<Option<usize>, CudaError> {
        let placed = Resident {
            held: Held { slot: 0, tokens: 0 },
            table: layer * self.kv_heads + kv_head,
            page,
            holders: vec![sequence],
        };
        if self.free.is_empty() && !self.send_away(&placed, placed.rank(version), layer) {
            return Ok(None);
        }
        let Some(slot) = self.free.last().copied() else {
            return Ok(None);
        };
        self.memory.make(slot)?;
        self.free.pop();
        self.insert(
            version,
            Resident {
                held: Held { slot, tokens: 0 },
                ..placed
            },
        );
        Ok(Some(slot))
    }

    /// Frees the slot of the page with the lowest rank for a page with a higher rank.
    fn send_away(&mut self, newer: &Resident, rank: Rank, layer: usize) -> bool {
        let sequence = newer.holders[0];
        let stays = newer.page == 0 || self.is_newest(newer);
        let candidates = self.order.iter().take_while(|candidate| stays || **candidate < rank);
        let leaves = |candidate: &&Rank| {
            let resident = &self.resident[&candidate.version];
            let is_read = resident.table / self.kv_heads == layer && resident.holders.contains(&sequence);
            !is_read && !self.is_newest(resident)
        };
        let Some(version) = candidates.into_iter().find(leaves).map(|found| found.version) else {
            return false;
        };
        if let Some(resident) = self.remove(version) {
            self.free.push(resident.held.slot);
        }
        true
    }

    /// True for the last page of one of its holders, which will be written to.
    fn is_newest(&self, resident: &Resident) -> bool {
        resident.holders.iter().any(|holder| {
            let table = self.sequences.get(holder).and_then(|tables| tables.get(resident.table));
            table.is_some_and(|table| resident.page + 1 >= table.len())
        })
    }

    fn insert(&mut self, version: PageVersion, resident: Resident) {
        if resident.page > 0 {
            self.order.insert(resident.rank(version));
        }
        self.resident.insert(version, resident);
    }

    fn remove(&mut self, version: PageVersion) -> Option<Resident> {
        let resident = self.resident.remove(&version)?;
        self.order.remove(&resident.rank(version));
        Some(resident)
    }

    fn hold(&mut self, sequence: SequenceId, version: PageVersion, table: usize, page: usize) {
        if let Some(mut resident) = self.remove(version) {
            if !resident.holders.contains(&sequence) {
                resident.holders.push(sequence);
            }
            (resident.table, resident.page) = (table, page);
            self.insert(version, resident);
        }
    }

    fn release(&mut self, sequence: SequenceId, version: PageVersion) {
        if let Some(mut resident) = self.remove(version) {
            resident.holders.retain(|holder| *holder != sequence);
            if resident.holders.is_empty() {
                self.free.push(resident.held.slot)
            } else {
                self.insert(version, resident)
            }
        }
    }

    /// Gives a sequence the pages of another.
    pub(super) fn fork(&mut self, from: SequenceId, to: SequenceId) {
        let tables = self.sequences.get(&from).cloned().unwrap_or_default();
        for (number, table) in tables.iter().enumerate() {
            for (page, version) in table.iter().enumerate() {
                if let Some(version) = version {
                    self.hold(to, *version, number, page);
                }
            }
        }
        self.sequences.insert(to, tables);
    }

    /// Forgets pages after the first `tokens` tokens of a sequence, of one (layer, KV head) or of all.
    pub(super) fn truncate(
        &mut self,
        sequence: SequenceId,
        head: Option<(usize, usize)>,
        tokens: usize,
        page_tokens: usize,
    ) {
        let kv_heads = self.kv_heads;
        let pages = tokens.div_ceil(page_tokens);
        let mut left = Vec::new();
        for (number, table) in self.sequences.get_mut(&sequence).into_iter().flatten().enumerate() {
            if head.is_none_or(|(layer, kv_head)| number == layer * kv_heads + kv_head) {
                left.extend(table.drain(pages.min(table.len())..).flatten());
            }
        }
        left.into_iter().for_each(|version| self.release(sequence, version));
    }

    /// Forgets a sequence.
    pub(super) fn end(&mut self, sequence: SequenceId) {
        let tables = self.sequences.remove(&sequence).unwrap_or_default();
        let pages = tables.into_iter().flatten().flatten();
        pages.for_each(|version| self.release(sequence, version));
    }

    /// Forgets every page.
    pub(super) fn clear(&mut self) {
        self.resident.clear();
        self.order.clear();
        self.sequences.clear();
        self.free = (0..self.memory.slots()).rev().collect();
    }
}

#[cfg(all(test, feature = "emulated"))]
mod tests {
    use riffle_attention::Format;
    use riffle_kv::{LayerShape, LayerShapes};

    use super::*;
    use crate::{EmulatedOptions, Gpu, KernelCache};

    const SEQUENCES: [SequenceId; 2] = [SequenceId(1), SequenceId(2)];

    /// Two layers of two KV heads.
    fn residence(slots: usize) -> Residence {
        let shape = CacheShape {
            layers: LayerShapes::alike(2, LayerShape::new(2, 32)),
            page_tokens: 64,
            key_format: Format::F16,
            value_format: Format::F16,
        };
        let gpu = Gpu::emulated(EmulatedOptions::default(), KernelCache::of_user()).expect("memory needs no compiler");
        Residence::new(&shape, PageMemory::new(&gpu, 256, slots, 1).unwrap())
    }

    fn versions(pages: usize) -> Vec<PageVersion> {
        (0..pages).map(|_| PageVersion::unused()).collect()
    }

    #[test]
    #[cfg_attr(not(unix), ignore = "an emulated device compiles its kernels with g++")]
    fn the_first_and_the_newest_pages_of_every_sequence_stay_within_the_slots() {
        let mut residence = residence(18);
        let pages: Vec<Vec<PageVersion>> = (0..8).map(|_| versions(8)).collect();
        for page in 0..8 {
            for (number, versions) in pages.iter().enumerate() {
                let (sequence, layer, kv_head) = (SEQUENCES[number / 4], number / 2 % 2, number % 2);
                residence.enter_head(sequence, layer, kv_head, 0, &versions[..=page]);
                residence.place(sequence, layer, kv_head, page, versions[page]).unwrap();
                assert!(residence.used_bytes() <= 18 * 256);
            }
        }
        for versions in &pages {
            let held: Vec<bool> = versions.iter().map(|page| residence.find(*page).is_some()).collect();
            assert!(held[0] && held[7], "{held:?}");
        }
        residence.end(SEQUENCES[0]);
        assert!(residence.bytes_of(SEQUENCES[1]) == residence.used_bytes());
        residence.end(SEQUENCES[1]);
        assert_eq!((residence.used_bytes(), residence.free()), (0, 18));
    }

    #[test]
    #[cfg_attr(not(unix), ignore = "an emulated device compiles its kernels with g++")]
    fn what_is_cut_off_or_replaced_frees_its_slots_unless_another_sequence_holds_it() {
        let mut residence = residence(16);
        let mut pages = versions(3);
        residence.enter_head(SEQUENCES[0], 1, 0, 0, &pages);
        for (page, version) in pages.iter().enumerate() {
            let slot = residence.place(SEQUENCES[0], 1, 0, page, *version).unwrap().unwrap();
            residence.extend(*version, 64);
            assert_eq!(residence.find(*version), Some(Held { slot, tokens: 64 }));
        }
        residence.fork(SEQUENCES[0], SEQUENCES[1]);
        residence.truncate(SEQUENCES[0], None, 70, 64);
        assert_eq!(
            (residence.bytes_of(SEQUENCES[0]), residence.used_bytes()),
            (2 * 256, 3 * 256)
        );
        let before = std::mem::replace(&mut pages[1], PageVersion::unused());
        residence.enter_head(SEQUENCES[1], 1, 0, 0, &pages);
        assert!(residence.find(before).is_some() && residence.find(pages[1]).is_none());
        residence.truncate(SEQUENCES[0], Some((1, 0)), 0, 64);
        assert!(residence.find(before).is_none());
        assert_eq!(residence.used_bytes(), 2 * 256);
    }
}
