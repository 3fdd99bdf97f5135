//! The complete attention state of one sequence.

use riffle_kv::{KvCache, KvError};
use riffle_policy::{CostModel, Phase, PolicyRules, PolicySet, PolicyShape};

use crate::EngineError;
use crate::attention::{
    Audit, AuditObserver, Auto, BlockMeans, Counters, Evicted, IndexBlocks, LatestChoice, LearnedRows, Observers,
    PairScorer, PairScores, Reader, RollingWindow, SignIndexes, SlidingLayer, SlidingLayers, Slot, lacks_room,
    runs_empty,
};

/// Policies of one sequence.
pub(crate) struct Policies {
    /// Select for prompt tokens.
    pub(crate) prefill: PolicySet,
    /// Select for generated tokens.
    pub(crate) decode: PolicySet,
    /// Select for drafts, and learn from verification.
    pub(crate) watchers: Option<PolicySet>,
}

/// The properties of a layer that decide how its attention is split.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerTraits {
    /// True if a prompt's chunks attend in two phases.
    pub(crate) two_phases: bool,
    /// True if a row's selection does not depend on the reads of earlier rows.
    pub(crate) follow_from_keys: bool,
}

/// The attention of one sequence in all layers: pages, policies, and their learned state. It never depends on the
/// specific policy.
pub(crate) struct AttentionState {
    pub(crate) cache: KvCache,
    pub(crate) reader: Box<dyn Reader>,
    pub(crate) policies: Policies,
    pub(super) means: BlockMeans,
    pub(crate) signs: SignIndexes,
    pub(crate) pair_scores: PairScores,
    /// Scores pairs while the sequence reads, if asked for.
    pub(crate) scorer: Option<PairScorer>,
    /// Tokens evicted from single heads.
    pub(crate) evicted: Evicted,
    /// The window of an endless sequence, outside which tokens were dropped from all heads.
    pub(crate) rolling: RollingWindow,
    /// Layers with a window, which store only its tokens.
    pub(crate) sliding: SlidingLayers,
    /// Selections of the model's indexers, while later layers use them.
    pub(super) latest_choice: LatestChoice,
    /// Keys of blocks of the model's indexers.
    pub(super) index_blocks: IndexBlocks,
    pub(crate) learned_rows: LearnedRows,
    pub(crate) counters: Counters,
    pub(crate) audit: Option<Audit>,
    pub(crate) auto: Option<Auto>,
    pub(crate) observers: Observers,
}

impl Policies {
    /// Policies by rules for layers of these shapes.
    pub(crate) fn new(
        [prefill, decode]: [&PolicyRules; 2],
        shapes: &[PolicyShape],
        cost: &CostModel,
    ) -> Result<Self, EngineError> {
        let policies = |rules: &PolicyRules, phase| {
            rules.check_places(shapes)?;
            PolicySet::new(rules, phase, shapes, cost)
        };
        Ok(Self {
            prefill: policies(prefill, Phase::Prefill)?,
            decode: policies(decode, Phase::Decode)?,
            watchers: None,
        })
    }

    /// The policies that select in a phase.
    pub(crate) fn in_phase(&self, phase: Phase) -> &PolicySet {
        match phase {
            Phase::Prefill => &self.prefill,
            Phase::Decode => &self.decode,
        }
    }

    pub(crate) fn of_mut(&mut self, phase: Phase) -> &mut PolicySet {
        match phase {
            Phase::Prefill => &mut self.prefill,
            Phase::Decode => &mut self.decode,
        }
    }

    /// Policies that learn from a phase in which they do not select.
    pub(super) fn beside_mut(&mut self, phase: Phase) -> Option<&mut PolicySet> {
        match phase {
            Phase::Prefill => Some(&mut self.decode),
            Phase::Decode => self.watchers.as_mut(),
        }
    }

    /// All policies that learn from a phase, the selecting ones first.
    pub(super) fn learning_mut(&mut self, phase: Phase) -> impl Iterator<Item = &mut PolicySet> {
        let (first, second) = match phase {
            Phase::Prefill => (&mut self.prefill, Some(&mut self.decode)),
            Phase::Decode => (&mut self.decode, self.watchers.as_mut()),
        };
        std::iter::once(first).chain(second)
    }
}

