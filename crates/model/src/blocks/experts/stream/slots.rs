//! The slots of one class of experts, and their entries.

use std::sync::Arc;

use riffle_linear::PackedMatrix;

/// The matrices of an expert: gate, up and down.
pub(super) type Matrices = [Option<PackedMatrix>; 3];

/// An expert of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub(crate) layer: u32,
    pub(crate) expert: u32,
}

#[derive(Default)]
pub(super) struct Slot {
    pub(super) entry: Option<Entry>,
    pub(super) content: Content,
    /// True until the expert is first used after its load.
    pub(super) is_fresh: bool,
    /// The time of the slot's latest use.
    pub(super) used_at: u64,
}

#[derive(Default)]
pub(super) enum Content {
    /// No memory, because a smaller budget removed the slot.
    #[default]
    Absent,
    /// Memory without weights, from an earlier entry if there was one.
    Empty(Matrices),
    /// Loaders read the parts. Finished parts are in `parts`.
    Loading {
        left: usize,
        has_failed: bool,
        parts: Matrices,
    },
    /// Weights, ready for products.
    Ready(Arc<Matrices>),
}

/// The slots of experts of one size.
pub(super) struct Slots {
    most: usize,
    /// Number of slots with memory.
    present: usize,
    pub(super) slots: Vec<Slot>,
}

impl Slots {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            present: 0,
            slots: Vec::new(),
        }
    }

    /// The number of slots in the budget.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Changes this number; [`Self::shrink`] frees the slots beyond it.
    pub(super) fn set_most(&mut self, most: usize) {
        self.most = most;
    }

    /// Number of slots with memory.
    pub(super) fn present(&self) -> usize {
        self.present
    }

    /// Frees slots beyond the budget: first empty ones, then the entries of lowest rank that are not in use. Returns
    /// these entries.
    pub(super) fn shrink(&mut self, rank: impl Fn(Entry) -> f64) -> Vec<Entry> {
        let mut emptied = Vec::new();
        while self.present > self.most {
            let number = self.empty().or_else(|| self.lowest(false, &rank));
            let Some(number) = number else { break };
            let slot = &mut self.slots[number];
            slot.content = Content::Absent;
            self.present -= 1;
            emptied.extend(slot.entry.take());
        }
        emptied
    }

    /// A slot for a load: a new one, or the slot of the unused entry with the lowest rank, together with that entry.
    /// Experts that were loaded early and not used yet lose their slots last. An early load (`is_early`) never takes
    /// such a slot.
    pub(super) fn take(&mut self, is_early: bool, rank: impl Fn(Entry) -> f64) -> Option<(usize, Option<Entry>)> {
        if self.present > self.most {
            return None;
        }
        if let Some(empty) = self.empty() {
            return Some((empty, None));
        }
        if self.present < self.most {
            let absent = |slot: &Slot| matches!(slot.content, Content::Absent);
            let number = self.slots.iter().position(absent).unwrap_or(self.slots.len());
            if number == self.slots.len() {
                self.slots.push(Slot::default());
            }
            self.slots[number].content = Content::Empty([None, None, None]);
            self.present += 1;
            return Some((number, None));
        }
        let number = self.lowest(is_early, rank)?;
        let slot = &mut self.slots[number];
        let entry = slot.entry.take();
        let emptied = Content::Empty([None, None, None]);
        let Content::Ready(matrices) = std::mem::replace(&mut slot.content, emptied) else {
            return Some((number, entry));
        };
        // No other holder exists, and the cache's lock prevents new ones.
        if let Ok(matrices) = Arc::try_unwrap(matrices) {
            slot.content = Content::Empty(matrices);
        }
        Some((number, entry))
    }

    fn empty(&self) -> Option<usize> {
        let is_empty = |slot: &Slot| matches!(slot.content, Content::Empty(_));
        self.slots.iter().position(is_empty)
    }

    /// The slot of the unused entry with the lowest rank.
    fn lowest(&self, is_early: bool, rank: impl Fn(Entry) -> f64) -> Option<usize> {
        let mut found: Option<(usize, (bool, f64, u64))> = None;
        for (number, slot) in self.slots.iter().enumerate() {
            let (Content::Ready(matrices), Some(entry)) = (&slot.content, slot.entry) else {
                continue;
            };
            if Arc::strong_count(matrices) > 1 || (slot.is_fresh && is_early) {
                continue;
            }
            let order = (slot.is_fresh, rank(entry), slot.used_at);
            let is_lower = |(_, lowest): &(usize, (bool, f64, u64))| {
                let ranks = order.1.total_cmp(&lowest.1).then(order.2.cmp(&lowest.2));
                order.0.cmp(&lowest.0).then(ranks).is_lt()
            };
            if found.as_ref().is_none_or(is_lower) {
                found = Some((number, order));
            }
        }
        found.map(|(number, _)| number)
    }
}
