//! A session: one sequence of tokens, its cache and its policies.

use std::ops::ControlFlow;
use std::sync::Arc;

use riffle_attention::Partial;
use riffle_cuda::TransferCount;
use riffle_kv::{KvCache, KvUsage};
use riffle_policy::{Phase, PolicyRules, PolicySet};

use crate::answer::sampler::SamplerState;
use crate::pass::attention_step::PairCount;
use crate::pass::audit::{Audit, AuditReport, AuditedQuery};
use crate::pass::auto::Auto;
use crate::pass::compute::ModelForward;
use crate::pass::device::DevicePages;
use crate::pass::tiles::Heads;
use crate::plan::{cache_shape, policy_shape, session_tiers};
use crate::sequence::block_means::BlockMeans;
use crate::sequence::eviction::Evicted;
use crate::sequence::recurrence::Recurrence;
use crate::sequence::sliding::SlidingLayers;
use crate::sequence::window::RollingWindow;
use crate::{AttentionTime, Engine, EngineError};

/// One sequence being read and written: tokens, KV pages, policies.
pub struct Session {
    pub(crate) engine: Arc<Engine>,
    pub(crate) cache: KvCache,
    pub(crate) prefill: PolicySet,
    pub(crate) decode: PolicySet,
    pub(crate) recurrence: Recurrence,
    pub(crate) rolling: RollingWindow,
    pub(crate) evicted: Evicted,
    pub(crate) sliding: SlidingLayers,
    pub(crate) tokens: Vec<u32>,
    /// Leading tokens that were read as prompt, none of them generated here.
    pub(crate) prefilled: usize,
    /// The token that was drawn last and has not been read yet.
    pub(crate) pending: Option<u32>,
    /// Where the draws of the current answer stand.
    pub(crate) sampler: Option<SamplerState>,
    /// Memory of the model's pass, once a batch has been read, and the tokens of the latest.
    pub(crate) forward: Option<ModelForward>,
    pub(crate) batch_tokens: usize,
    /// Pages on the device, where there is one.
    pub(crate) pages: Option<DevicePages>,
    pub(crate) logits: Vec<f32>,
    pub(crate) partials: Vec<Partial>,
    pub(crate) pairs: PairCount,
    /// Of prefill, then of decode.
    pub(crate) attention_time: [AttentionTime; 2],
    pub(crate) means: BlockMeans,
    pub(crate) audit: Option<Audit>,
    pub(crate) auto: Option<Auto>,
}

impl Session {
    /// An empty session; pages are allocated as tokens arrive, never beyond the plan.
    ///
    /// # Errors
    /// [`EngineError::Policy`] when a policy does not support the phase it was chosen for.
    pub fn new(engine: &Arc<Engine>) -> Result<Self, EngineError> {
        let options = engine.options();
        let config = engine.model().config();
        let shape = cache_shape(config, options);
        Self::over(
            engine,
            KvCache::with_tiers(shape, session_tiers(config, options, engine.plan()))?,
            DevicePages::new(engine)?,
        )
    }

    /// An empty session over a cache and, where a device computes, its pages there.
    pub(crate) fn over(engine: &Arc<Engine>, cache: KvCache, pages: Option<DevicePages>) -> Result<Self, EngineError> {
        let options = engine.options();
        let config = engine.model().config();
        let shape = policy_shape(config, options);
        let policies = |rules: &PolicyRules, phase| PolicySet::new(rules, phase, &shape, &options.cost);
        Ok(Self {
            cache,
            prefill: policies(&options.prefill, Phase::Prefill)?,
            decode: policies(&options.decode, Phase::Decode)?,
            recurrence: Recurrence::new(config),
            rolling: RollingWindow::default(),
            evicted: Evicted::default(),
            sliding: SlidingLayers::of(config, options),
            tokens: Vec::new(),
            prefilled: 0,
            pending: None,
            sampler: None,
            forward: None,
            batch_tokens: 0,
            pages,
            logits: Vec::new(),
            partials: Vec::new(),
            pairs: PairCount::default(),
            attention_time: [AttentionTime::default(); 2],
            means: BlockMeans::default(),
            audit: (options.audit || options.auto_target.is_some()).then(|| {
                Audit::new(
                    config.attention_layers(),
                    Heads::of(config),
                    options.auto_target.unwrap_or(0.0),
                )
            }),
            auto: options
                .auto_target
                .map(|_| Auto::new(&shape, &options.cost, engine.plan().context_tokens)),
            engine: Arc::clone(engine),
        })
    }

    /// Tokens read and written so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Logits `[vocab]` after the last token; empty before the first.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// What the cache holds.
    pub fn usage(&self) -> KvUsage {
        self.cache.usage()
    }

    /// Where the time of attention went in a phase, since the session was made.
    pub fn attention_time(&self, phase: Phase) -> AttentionTime {
        self.attention_time[usize::from(phase == Phase::Decode)]
    }

    /// What has travelled between main memory and the device that computes, for this session and those it shares pages with;
    /// nothing where the CPU computes.
    pub fn device_transfers(&self) -> TransferCount {
        self.pages
            .as_ref()
            .map_or_else(TransferCount::default, DevicePages::transferred)
    }

    /// Bytes of KV pages that lie on the device that computes, beside those in main memory; 0 where the CPU computes.
    pub fn device_page_bytes(&self) -> u64 {
        self.pages.as_ref().map_or(0, DevicePages::resident_bytes)
    }

