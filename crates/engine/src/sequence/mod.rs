//! What one sequence of tokens holds: pages, policies, recurrent state, and where its tokens stand.

pub(crate) mod block_means;
mod checkpoint;
pub(crate) mod eviction;
mod fork;
pub(crate) mod learned_rows;
pub(crate) mod measured_prefix_cache;
pub(crate) mod placement;
pub(crate) mod predictor_rows;
pub(crate) mod prefix;
pub(crate) mod recurrence;
mod saved;
pub(crate) mod shared_prefix;
pub(crate) mod sliding;
pub(crate) mod statistics;
pub(crate) mod window;

use std::fmt;
use std::sync::Arc;

use riffle_device::TransferCount;
use riffle_kv::{KvCache, KvUsage, PagePool};
use riffle_policy::{Phase, PolicyRules, PolicySet};

use crate::answer::sampler::SamplerState;
use crate::pass::audit::{Audit, AuditReport, AuditedQuery};
use crate::pass::device::DevicePages;
use crate::{AttentionTime, Engine, EngineError, EngineOptions, StreamWindow};
use block_means::BlockMeans;
pub use checkpoint::Checkpoint;
use learned_rows::LearnedRows;
use placement::Placement;
use predictor_rows::PredictorRows;
use recurrence::Recurrence;
use sliding::SlidingLayers;
use statistics::{PairCount, Statistics};

/// What a sequence runs under beside the options of its engine.
#[derive(Debug, Clone)]
pub struct SequenceOptions {
    /// Policies that choose what prompt tokens read.
    pub prefill: PolicyRules,
    /// Policies that choose what generated tokens read.
    pub decode: PolicyRules,
    /// Keep sinks and a window alone, of a sequence without end.
    pub window: Option<StreamWindow>,
    /// Compare sampled queries with exact attention ([`Sequence::audit`]).
    pub audit: bool,
}

/// Tokens of one text and everything that goes with them: KV pages, policies, recurrent state, the answer under way. A
/// [`Runner`](crate::Runner) reads tokens into it.
pub struct Sequence {
    pub(crate) engine: Arc<Engine>,
    pub(crate) options: SequenceOptions,
    pub(crate) cache: KvCache,
    /// Its pages on the device, where one computes.
    pub(crate) device: Option<DevicePages>,
    pub(crate) prefill: PolicySet,
    pub(crate) decode: PolicySet,
    pub(crate) means: BlockMeans,
    pub(crate) recurrence: Recurrence,
    pub(crate) placement: Placement,
    pub(crate) learned_rows: LearnedRows,
    pub(crate) tokens: Vec<u32>,
    /// Leading tokens that were read as prompt, none of them generated here.
    pub(crate) prefilled: usize,
    pub(crate) answer: AnswerUnderWay,
    /// After the last token, `[vocab]`; empty where none were asked for.
    pub(crate) logits: Vec<f32>,
    pub(crate) statistics: Statistics,
    /// Policies of drafts that learn from what a verification reads.
    pub(crate) watchers: Option<PolicySet>,
    /// What a small model that drafts has read of the same text.
    pub(crate) reader: Option<Box<Sequence>>,
    /// What the layer that predicts further tokens keeps, where it drafts.
    pub(crate) predictor: Option<PredictorRows>,
}

impl fmt::Debug for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sequence")
            .field("options", &self.options)
            .field("tokens", &self.tokens.len())
            .field("prefilled", &self.prefilled)
            .finish_non_exhaustive()
    }
}

/// Where the answer of a sequence stands.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AnswerUnderWay {
    /// The token that was drawn last and has not been read yet.
    pub(crate) pending: Option<u32>,
    /// Where the draws stand.
    pub(crate) sampler: Option<SamplerState>,
}

impl SequenceOptions {
    /// The policies and the window of the engine's options.
    pub fn of(options: &EngineOptions) -> Self {
        Self {
            prefill: options.prefill.clone(),
            decode: options.decode.clone(),
            window: options.window,
            audit: options.audit,
        }
    }
}

impl Sequence {
    /// An empty sequence whose pages come from `pool`. It takes no page memory before tokens arrive.
    ///
    /// # Errors
    /// [`EngineError::Policy`] when a policy does not support the phase it was chosen for.
    pub fn new(engine: &Arc<Engine>, pool: &PagePool, options: SequenceOptions) -> Result<Self, EngineError> {
        Self::over(engine, pool.cache(), DevicePages::new(engine)?, options)
    }

