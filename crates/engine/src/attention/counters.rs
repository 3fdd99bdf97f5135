//! Counts of pairs read, and attention time of a sequence.

use std::time::Instant;

use riffle_policy::Phase;
use serde::{Deserialize, Serialize};

/// Attention time by part, in wall-clock time, over all layers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AttentionTime {
    /// Milliseconds for policies: reading keys, selecting, and counting votes.
    pub select_ms: f64,
    /// Milliseconds for attention to the selections; by a device's clock if the result stays there.
    pub attend_ms: f64,
}

/// Pairs of query position and key, over all KV heads of layers with policies. Layers with a window, and layers that
/// read another layer's keys, are not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairCount {
    /// Pairs that were read.
    pub read: u64,
    /// Pairs that dense attention would read.
    pub causal: u64,
}

/// Counts of one sequence since its start.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) pairs: PairCount,
    /// The part of `pairs` from generated tokens after the latest checkpoint.
    row_pairs: Option<(usize, Vec<PairCount>)>,
    /// Time of prefill, then of decode.
    time: [AttentionTime; 2],
}

impl PairCount {
    /// Share of the causal pairs that were read; 1 for full attention, and before any read.
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
    /// Also counts pairs per token from here on, starting with the token in this slot.
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

    /// Returns to `pairs` plus those of the first `kept` tokens after the checkpoint; drops later ones.
    pub(crate) fn roll_back(&mut self, pairs: PairCount, kept: usize) {
        self.pairs = pairs;
        if let Some((_, rows)) = &mut self.row_pairs {
            rows.truncate(kept);
            rows.iter().for_each(|row| self.pairs.add(*row));
        }
    }

    /// The time spent in attention in a phase.
    pub(crate) fn time(&self, phase: Phase) -> AttentionTime {
        self.time[usize::from(phase == Phase::Decode)]
    }

    pub(crate) fn time_mut(&mut self, phase: Phase) -> &mut AttentionTime {
        &mut self.time[usize::from(phase == Phase::Decode)]
    }

    /// Adds the time since `began`, divided among the `chunks` chunks that shared it.
    pub(super) fn add_attend_time(&mut self, phase: Phase, began: Instant, chunks: usize) {
        self.time_mut(phase).attend_ms += began.elapsed().as_secs_f64() * 1e3 / chunks as f64;
    }

    pub(super) fn add_select_time(&mut self, phase: Phase, began: Instant) {
        self.time_mut(phase).select_ms += began.elapsed().as_secs_f64() * 1e3;
    }
}