impl AttentionState {
    /// Attention over a cache that has not been read yet.
    pub(crate) fn new(cache: KvCache, reader: Box<dyn Reader>, policies: Policies) -> Self {
        Self {
            cache,
            reader,
            policies,
            means: BlockMeans::default(),
            signs: SignIndexes::default(),
            pair_scores: PairScores::default(),
            scorer: None,
            evicted: Evicted::default(),
            rolling: RollingWindow::default(),
            sliding: SlidingLayers::default(),
            latest_choice: LatestChoice::new(),
            index_blocks: IndexBlocks::default(),
            learned_rows: LearnedRows::default(),
            counters: Counters::default(),
            audit: None,
            auto: None,
            observers: Observers::default(),
        }
    }

    /// The properties that decide how the attention of a cache layer with policies is split.
    pub(crate) fn layer_traits(&self, cache_layer: usize, phase: Phase) -> LayerTraits {
        let policies = self.policies.in_phase(phase).layer(cache_layer);
        LayerTraits {
            two_phases: policies.iter().any(|policy| policy.traits().two_phases),
            follow_from_keys: policies.iter().all(|policy| policy.traits().follows_from_keys),
        }
    }

    /// Adds the time of a call whose result stayed on a device.
    pub(crate) fn take_attended_time(&mut self, phase: Phase) -> Result<(), EngineError> {
        self.counters.time_mut(phase).attend_ms += self.reader.attended_ms()?;
        Ok(())
    }