    /// An empty sequence over a cache and, where a device computes, its pages there.
    pub(crate) fn over(
        engine: &Arc<Engine>,
        cache: KvCache,
        device: Option<DevicePages>,
        options: SequenceOptions,
    ) -> Result<Self, EngineError> {
        let engine_options = engine.options();
        let config = engine.model().config();
        let shape = engine.resolved().policy;
        let policies = |rules: &PolicyRules, phase| {
            rules.check_places(&shape)?;
            PolicySet::new(rules, phase, &shape, &engine_options.cost)
        };
        Ok(Self {
            cache,
            device,
            prefill: policies(&options.prefill, Phase::Prefill)?,
            decode: policies(&options.decode, Phase::Decode)?,
            means: BlockMeans::default(),
            recurrence: Recurrence::new(config),
            placement: Placement {
                sliding: SlidingLayers::of(config, engine_options, options.window),
                ..Placement::default()
            },
            learned_rows: LearnedRows::default(),
            tokens: Vec::new(),
            prefilled: 0,
            answer: AnswerUnderWay::default(),
            logits: Vec::new(),
            statistics: Statistics::new(engine, &shape, options.audit),
            watchers: None,
            reader: None,
            // A window moves the tokens, and nothing is drafted.
            predictor: engine
                .predictor_room()
                .filter(|_| options.window.is_none())
                .map(PredictorRows::new),
            options,
            engine: Arc::clone(engine),
        })
    }

    /// The engine it belongs to.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Its policies and its window.
    pub fn options(&self) -> &SequenceOptions {
        &self.options
    }

    /// Tokens read and written so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Logits `[vocab]` after the last token; empty before the first.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// The token that was drawn last, which is read when the answer goes on.
    pub fn pending(&self) -> Option<u32> {
        self.answer.pending
    }

    /// What the cache holds.
    pub fn usage(&self) -> KvUsage {
        self.cache.usage()
    }

    /// Where its pages come from.
    pub fn pool(&self) -> PagePool {
        self.cache.pool()
    }

    /// Where the time of attention went in a phase, since the sequence began.
    pub fn attention_time(&self, phase: Phase) -> AttentionTime {
        self.statistics.attention_time(phase)
    }

    /// What has travelled between main memory and the device that computes, for all sequences of the engine there; nothing where
    /// the CPU computes.
    pub fn device_transfers(&self) -> TransferCount {
        let pages = self.device.as_ref();
        pages.map_or_else(TransferCount::default, DevicePages::transferred)
    }

    /// Bytes of KV pages that lie on the device that computes, beside those in main memory; 0 where the CPU computes.
    pub fn device_page_bytes(&self) -> u64 {
        self.device.as_ref().map_or(0, DevicePages::resident_bytes)
    }

    /// Share of the causal query-key pairs that were read, over all layers and heads so far; 1 for full attention.
    pub fn density(&self) -> f64 {
        let PairCount { read, causal } = self.statistics.pairs;
        if causal == 0 {
            return 1.0;
        }
        read as f64 / causal as f64
    }

    /// The pairs that [`Sequence::density`] is the share of.
    pub fn pairs(&self) -> PairCount {
        self.statistics.pairs
    }

    /// How much of the true attention was kept so far, where [`EngineOptions::audit`] or `auto_target` is on.
    pub fn audit(&self) -> Option<AuditReport> {
        self.statistics.audit.as_ref().map(Audit::report)
    }

