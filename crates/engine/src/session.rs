//! A session: one sequence of tokens, its cache and its policies.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use riffle_attention::{AttendOptions, Partial};
use riffle_kv::{KvCache, KvUsage};
use riffle_model::Forward;
use riffle_policy::{Phase, PolicyRules, PolicySet};

use crate::attention_step::{LayerAttention, PairCount};
use crate::audit::{Audit, AuditReport, AuditedQuery};
use crate::auto::Auto;
use crate::block_means::BlockMeans;
use crate::chunk::Step;
use crate::device::DevicePages;
use crate::edge::{CacheEdge, EdgeBuffers};
use crate::eviction::Evicted;
use crate::plan::{cache_shape, policy_shape, session_tiers};
use crate::recurrence::Recurrence;
use crate::sampler::SamplerState;
use crate::tiles::Heads;
use crate::window::Rolled;
use crate::{AttentionTime, Engine, EngineError};

/// How far a prefill has come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefillProgress {
    /// Tokens read so far; a fraction while a logical batch is under way through the layers.
    pub tokens_done: f64,
    /// Tokens to read.
    pub tokens: usize,
}

/// Receives the position of the first row and logits `[positions, vocab]`; may ask to stop.
type TakeLogits<'a> = dyn FnMut(usize, &[f32]) -> ControlFlow<()> + 'a;

/// One sequence being read and written: tokens, KV pages, policies.
pub struct Session {
    pub(crate) engine: Arc<Engine>,
    pub(crate) cache: KvCache,
    pub(crate) prefill: PolicySet,
    pub(crate) decode: PolicySet,
    pub(crate) recurrence: Recurrence,
    pub(crate) rolled: Rolled,
    pub(crate) evicted: Evicted,
    pub(crate) tokens: Vec<u32>,
    /// Leading tokens that were read as prompt, none of them generated here.
    pub(crate) prefilled: usize,
    /// The token that was drawn last and has not been read yet.
    pub(crate) pending: Option<u32>,
    /// Where the draws of the current answer stand.
    pub(crate) sampler: Option<SamplerState>,
    /// Memory of the model's pass, once a batch has been read, and the tokens of the latest.
    pub(crate) forward: Option<Box<dyn Forward>>,
    batch_tokens: usize,
    /// Pages on the device, where there is one.
    pub(crate) pages: Option<DevicePages>,
    pub(crate) logits: Vec<f32>,
    edge: EdgeBuffers,
    partials: Vec<Partial>,
    pub(crate) pairs: PairCount,
    /// Of prefill, then of decode.
    pub(crate) attention_time: [AttentionTime; 2],
    pub(crate) means: BlockMeans,
    audit: Option<Audit>,
    auto: Option<Auto>,
}

