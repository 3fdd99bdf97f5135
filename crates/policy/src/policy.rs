//! A policy with its state.

use std::fmt;
use std::sync::Arc;

use riffle_attention::{PageView, QueryTile, Selection, Span};

use crate::{
    ColumnMass, Estimate, Estimated, KeyUse, LentScan, Phase, PolicyError, PolicyInfo, PolicySpec, SelectContext,
    SignKeys, SparsePolicy, Traits,
};

/// The policy of one KV head of one layer, in one sequence and one phase.
///
/// For each layer, and in it for each chunk of queries, the caller
/// 1. appends the chunk's keys,
/// 2. calls [`prepare`](Self::prepare) with all queries of the chunk,
/// 3. calls [`select`](Self::select) for each tile of the chunk, in any order, on any thread,
/// 4. attends, with the weights of [`take_scan`](Self::take_scan) if there are any,
/// 5. calls [`observe`](Self::observe) with the column mass of the queries from
///    [`observes_from`](Self::observes_from) on.
///
/// After a rollback of the cache, call [`truncate`](Self::truncate).
///
/// Contexts shorter than `dense_below` tokens are read densely, because there a policy costs more than it saves. For
/// a policy in two phases the length of the whole prompt decides, because it passes votes from chunk to chunk.
pub struct Policy {
    info: &'static PolicyInfo,
    summary_tokens: Option<usize>,
    summarizes_parts: bool,
    dense_below: usize,
    delta: Option<usize>,
    method: Box<dyn SparsePolicy>,
}

/// Learned state of a policy at some point of its sequence; empty for a policy that depends on keys alone.
#[derive(Clone, Default)]
pub struct Learned(Option<Arc<dyn SparsePolicy>>);

impl fmt::Debug for Learned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Learned").field(&self.0.is_some()).finish()
    }
}

/// Builds the policy of `spec`, which selects at every length.
///
/// # Errors
/// [`PolicyError::UnsupportedPhase`], [`PolicyError::DeltaInDecode`], [`PolicyError::WrongTraits`].
pub fn build(spec: &PolicySpec, phase: Phase) -> Result<Policy, PolicyError> {
    spec.check_phase(phase)?;
    let mut method = (spec.info().build)(spec.parameters());
    check_traits(spec.info(), &mut *method)?;
    Ok(Policy {
        info: spec.info(),
        summary_tokens: spec.summary_tokens(),
        summarizes_parts: spec.summarizes_parts(),
        dense_below: 0,
        delta: spec.delta(),
        method,
    })
}

/// Refuses a policy that contradicts its catalogue entry.
fn check_traits(info: &PolicyInfo, method: &mut dyn SparsePolicy) -> Result<(), PolicyError> {
    let traits = &info.traits;
    let pairs = [
        (
            "keys: KeyUse::Summarized",
            traits.keys == KeyUse::Summarized,
            "summarize",
            method.summarize().is_some(),
        ),
        ("learns", traits.learns, "learn", method.learn().is_some()),
        ("evicts", traits.evicts, "evict", method.evict().is_some()),
        ("persists", traits.persists, "persist", method.persist().is_some()),
    ];
    match pairs.into_iter().find(|(_, said, _, done)| said != done) {
        None => Ok(()),
        Some((data, said, accessor, _)) => Err(PolicyError::WrongTraits {
            policy: info.name,
            data,
            said,
            accessor,
        }),
    }
}

impl Policy {
    /// Makes the policy read contexts of fewer than `tokens` tokens densely.
    pub(crate) fn dense_below(self, tokens: usize) -> Self {
        Self {
            dense_below: tokens,
            ..self
        }
    }

