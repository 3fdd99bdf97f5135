//! Reads short sequences densely: below its break-even length a policy costs more than it saves.

use riffle_attention::{PageView, QueryTile, Scan, Selection, Span};

use crate::{ColumnMass, Estimate, Estimated, PolicyError, SelectContext, SparsePolicy};

/// A policy that reads everything up to `from` tokens.
///
/// The length is that of the context at each chunk; for a policy that carries votes from chunk to chunk it is that of
/// the whole prompt.
pub(crate) struct Guarded {
    pub(crate) from: usize,
    pub(crate) inner: Box<dyn SparsePolicy>,
}

impl Guarded {
    fn reads_all(&self, context: &SelectContext<'_>) -> bool {
        let length = if self.inner.has_two_phases() {
            context.total_tokens
        } else {
            context.tokens
        };
        length < self.from
    }
}

impl SparsePolicy for Guarded {
    fn requires_block_selection(&self) -> bool {
        self.inner.requires_block_selection()
    }

    fn scans_keys(&self) -> bool {
        self.inner.scans_keys()
    }

    fn keys_from(&self, context: &SelectContext<'_>) -> usize {
        match self.reads_all(context) {
            true => context.tokens,
            false => self.inner.keys_from(context),
        }
    }

    fn summarize(&mut self, page: &PageView<'_>, head_dim: usize) {
        self.inner.summarize(page, head_dim);
    }

    fn has_two_phases(&self) -> bool {
        self.inner.has_two_phases()
    }

    fn select_own(&self, queries: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        if self.reads_all(context) {
            return Selection::none();
        }
        self.inner.select_own(queries, context)
    }

    fn prepare(&mut self, chunk: &QueryTile<'_>, context: &SelectContext<'_>) {
        if !self.reads_all(context) {
            self.inner.prepare(chunk, context);
        }
    }

    fn estimate(&self, chunk: &QueryTile<'_>, context: &SelectContext<'_>) -> Option<Estimate> {
        match self.reads_all(context) {
            true => None,
            false => self.inner.estimate(chunk, context),
        }
    }

    fn prepare_from(&mut self, chunk: &QueryTile<'_>, context: &SelectContext<'_>, estimated: Estimated) {
        if !self.reads_all(context) {
            self.inner.prepare_from(chunk, context, estimated);
        }
    }

    fn select(&self, queries: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        if self.reads_all(context) {
            return Selection::full(context.tokens);
        }
        self.inner.select(queries, context)
    }

    fn scan(&self, queries: &QueryTile<'_>) -> Option<&Scan> {
        self.inner.scan(queries)
    }

    fn end_chunk(&mut self) {
        self.inner.end_chunk();
    }

    fn summary_tokens(&self) -> Option<usize> {
        self.inner.summary_tokens()
    }

    fn dropped_mass(&self) -> Option<f32> {
        self.inner.dropped_mass()
    }

    fn observes_from(&self, context: &SelectContext<'_>) -> usize {
        if self.reads_all(context) {
            return context.tokens;
        }
        self.inner.observes_from(context)
    }

    fn observe(&mut self, mass: &ColumnMass<'_>) {
        self.inner.observe(mass);
    }

    fn follows_from_keys(&self) -> bool {
        self.inner.follows_from_keys()
    }

    fn retained(&self, tokens: usize) -> Option<Vec<Span>> {
        self.inner.retained(tokens)
    }

    fn close_gaps(&mut self) {
        self.inner.close_gaps();
    }

    fn save_state(&self) -> Vec<u8> {
        self.inner.save_state()
    }

    fn restore_state(&mut self, state: &[u8]) -> Result<(), PolicyError> {
        self.inner.restore_state(state)
    }

    fn truncate(&mut self, tokens: usize) {
        self.inner.truncate(tokens);
    }
}
