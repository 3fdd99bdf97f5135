//! What was measured of a sequence while it was read and written.

use riffle_model::ModelConfig;
use riffle_policy::{Phase, PolicyShape};
use serde::{Deserialize, Serialize};

use crate::compress::QueryObserver;
use crate::pass::attention_time::AttentionTime;
use crate::pass::audit::Audit;
use crate::pass::auto::Auto;
use crate::pass::tiles::Heads;
use crate::{Engine, EngineOptions};

/// Pairs of query position and key, over all layers and KV heads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairCount {
    /// Pairs that were read.
    pub read: u64,
    /// Pairs that dense attention would have read.
    pub causal: u64,
}

/// Pairs read, time of attention, the audit, which decides as well where heads move under `--auto`, and who else looks at queries.
#[derive(Default)]
pub(crate) struct Statistics {
    pub(crate) pairs: PairCount,
    /// Of generated tokens from the slot of the latest checkpoint on, among `pairs`.
    row_pairs: Option<(usize, Vec<PairCount>)>,
    /// Of prefill, then of decode.
    attention_time: [AttentionTime; 2],
    pub(crate) audit: Option<Audit>,
    pub(crate) auto: Option<Auto>,
    /// What a compression measures while it reads.
    pub(crate) observer: Option<QueryObserver>,
}

impl PairCount {
    /// Adds the pairs of another count.
    pub(crate) fn add(&mut self, other: Self) {
        self.read += other.read;
        self.causal += other.causal;
    }
}

impl Statistics {
    pub(crate) fn new(engine: &Engine, shape: &PolicyShape, audits: bool) -> Self {
        let (options, config): (&EngineOptions, &ModelConfig) = (engine.options(), engine.model().config());
        let audits = audits || options.auto_target.is_some();
        let target = options.auto_target.unwrap_or(0.0);
        let auto = |_| Auto::new(shape, &options.cost, engine.plan().context_tokens);
        Self {
            audit: audits.then(|| Audit::new(config.attention_layers(), Heads::of(config), target)),
            auto: options.auto_target.map(auto),
            ..Self::default()
        }
    }

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

    /// Adds the pairs of the first `kept` tokens behind the checkpoint, and forgets those of the others.
    pub(crate) fn keep_rows(&mut self, kept: usize) {
        if let Some((_, rows)) = &mut self.row_pairs {
            rows.truncate(kept);
            rows.iter().for_each(|row| self.pairs.add(*row));
        }
    }

    pub(crate) fn attention_time(&self, phase: Phase) -> AttentionTime {
        self.attention_time[usize::from(phase == Phase::Decode)]
    }

    pub(crate) fn attention_time_mut(&mut self, phase: Phase) -> &mut AttentionTime {
        &mut self.attention_time[usize::from(phase == Phase::Decode)]
    }
}