    /// Frees the pages that the decode policies will not read again in a layer of a sequence of `tokens` tokens.
    ///
    /// `h2o` and `snapkv` list the tokens that they may still read. When a head has lost enough tokens to empty
    /// pages, the remaining tokens move together and the pages are freed. From then on the head uses head slots, like
    /// a shorter sequence: keys are already rotated, and all remaining tokens precede new ones.
    ///
    /// # Errors
    /// A page that is unreadable or unwritable: the whole sequence must be read again.
    pub(crate) fn evict(&mut self, layer: usize, tokens: usize) -> Result<(), KvError> {
        let shape = *self.cache.shape();
        for kv_head in 0..shape.layer(layer).kv_heads {
            let held = self.cache.head_tokens(layer, kv_head);
            let Some(retained) = self.policies.decode.layer_mut(layer)[kv_head].retained(held) else {
                continue;
            };
            if !runs_empty(&shape, held, &retained) {
                continue;
            }
            let places: Vec<usize> = retained.iter().flat_map(|span| span.range()).collect();
            match self.retain([layer, kv_head], &places, tokens) {
                Ok(()) => self.policies.decode.layer_mut(layer)[kv_head].close_gaps(),
                // Shared pages are copied before eviction; without room for copies, the tokens stay.
                Err(error) if lacks_room(&error) && self.cache.head_tokens(layer, kv_head) == held => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Keeps only the tokens at `places`, ascending, of a (layer, KV head). They must include every token from
    /// `since` on, so that the sequence can still return that far. The prefill policy, the block means, the index
    /// of signs and the scores of pairs restart on the remaining tokens; the caller must update the decode policy.
    ///
    /// # Errors
    /// As [`KvCache::retain`]: if the head is unchanged, nothing has changed.
    pub(crate) fn retain(
        &mut self,
        [layer, kv_head]: [usize; 2],
        places: &[usize],
        since: usize,
    ) -> Result<(), KvError> {
        let shape = *self.cache.shape();
        let held = self.cache.head_tokens(layer, kv_head);
        self.cache.retain(layer, kv_head, places)?;
        self.reader.truncate_head(layer, kv_head, 0);
        self.policies.prefill.layer_mut(layer)[kv_head].reset();
        self.means.forget(layer, kv_head);
        self.signs.forget(layer, kv_head);
        self.pair_scores.forget(layer, kv_head);
        self.evicted.add(&shape, layer, kv_head, held - places.len());
        self.evicted.forbid_below(since);
        Ok(())
    }

    /// Frees the pages before the windows of all sliding layers, for a sequence of `tokens` tokens.
    pub(crate) fn slide(&mut self, tokens: usize) -> Result<(), KvError> {
        for sliding in self.sliding.layers.clone() {
            self.slide_layer(&sliding, tokens)?;
        }
        Ok(())
    }

    /// Frees the pages before a layer's window, for a sequence of `tokens` tokens. If pages were freed, returns the
    /// layer's total number of removed tokens.
    pub(super) fn slide_layer(&mut self, sliding: &SlidingLayer, tokens: usize) -> Result<Option<usize>, KvError> {
        let (shape, layer) = (*self.cache.shape(), sliding.layer);
        let left = self.evicted.evicted_tokens(&shape, layer, 0);
        let leaving = sliding.leaving(tokens, left);
        if leaving == 0 {
            return Ok(None);
        }
        self.cache.remove_first_pages(layer, leaving / shape.page_tokens)?;
        for kv_head in 0..shape.layer(layer).kv_heads {
            self.evicted.add(&shape, layer, kv_head, leaving);
            self.reader.truncate_head(layer, kv_head, 0);
        }
        Ok(Some(left + leaving))
    }

    /// True if the sequence can return to its first `tokens` tokens: all tokens needed there remain.
    pub(crate) fn reaches(&self, tokens: usize) -> bool {
        self.rolling.reaches(tokens) && self.evicted.reaches(tokens)
    }

    /// True if the windows of all sliding layers at the first `tokens` tokens remain.
    pub(crate) fn windows_reach(&self, tokens: usize) -> bool {
        let shape = self.cache.shape();
        let left = |layer: usize| self.evicted.evicted_tokens(shape, layer, 0);
        let mut layers = self.sliding.layers.iter();
        layers.all(|sliding| sliding.reaches(tokens, left(sliding.layer)))
    }

    /// True if no token was removed from a head that reads the whole sequence.
    pub(crate) fn is_whole(&self) -> bool {
        self.rolling.is_whole() && self.evicted.is_empty()
    }

    /// Truncates the sequence to its first `tokens` tokens, which it must be able to return to.
    pub(crate) fn truncate(&mut self, tokens: usize) {
        if tokens == 0 {
            self.rolling = RollingWindow::default();
        }
        if self.evicted.is_empty() {
            let Slot(slot) = self.rolling.slot(tokens);
            self.cache.truncate(slot);
            self.reader.truncate(slot);
            self.policies.prefill.truncate(slot);
            self.policies.decode.truncate(slot);
            self.means.truncate(slot);
            self.signs.truncate(slot);
            self.pair_scores.truncate(slot);
            self.index_blocks.truncate(slot);
            return;
        }
        for layer in 0..self.cache.shape().layers.count() {
            self.truncate_layer(layer, tokens);
        }
        if tokens == 0 {
            self.evicted = Evicted::default();
        }
    }

    /// Truncates one layer to the first `tokens` tokens.
    pub(crate) fn truncate_layer(&mut self, layer: usize, tokens: usize) {
        let left = self.evicted.of_layer(self.cache.shape(), layer);
        for (kv_head, left) in left.iter().enumerate() {
            let held = tokens.saturating_sub(*left);
            self.cache.truncate_head(layer, kv_head, held);
            self.reader.truncate_head(layer, kv_head, held);
            self.policies.prefill.layer_mut(layer)[kv_head].truncate(held);
            self.policies.decode.layer_mut(layer)[kv_head].truncate(held);
        }
        let held = |kv_head: usize| tokens.saturating_sub(left[kv_head]);
        self.means.truncate_layer(layer, held);
        self.signs.truncate_layer(layer, held);
        self.pair_scores.truncate_layer(layer, held);
    }

    /// Copies the placement of another state, whose pages this cache holds, and shares its indexes.
    pub(crate) fn copy_placement(&mut self, from: &Self) {
        self.signs = from.signs.clone();
        self.pair_scores = from.pair_scores.clone();
        self.rolling = from.rolling.clone();
        self.evicted = from.evicted.clone();
        self.sliding = from.sliding.clone();
    }

    /// Copies the counters and learned heads of another state.
    pub(crate) fn copy_statistics(&mut self, from: &Self) -> Result<(), EngineError> {
        if let (Some(from), Some(to)) = (&from.auto, &mut self.auto) {
            to.resume(&from.state(), &mut self.policies.prefill)?;
        }
        if let (Some(from), Some(to)) = (&from.audit, &mut self.audit) {
            to.resume(from.sums.clone());
        }
        self.counters.pairs = from.counters.pairs;
        Ok(())
    }

    /// Passes every query audited from now on to `observer`.
    pub(crate) fn observe_audit(&mut self, observer: AuditObserver) -> Result<(), EngineError> {
        let Some(audit) = &mut self.audit else {
            let problem = "queries are observed by an audit alone: turn it on";
            return Err(EngineError::option("audit", "off", problem));
        };
        audit.observer = Some(observer);
        Ok(())
    }
}