    /// The policy's catalogue entry.
    pub fn info(&self) -> &'static PolicyInfo {
        self.info
    }

    /// Traits of the policy.
    pub fn traits(&self) -> &'static Traits {
        &self.info.traits
    }

    /// Tokens per block, if the policy reads means of blocks; otherwise `None`.
    pub fn summary_tokens(&self) -> Option<usize> {
        self.summary_tokens
    }

    /// True if the mean of a block also replaces its unread tokens where a query reads some of the block.
    pub fn summarizes_parts(&self) -> bool {
        self.summarizes_parts
    }

    /// Distance between queries that also read everything, at multiples of this distance. The difference to their
    /// sparse outputs corrects the queries after them. `None` without correction.
    pub fn delta(&self, context: &SelectContext<'_>) -> Option<usize> {
        self.delta.filter(|_| !self.reads_all(context))
    }

    /// Position of the first key that [`prepare`](Self::prepare) and [`select`](Self::select) read. Pages before it
    /// need not be in the context.
    pub fn keys_from(&mut self, context: &SelectContext<'_>) -> usize {
        match self.info.traits.keys {
            _ if self.reads_all(context) => context.tokens,
            KeyUse::Unread => context.tokens,
            KeyUse::Scanned => 0,
            KeyUse::Indexed => context.signs.map_or(0, SignKeys::tokens).min(context.tokens),
            KeyUse::Summarized => {
                let summaries = self.method.summarize();
                summaries.map_or(0, |summaries| summaries.keys_from(context))
            }
        }
    }

    /// Adds a page's keys, of `head_dim` elements, to the policy's summaries. [`prepare`](Self::prepare) does this
    /// for the pages of its context; call this for a page that leaves the nearest tier earlier.
    pub fn summarize(&mut self, page: &PageView<'_>, head_dim: usize) {
        if let Some(summaries) = self.method.summarize() {
            summaries.summarize(page, head_dim);
        }
    }

    /// Selection of every tile of the chunk in the first of two phases: the chunk itself. The second phase,
    /// [`select`](Self::select), leaves the chunk out. Policies in one phase select nothing here.
    pub fn select_own(&self, context: &SelectContext<'_>) -> Selection {
        if !self.info.traits.two_phases || self.reads_all(context) {
            return Selection::none();
        }
        Selection::from_spans([Span::new(context.chunk_start, context.tokens)])
    }

    /// The estimate that [`prepare`](Self::prepare) would compute from keys, if [`prepare_from`](Self::prepare_from)
    /// accepts it from the caller.
    pub fn estimate(&self, chunk: &QueryTile<'_>, context: &SelectContext<'_>) -> Option<Estimate> {
        if self.reads_all(context) {
            None
        } else {
            self.method.estimate(chunk, context)
        }
    }

    /// Computes the estimate that [`select`](Self::select) uses for all tiles of the chunk.
    pub fn prepare(&mut self, chunk: &QueryTile<'_>, context: &SelectContext<'_>) {
        if !self.reads_all(context) {
            self.method.prepare(chunk, context, None);
        }
    }

    /// As [`prepare`](Self::prepare), with the result of [`estimate`](Self::estimate).
    pub fn prepare_from(&mut self, chunk: &QueryTile<'_>, context: &SelectContext<'_>, estimated: Estimated) {
        if !self.reads_all(context) {
            self.method.prepare(chunk, context, Some(estimated));
        }
    }

    /// Selects the tokens that the tile reads. If its chunk was not prepared, the tile counts as a chunk of its own.
    pub fn select(&self, tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        if self.reads_all(context) {
            Selection::full(context.tokens)
        } else {
            self.with_means(self.method.select(tile, context), tile, context)
        }
    }

    /// The selection with the means of all blocks that end before the tile's last query.
    fn with_means(&self, selection: Selection, tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        let Some(block) = self.summary_tokens else {
            return selection;
        };
        let whole = (tile.start + tile.rows).min(context.tokens) / block;
        let blocks = (0..whole).map(|number| Span::new(number * block, (number + 1) * block));
        selection
            .with_summaries(blocks)
            .summarizing_parts(self.summarizes_parts)
    }

    /// Weights of all keys for the chunk prepared last, if the policy computed them.
    /// [`attend_scanned`](riffle_attention::attend_scanned) then reads the selected tokens without scoring keys
    /// again.
    pub fn take_scan(&mut self) -> Option<LentScan> {
        self.method.take_scan()
    }

    /// Position of the first query whose mass [`observe`](Self::observe) needs; the end of the chunk if it needs
    /// none.
    pub fn observes_from(&mut self, context: &SelectContext<'_>) -> usize {
        let dense = self.reads_all(context);
        let learn = self.method.learn().filter(|_| !dense);
        learn.map_or(context.tokens, |learn| learn.observes_from(context))
    }

    /// Passes the mass of the requested queries to a policy that learns.
    pub fn observe(&mut self, mass: &ColumnMass<'_>) {
        if let Some(learn) = self.method.learn() {
            learn.observe(mass);
        }
    }

    /// Tokens among the first `tokens` that the policy may still read, ascending; `None` for a policy that evicts
    /// nothing.
    pub fn retained(&mut self, tokens: usize) -> Option<Vec<Span>> {
        self.method.evict().map(|evict| evict.retained(tokens))
    }

    /// Tells the policy that the cache dropped the tokens not [retained](Self::retained). From now on positions count
    /// only retained tokens.
    pub fn close_gaps(&mut self) {
        if let Some(evict) = self.method.evict() {
            evict.close_gaps();
        }
    }

    /// The state for [`restore_state`](Self::restore_state); empty if keys alone restore the policy.
    pub fn save_state(&self) -> Vec<u8> {
        self.method.persist().map(|persist| persist.save()).unwrap_or_default()
    }

    /// Restores a state that [`save_state`](Self::save_state) wrote, under the same spec and after the same tokens.
    ///
    /// # Errors
    /// [`PolicyError::BadState`] if the bytes are not such a state. The policy is then reset.
    pub fn restore_state(&mut self, state: &[u8]) -> Result<(), PolicyError> {
        self.reset();
        match self.method.persist() {
            Some(persist) => self.method = persist.restored(state)?,
            None if state.is_empty() => {}
            None => return Err(PolicyError::BadState),
        }
        Ok(())
    }

    /// The learned state, for [`set_learned`](Self::set_learned) after a rollback of a few tokens.
    ///
    /// # Errors
    /// As [`Persist::copied`](crate::Persist::copied).
    pub fn learned(&self) -> Result<Learned, PolicyError> {
        let persist = self.method.persist().filter(|_| !self.info.traits.follows_from_keys);
        let copy = persist.map(|persist| persist.copied()).transpose()?;
        Ok(Learned(copy.map(Arc::from)))
    }

    /// Restores a learned state, under the same spec. Nothing changes for a policy that depends on keys alone.
    ///
    /// # Errors
    /// As [`Persist::copied`](crate::Persist::copied).
    pub fn set_learned(&mut self, learned: &Learned) -> Result<(), PolicyError> {
        if let Some(persist) = learned.0.as_ref().and_then(|method| method.persist()) {
            self.method = persist.copied()?;
        }
        Ok(())
    }

    /// Removes tokens at and after `tokens`.
    pub fn truncate(&mut self, tokens: usize) {
        self.method.truncate(tokens);
    }

    /// Resets the policy for a new sequence.
    pub fn reset(&mut self) {
        self.truncate(0);
    }

    /// True if the context is too short for the policy to pay off.
    fn reads_all(&self, context: &SelectContext<'_>) -> bool {
        let length = if self.info.traits.two_phases {
            context.total_tokens
        } else {
            context.tokens
        };
        length < self.dense_below
    }
}