impl Session {
    /// An empty session; pages are allocated as tokens arrive, never beyond the plan.
    ///
    /// # Errors
    /// [`EngineError::Policy`] when a policy does not support the phase it was chosen for.
    pub fn new(engine: &Arc<Engine>) -> Result<Self, EngineError> {
        let options = engine.options();
        let shape = cache_shape(engine.model().config(), options);
        Self::over(
            engine,
            KvCache::with_tiers(shape, session_tiers(options, engine.plan())?)?,
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
            rolled: Rolled::default(),
            evicted: Evicted::default(),
            tokens: Vec::new(),
            prefilled: 0,
            pending: None,
            sampler: None,
            forward: None,
            batch_tokens: 0,
            pages,
            logits: Vec::new(),
            edge: EdgeBuffers::default(),
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

    /// Reads `tokens` after what is already there, layer by layer over each logical batch. An answer that was under way
    /// has ended: a drawn token that was not read is forgotten, and the next answer's draws begin with its seed.
    ///
    /// # Errors
    /// Nothing is read when the tokens do not fit. On [`EngineError::Interrupted`] and on any failure the session
    /// holds the logical batches that were complete.
    pub fn prefill(
        &mut self,
        tokens: &[u32],
        observe: &mut dyn FnMut(PrefillProgress) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        self.read_prompt(tokens, observe, &[], None)
    }

    /// Reads `tokens` as [`Session::prefill`] does and hands over the logits of every position:
    /// `take(first_position, logits [positions, vocab])`, in order.
    ///
    /// # Errors
    /// As [`Session::prefill`].
    pub fn prefill_with_logits(&mut self, tokens: &[u32], take: &mut TakeLogits<'_>) -> Result<(), EngineError> {
        let everything = 0..self.tokens.len() + tokens.len();
        self.read_prompt(tokens, &mut |_| ControlFlow::Continue(()), &[everything], Some(take))
    }

    /// Reads `tokens` as one prompt and hands over the logits at the `wanted` positions of the sequence alone, ascending
    /// and apart from each other: `take(first_position, logits [positions, vocab])`.
    ///
    /// # Errors
    /// As [`Session::prefill`].
    pub fn prefill_with_logits_at(
        &mut self,
        tokens: &[u32],
        wanted: &[Range<usize>],
        observe: &mut dyn FnMut(PrefillProgress) -> ControlFlow<()>,
        take: &mut TakeLogits<'_>,
    ) -> Result<(), EngineError> {
        self.read_prompt(tokens, observe, wanted, Some(take))
    }

    /// Reads one generated token.
    ///
    /// # Errors
    /// [`EngineError::ContextExceeded`] when the context is full.
    pub fn advance(&mut self, token: u32) -> Result<(), EngineError> {
        self.check_room("the answer", 1)?;
        self.evict()?;
        self.read_batch(
            &[token],
            Phase::Decode,
            &mut |_, _| ControlFlow::Continue(()),
            self.tokens.len() + 1,
        )?;
        self.pending = None;
        self.finish_logits()
    }

    /// Forgets everything after the first `tokens` tokens.
    ///
    /// Recurrent layers cannot forget. Their state is kept from before the latest prompt and from its end (after a
    /// prompt that failed: from the end of its latest batch); going back to elsewhere reads again what came after the
    /// last of these. A session with a window that has moved on since ([`StreamWindow`](crate::StreamWindow)), or from
    /// which policies have let tokens go since, forgets everything.
    ///
    /// # Errors
    /// Of reading again, which the session leaves at the batch that failed; none for models without recurrent layers.
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
        self.truncate(kept)?;
        Ok(self.tokens.len())
    }

    /// The token that was drawn last, which is read when the answer goes on.
    pub fn pending(&self) -> Option<u32> {
        self.pending
    }

    fn end_answer(&mut self) {
        self.pending = None;
        self.sampler = None;
    }

    /// Goes back to the first `tokens` tokens; recurrent layers read again what came after the last copy of their state.
    fn go_back(&mut self, tokens: usize) -> Result<(), EngineError> {
        let reached = self.rolled.reaches(tokens) && self.evicted.reaches(tokens);
        let tokens = if reached { tokens } else { 0 };
        let known = self.recurrence.restore(tokens)?;
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
            self.rolled = Rolled::default();
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
        self.check_room("the answer", 1).is_err()
    }

    fn check_room(&self, what: &'static str, tokens: usize) -> Result<(), EngineError> {
        if self.engine.options().window.is_some() {
            return Ok(());
        }
        let context = self.engine.plan().context_tokens;
        let needed = self.tokens.len() + tokens;
        if needed > context {
            return Err(EngineError::ContextExceeded { what, needed, context });
        }
        Ok(())
    }

    fn read_prompt(
        &mut self,
        tokens: &[u32],
        observe: &mut dyn FnMut(PrefillProgress) -> ControlFlow<()>,
        wanted: &[Range<usize>],
        mut take: Option<&mut TakeLogits<'_>>,
    ) -> Result<(), EngineError> {
        if tokens.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        self.check_room("the prompt", tokens.len())?;
        self.end_answer();
        self.evict()?;
        self.recurrence.keep_before_prompt()?;
        let layers = self.engine.model().config().layers;
        let batch_tokens = self.engine.options().batch_tokens;
        let goal = self.tokens.len() + tokens.len();
        let mut done = 0;
        for batch in tokens.chunks(batch_tokens) {
            let mut after_chunk = |layer: usize, attended: usize| {
                let share = (layer * batch.len() + attended) as f64 / (layers * batch.len()) as f64;
                observe(PrefillProgress {
                    tokens_done: done as f64 + share * batch.len() as f64,
                    tokens: tokens.len(),
                })
            };
            self.read_batch(batch, Phase::Prefill, &mut after_chunk, goal)?;
            self.recurrence.keep_boundary()?;
            done += batch.len();
            if let Some(take) = take.as_deref_mut() {
                self.hand_over_logits(batch.len(), wanted, take)?;
            }
        }
        self.finish_logits()
    }

    /// Takes a logical batch of a prompt that ends at `goal` tokens through every layer. `self.forward` holds its
    /// last hidden states afterwards.
    fn read_batch(
        &mut self,
        batch: &[u32],
        phase: Phase,
        after_chunk: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
        goal: usize,
    ) -> Result<(), EngineError> {
        let start = self.tokens.len();
        self.roll(batch.len())?;
        let result = self.run_layers(batch, start, phase, after_chunk, goal);
        match result {
            Ok(()) => {
                self.tokens.extend_from_slice(batch);
                if phase == Phase::Prefill && self.prefilled == start {
                    self.prefilled = self.tokens.len();
                }
            }
            // The failure is told, not what may fail on the way back: that leaves fewer tokens, all of them whole.
            Err(_) => drop(self.go_back(start)),
        }
        result
    }

    fn run_layers(
        &mut self,
        batch: &[u32],
        start: usize,
        phase: Phase,
        after_chunk: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
        goal: usize,
    ) -> Result<(), EngineError> {
        let engine = Arc::clone(&self.engine);
        let model = engine.model();
        let config = model.config();
        let forward = match self.forward.take() {
            Some(forward) if forward.batch_tokens() >= batch.len() => forward,
            // The memory of shorter batches is gone before there is more.
            shorter => {
                drop(shorter);
                engine.compute().forward(batch.len(), engine.rotary_context())?
            }
        };
        let forward = self.forward.insert(forward);
        self.batch_tokens = batch.len();
        forward.embed(batch)?;
        let (policies, watching) = match phase {
            Phase::Prefill => (&mut self.prefill, Some(&mut self.decode)),
            Phase::Decode => (&mut self.decode, None),
        };
        let mut attention = LayerAttention {
            cache: &mut self.cache,
            device: self.pages.as_mut(),
            policies,
            watching,
            means: &mut self.means,
            step: Step {
                phase,
                layers: config.attention_layers(),
                heads: Heads::of(config),
                total_tokens: goal,
                page_tokens: engine.options().page_tokens,
                scale: config.attention_scale,
                soft_cap: config.soft_cap,
                evicted: &self.evicted,
            },
            window: &|layer| match (model.window(layer), engine.options().window) {
                (Some(own), Some(kept)) => Some(own.min(kept.window_tokens)),
                (own, _) => own,
            },
            chunk_tokens: engine.options().chunk_tokens,
            options: AttendOptions::new(config.attention_scale).with_soft_cap(config.soft_cap),
            partials: &mut self.partials,
            pairs: &mut self.pairs,
            time: &mut self.attention_time[usize::from(phase == Phase::Decode)],
            audit: self.audit.as_mut(),
            auto: self.auto.as_mut(),
            after_chunk,
            failure: None,
        };
        let interrupted = || EngineError::Interrupted {
            tokens: start,
            total: goal,
        };
        for layer in 0..config.layers {
            let state = &mut self.recurrence.state;
            let mut edge = CacheEdge {
                inner: &mut attention,
                rotation: engine.options().rotation(),
                head_dim: config.head_dim,
                place: self.rolled.place(start),
                buffers: &mut self.edge,
            };
            let result = forward.layer(layer, self.rolled.position(start), &mut edge, state);
            if let Err(error) = result {
                return Err(match (attention.failure.take(), error) {
                    (Some(failure), _) => failure,
                    (None, riffle_model::ModelError::Attention(_)) => interrupted(),
                    (None, error) => error.into(),
                });
            }
            // A recurrent layer asks for no attention, where the others tell how far they are.
            if config.cache_layer(layer).is_none() && (attention.after_chunk)(layer, batch.len()).is_break() {
                return Err(interrupted());
            }
        }
        Ok(())
    }

    /// Logits of the last token that was read.
    fn finish_logits(&mut self) -> Result<(), EngineError> {
        let last = self.batch_tokens - 1;
        self.logits_of(last..self.batch_tokens)?;
        if self.logits.iter().any(|logit| !logit.is_finite()) {
            return Err(EngineError::NonFiniteLogits {
                position: self.tokens.len(),
            });
        }
        Ok(())
    }

    /// Logits of those of the last `tokens` tokens that are wanted, a bounded number of rows at a time.
    fn hand_over_logits(
        &mut self,
        tokens: usize,
        wanted: &[Range<usize>],
        take: &mut TakeLogits<'_>,
    ) -> Result<(), EngineError> {
        const ROWS: usize = 64;
        let first = self.tokens.len() - tokens;
        for range in wanted {
            let range = range.start.max(first)..range.end.min(self.tokens.len());
            for start in range.clone().step_by(ROWS) {
                let rows = ROWS.min(range.end - start);
                self.logits_of(start - first..start - first + rows)?;
                if take(start, &self.logits).is_break() {
                    return Err(EngineError::Interrupted {
                        tokens: self.tokens.len(),
                        total: self.tokens.len(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Logits of some tokens of the latest batch, `[rows, vocab]`.
    fn logits_of(&mut self, rows: Range<usize>) -> Result<(), EngineError> {
        let vocab_size = self.engine.model().config().vocab_size;
        self.logits.resize(rows.len() * vocab_size, 0.0);
        match &mut self.forward {
            Some(forward) => Ok(forward.logits(rows, &mut self.logits)?),
            None => unreachable!("a batch has been read"),
        }
    }
}
