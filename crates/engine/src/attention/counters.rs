//! Pairs that a sequence has read, and the time that its attention took.

use std::time::Instant;

use riffle_policy::Phase;
use serde::{Deserialize, Serialize};

/// The time of attention by part, by the clock on the wall, over all layers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AttentionTime {
    /// Milliseconds in which policies looked at keys, chose, and counted votes.
    pub select_ms: f64,
    /// Milliseconds of attending to what was chosen; by a device's own clock where the result stays there.
    pub attend_ms: f64,
}

/// Pairs of query position and key, over all KV heads of the layers in which a policy may choose. Layers with a window of their own,
/// and layers that read the keys of another layer, are not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairCount {
    /// Pairs that were read.
    pub read: u64,
    /// Pairs that dense attention would have read.
    pub causal: u64,
}

/// Counts of one sequence since it began.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) pairs: PairCount,
    /// Of generated tokens from the slot of the latest checkpoint on, among `pairs`.
    row_pairs: Option<(usize, Vec<PairCount>)>,
    /// Of prefill, then of decode.
    time: [AttentionTime; 2],
}

impl PairCount {
    /// Share of the causal pairs that were read; 1 for full attention, and before anything was read.
    pub fn density(&self) -> f64 {
        match self.causal {
            0 => 1.0,
            causal => self.read as f64 / causal as f64,
        }
    }

    /// Adds the pairs of another count.
    pub(crate) fn add(&mut self, other: Self) {
        self.read += other.read;
        self.causal += other.causal;
    }
}

impl Counters {
    /// Counts pairs from here on also token by token, from the one in this slot on.
    pub(crate) fn count_rows_from(&mut self, slot: usize) {
        self.row_pairs = Some((slot, Vec::new()));
    }

    /// Counts pairs of a generated token.
    pub(crate) fn count_row(&mut self, slot: usize, count: PairCount) {
        let Some((first, rows)) = &mut self.row_pairs else {
            return;
        };
        if let Some(row) = slot.checked_sub(*first) {
            rows.resize(rows.len().max(row + 1), PairCount::default());
            rows[row].add(count);
        }
    }

    /// Goes back to `pairs`, with those of the first `kept` tokens behind the checkpoint; forgets the others.
    pub(crate) fn roll_back(&mut self, pairs: PairCount, kept: usize) {
        self.pairs = pairs;
        if let Some((_, rows)) = &mut self.row_pairs {
            rows.truncate(kept);
            rows.iter().for_each(|row| self.pairs.add(*row));
        }
    }

    /// The time of attention in a phase.
    pub(crate) fn time(&self, phase: Phase) -> AttentionTime {
        self.time[usize::from(phase == Phase::Decode)]
    }

    pub(crate) fn time_mut(&mut self, phase: Phase) -> &mut AttentionTime {
        &mut self.time[usize::from(phase == Phase::Decode)]
    }

    /// Adds the time since `began`, which a chunk shared with others: `chunks` in all.
    pub(super) fn add_attend_time(&mut self, phase: Phase, began: Instant, chunks: usize) {
        self.time_mut(phase).attend_ms += began.elapsed().as_secs_f64() * 1e3 / chunks as f64;
    }

    pub(super) fn add_select_time(&mut self, phase: Phase, began: Instant) {
        self.time_mut(phase).select_ms += began.elapsed().as_secs_f64() * 1e3;
    }
}