    /// Shows every query that is audited from now on to `observer`, with the exact mass of every key: a second pass
    /// over the keys for each of them.
    ///
    /// # Errors
    /// [`EngineError::Option`] where [`EngineOptions::audit`] is off.
    pub fn observe_audit(
        &mut self,
        observer: impl FnMut(&AuditedQuery<'_>) + Send + Sync + 'static,
    ) -> Result<(), EngineError> {
        let Some(audit) = &mut self.statistics.audit else {
            return Err(EngineError::option(
                "--audit",
                "off",
                "queries are observed by an audit alone: turn it on",
            ));
        };
        audit.observe(Box::new(observer));
        Ok(())
    }

    /// Tokens that the sequence and `tokens` begin with alike.
    pub fn shared_with(&self, tokens: &[u32]) -> usize {
        common_prefix(&self.tokens, tokens)
    }

    /// Forgets tokens after the first `tokens`, and as many before them as cannot be gone back to. Returns the forgotten tokens of
    /// the first `tokens`, which have to be read again.
    ///
    /// Recurrent layers cannot forget. Their state is kept from before the latest prompt and from its end (after a
    /// prompt that failed: from the end of its latest batch); tokens after the last of these are to be read again. Layers with a
    /// sliding window keep some 512 tokens before it; going back further forgets the whole sequence. So does a sequence whose
    /// window has moved on since ([`StreamWindow`]), or from which policies have evicted tokens since.
    ///
    /// # Errors
    /// [`EngineError::Model`] where a copy of a recurrent state does not fit the model.
    #[must_use = "these tokens have to be read again"]
    pub fn truncate(&mut self, tokens: usize) -> Result<Vec<u32>, EngineError> {
        self.logits.clear();
        self.end_answer();
        self.go_back(tokens.min(self.tokens.len()))
    }

    /// Sends its pages that no other sequence holds to the farthest tier with room. Nothing is recomputed when it goes on.
    /// Returns the bytes that left the nearest tier.
    ///
    /// # Errors
    /// [`EngineError::Kv`] when the tier cannot be written; every page can be read where it lies then.
    pub fn park(&mut self) -> Result<u64, EngineError> {
        Ok(self.cache.park()?)
    }

    /// Gets ready for `tokens` to be read as a prompt, in one pass or several. An answer that was under way has ended.
    ///
    /// # Errors
    /// [`EngineError::EmptyPrompt`], [`EngineError::ContextExceeded`]; nothing has changed then. [`EngineError::Kv`] where a page
    /// that evicted tokens leave could not be read or written; the sequence is empty then.
    pub fn begin_prompt(&mut self, tokens: &[u32]) -> Result<(), EngineError> {
        if tokens.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        self.check_room("the prompt", tokens.len())?;
        self.end_answer();
        self.evict().map_err(|failure| failure.error)?;
        self.recurrence.keep_before_prompt()
    }

    pub(crate) fn end_answer(&mut self) {
        self.answer = AnswerUnderWay::default();
    }

    /// Goes back to the first `tokens` tokens; returns those that have to be read again.
    pub(crate) fn go_back(&mut self, tokens: usize) -> Result<Vec<u32>, EngineError> {
        let tokens = if self.placement.reaches(tokens) { tokens } else { 0 };
        let known = if self.windows_reach(tokens) { tokens } else { 0 };
        let known = self.recurrence.restore(known)?;
        let again = self.tokens[known..tokens].to_vec();
        self.tokens.truncate(known);
        self.forget_from(known);
        Ok(again)
    }

    fn forget_from(&mut self, tokens: usize) {
        self.prefilled = self.prefilled.min(tokens);
        if let Some(rows) = &mut self.predictor {
            rows.cut(tokens);
        }
        if tokens == 0 {
            self.placement.rolling = Default::default();
        }
        self.cut(tokens);
    }

    /// Forgets the whole sequence, after a failure that left part of it in disorder. Returns its tokens.
    pub(crate) fn forget_all(&mut self) -> Vec<u32> {
        self.logits.clear();
        self.end_answer();
        let tokens = std::mem::take(&mut self.tokens);
        self.recurrence.reset();
        self.forget_from(0);
        tokens
    }

    /// Whether there is no room for another token.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full_behind(self.tokens.len())
    }

    /// Whether there is no room for a token behind the first `tokens`.
    pub(crate) fn is_full_behind(&self, tokens: usize) -> bool {
        let limited = self.options.window.is_none();
        limited && tokens + 1 > self.engine.plan().context_tokens
    }

    /// Tokens for which the context has room.
    pub(crate) fn tokens_left(&self) -> usize {
        match self.options.window {
            Some(_) => usize::MAX,
            None => self.engine.plan().context_tokens.saturating_sub(self.tokens.len()),
        }
    }

    pub(crate) fn check_room(&self, what: &'static str, tokens: usize) -> Result<(), EngineError> {
        match self.options.window {
            Some(_) => Ok(()),
            None => self.engine.check_context(what, self.tokens.len() + tokens),
        }
    }

    /// Tokens that go through a layer together when a prompt is read: it is cut at multiples of this number.
    pub fn batch_tokens(&self) -> usize {
        let options = self.engine.options();
        match self.options.window {
            // Pages are freed between batches.
            Some(_) => options.chunk_tokens,
            None => options.batch_tokens,
        }
    }

    /// Refuses logits that no token can be drawn from.
    pub(crate) fn check_logits(&self) -> Result<(), EngineError> {
        check_logits(&self.logits, self.tokens.len())
    }
}

/// Refuses logits behind `position` tokens that no token can be drawn from.
pub(crate) fn check_logits(logits: &[f32], position: usize) -> Result<(), EngineError> {
    match logits.iter().all(|logit| logit.is_finite()) {
        true => Ok(()),
        false => Err(EngineError::NonFiniteLogits { position }),
    }
}

/// Number of leading tokens that two texts have in common.
pub(crate) fn common_prefix(left: &[u32], right: &[u32]) -> usize {
    left.iter().zip(right).take_while(|(a, b)| a == b).count()
}
