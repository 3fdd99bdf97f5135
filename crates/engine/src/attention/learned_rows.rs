//! Copies of policies' learned state after each row of a pass, so that a sequence can return to any row.
//!
//! A policy that learns from queries cannot undo one. During the verification of drafts, its state is copied after
//! each row. A row after which tokens would have been evicted is marked: reading token by token would evict there, so
//! later rows would differ.

use riffle_kv::KvCache;
use riffle_policy::{Learned, PolicySet};

use crate::EngineError;
use crate::attention::runs_empty;

/// The states of one sequence's decode policies in the latest pass over several generated tokens.
#[derive(Debug, Default)]
pub(crate) struct LearnedRows {
    /// Tokens before the pass, and rows of the pass; `None` if the latest pass had one row, or no policy learns.
    pass: Option<(usize, usize)>,
    /// `[rows - 1][layers, kv_heads]`, after each row except the last; empty for layers without policies.
    states: Vec<Vec<Learned>>,
    /// The first row after which tokens would have been evicted.
    evicts_behind: Option<usize>,
}

impl LearnedRows {
    /// Begins a pass of `rows` rows after the first `tokens` tokens. Rows are recorded if there are several and a
    /// policy learns.
    pub(crate) fn begin(&mut self, policies: &PolicySet, tokens: usize, rows: usize) {
        self.pass = (rows > 1 && !policies.follows_from_keys()).then_some((tokens, rows));
        self.states.clear();
        self.evicts_behind = None;
    }

    /// Records the learned state of a layer's policies after the first `rows` rows.
    pub(crate) fn take(
        &mut self,
        policies: &mut PolicySet,
        cache: &KvCache,
        layer: usize,
        rows: usize,
    ) -> Result<(), EngineError> {
        if self.pass.is_none_or(|(_, of)| rows >= of) {
            return Ok(());
        }
        let shape = cache.shape();
        let (heads, first) = (shape.tables(), shape.tables_of(layer).start);
        self.states
            .resize_with(self.states.len().max(rows), || vec![Learned::default(); heads]);
        for (kv_head, policy) in policies.layer_mut(layer).iter_mut().enumerate() {
            self.states[rows - 1][first + kv_head] = policy.learned()?;
            let held = cache.head_tokens(layer, kv_head);
            let retained = policy.retained(held);
            if retained.is_some_and(|retained| runs_empty(shape, held, &retained)) {
                let first = self.evicts_behind.unwrap_or(rows);
                self.evicts_behind = Some(first.min(rows));
            }
        }
        Ok(())
    }

    /// Number of rows of the latest pass that equal reading the tokens one by one, if rows were recorded.
    pub(crate) fn sound_rows(&self) -> Option<usize> {
        let (_, rows) = self.pass?;
        Some(self.evicts_behind.unwrap_or(rows))
    }

    /// True if the states after `kept` tokens following the first `tokens` are recorded.
    pub(crate) fn reaches(&self, tokens: usize, kept: usize) -> bool {
        let is_recorded =
            |(before, rows)| before == tokens && (kept == rows || (kept > 0 && kept <= self.states.len()));
        self.pass.is_some_and(is_recorded)
    }

    /// Restores the policies' states after the first `kept` rows.
    pub(crate) fn restore(&self, policies: &mut PolicySet, kept: usize) -> Result<(), EngineError> {
        // After the last row, the policies' current states apply.
        let states = self.states.get(kept - 1).map_or(&[][..], Vec::as_slice);
        for (policy, state) in policies.iter_mut().zip(states) {
            policy.set_learned(state)?;
        }
        Ok(())
    }
}
