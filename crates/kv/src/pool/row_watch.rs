//! Records changes of the known rows of a pool, for callers that report its contents to others.

use std::collections::HashMap;

use super::page::PlanePlace;
use crate::TextBlock;

/// The tier of a row of pages: the farthest tier of its planes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RowTier {
    /// Completely in the nearest tier.
    Near,
    /// A separate RAM tier.
    Ram,
    /// Files on disk.
    Disk,
}

/// A change of the rows that a sequence may [adopt](crate::KvCache::adopt).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowChange {
    /// A row can be adopted from now on.
    Known {
        /// Text of the row.
        block: TextBlock,
        /// Tier of the row.
        tier: RowTier,
    },
    /// A row moved to another tier.
    Moved {
        /// Key of the row's text.
        key: u128,
        /// Tier of the row before the move.
        from: RowTier,
        /// Tier of the row after the move.
        to: RowTier,
    },
    /// A row can no longer be adopted: its pages have changed, or no sequence holds them.
    Forgotten {
        /// Key of the row's text.
        key: u128,
        /// Last tier of the row.
        tier: RowTier,
    },
}

/// The known rows of one identity, and their changes since the last call.
#[derive(Debug)]
pub(super) struct RowWatch {
    pub(super) identity: Box<[u8]>,
    /// Watched rows by the pool's key.
    rows: HashMap<u128, WatchedRow>,
    changes: Vec<RowChange>,
}

#[derive(Debug)]
struct WatchedRow {
    key: u128,
    planes: PlaneCounts,
}

/// Number of a row's planes in each tier.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PlaneCounts([u32; 3]);

impl PlaneCounts {
    pub(crate) fn add(&mut self, place: PlanePlace) {
        self.0[tier_of(place) as usize] += 1;
    }

    /// The farthest tier with a plane.
    pub(crate) fn tier(&self) -> RowTier {
        let [_, ram, disk] = self.0;
        match (ram, disk) {
            (_, 1..) => RowTier::Disk,
            (1.., 0) => RowTier::Ram,
            (0, 0) => RowTier::Near,
        }
    }
}

impl RowWatch {
    pub(super) fn new(identity: &[u8]) -> Self {
        Self {
            identity: identity.into(),
            rows: HashMap::new(),
            changes: Vec::new(),
        }
    }

    pub(super) fn insert(&mut self, row: u128, block: TextBlock, planes: PlaneCounts) {
        self.rows.insert(row, WatchedRow { key: block.key, planes });
        let tier = planes.tier();
        self.changes.push(RowChange::Known { block, tier });
    }

    pub(super) fn move_plane(&mut self, row: u128, from: PlanePlace, to: PlanePlace) {
        let Some(row) = self.rows.get_mut(&row) else { return };
        let before = row.planes.tier();
        row.planes.0[tier_of(from) as usize] -= 1;
        row.planes.add(to);
        let after = row.planes.tier();
        if before != after {
            self.changes.push(RowChange::Moved {
                key: row.key,
                from: before,
                to: after,
            });
        }
    }

    pub(super) fn forget(&mut self, row: u128) {
        if let Some(row) = self.rows.remove(&row) {
            let tier = row.planes.tier();
            self.changes.push(RowChange::Forgotten { key: row.key, tier });
        }
    }

    pub(super) fn take(&mut self) -> Vec<RowChange> {
        std::mem::take(&mut self.changes)
    }

    pub(super) fn bookkeeping_bytes(&self) -> usize {
        self.rows.capacity() * size_of::<(u128, WatchedRow)>() + self.changes.capacity() * size_of::<RowChange>()
    }
}

fn tier_of(place: PlanePlace) -> RowTier {
    match place {
        PlanePlace::Near(_) => RowTier::Near,
        PlanePlace::Ram(_) => RowTier::Ram,
        PlanePlace::Disk(_) => RowTier::Disk,
    }
}