    /// Share of the causal query-key pairs that were read, over all layers and heads so far; 1 for full attention.
    pub fn density(&self) -> f64 {
        if self.pairs.causal == 0 {
            return 1.0;
        }
        self.pairs.read as f64 / self.pairs.causal as f64
    }

    /// The pairs that [`Session::density`] is the share of.
    pub fn pairs(&self) -> PairCount {
        self.pairs
    }

    /// How much of the true attention was kept so far, where [`EngineOptions::audit`](crate::EngineOptions::audit) or `auto_target` is on.
    pub fn audit(&self) -> Option<AuditReport> {
        self.audit.as_ref().map(Audit::report)
    }

    /// Shows every query that is audited from now on to `observer`, with the exact mass of every key: a second pass
    /// over the keys for each of them.
    ///
    /// # Errors
    /// [`EngineError::Option`] where [`EngineOptions::audit`](crate::EngineOptions::audit) is off.
    pub fn observe_audit(
        &mut self,
        observer: impl FnMut(&AuditedQuery<'_>) + Send + Sync + 'static,
    ) -> Result<(), EngineError> {
        let Some(audit) = &mut self.audit else {
            return Err(EngineError::option(
                "--audit",
                "off",
                "it must be on for queries to be observed",
            ));
        };
        audit.observe(Box::new(observer));
        Ok(())
    }

    /// The engine this session runs on.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Forgets everything after the first `tokens` tokens.
    ///
    /// Recurrent layers cannot forget. Their state is kept from before the latest prompt and from its end (after a
    /// prompt that failed: from the end of its latest batch); going back to elsewhere reads again what came after the
    /// last of these. Layers with a sliding window keep some 512 tokens before it; going back further reads the sequence
    /// again. A session with a window that has moved on since ([`StreamWindow`](crate::StreamWindow)), or from
    /// which policies have let tokens go since, forgets everything.
    ///
    /// # Errors
    /// Of reading again, which the session leaves at the batch that failed; none for models whose layers all see the whole
    /// sequence.
    pub fn truncate(&mut self, tokens: usize) -> Result<(), EngineError> {
        self.logits.clear();
        self.end_answer();
        self.go_back(tokens.min(self.tokens.len()))
    }

    /// Tokens that the session and `tokens` begin with alike.
    pub fn shared_with(&self, tokens: &[u32]) -> usize {
        self.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count()
    }

    /// Keeps what the session and `tokens` begin with alike and forgets the rest, so that reading
    /// `tokens[kept..]` leaves a session of exactly `tokens`. Returns `kept`; where it is all of `tokens`, nothing is
    /// left to read.
    ///
    /// # Errors
    /// As [`Session::truncate`].
    pub fn keep_shared(&mut self, tokens: &[u32]) -> Result<usize, EngineError> {
        let shared = self.shared_with(tokens);
        let whole = shared == self.tokens.len() && !self.logits.is_empty();
        if whole {
            self.end_answer();
            return Ok(shared);
        }
        // Logits are those of the last token that is read: one is read again where all of them are known.
        let kept = shared.min(tokens.len().saturating_sub(1));
        // What has to be read again is left to the caller, who shows how far it is.
        self.truncate(if self.windows_reach(kept) { kept } else { 0 })?;
        Ok(self.tokens.len())
    }

    /// The token that was drawn last, which is read when the answer goes on.
    pub fn pending(&self) -> Option<u32> {
        self.pending
    }

    pub(crate) fn end_answer(&mut self) {
        self.pending = None;
        self.sampler = None;
    }

    /// Goes back to the first `tokens` tokens; recurrent layers read again what came after the last copy of their state, and
    /// everything is read again where sliding windows do not reach back so far.
    pub(crate) fn go_back(&mut self, tokens: usize) -> Result<(), EngineError> {
        let reached = self.rolling.reaches(tokens) && self.evicted.reaches(tokens);
        let tokens = if reached { tokens } else { 0 };
        let known = self
            .recurrence
            .restore(if self.windows_reach(tokens) { tokens } else { 0 })?;
        let again = self.tokens[known..tokens].to_vec();
        self.tokens.truncate(known);
        self.forget_from(known);
        for batch in again.chunks(self.engine.options().batch_tokens) {
            self.read_batch(batch, Phase::Prefill, &mut |_, _| ControlFlow::Continue(()), tokens)?;
        }
        Ok(())
    }

    fn forget_from(&mut self, tokens: usize) {
        self.prefilled = self.prefilled.min(tokens);
        if tokens == 0 {
            self.rolling = RollingWindow::default();
        }
        self.cut(tokens);
    }

    /// Forgets the whole sequence, after a failure that left part of it in disorder.
    pub(crate) fn forget_all(&mut self) {
        self.logits.clear();
        self.end_answer();
        self.tokens.clear();
        self.recurrence.reset();
        self.forget_from(0);
    }

    /// Whether there is no room for another token.
    pub(crate) fn is_full(&self) -> bool {
        self.room_missing(1)
    }

    pub(crate) fn check_room(&self, what: &'static str, tokens: usize) -> Result<(), EngineError> {
        self.engine.check_context(what, self.tokens.len() + tokens)
    }

    fn room_missing(&self, tokens: usize) -> bool {
        let limited = self.engine.options().window.is_none();
        limited && self.tokens.len() + tokens > self.engine.plan().context_tokens
    }
}
