//! One sequence of tokens: its text, its attention, its recurrent state, and its unfinished answer.
//!
//! | file | |
//! |---|---|
//! | `mod.rs` | the sequence, and truncation |
//! | `checkpoint.rs` | a point to return to after a few more tokens |
//! | `fork.rs` | sequences that begin with another's tokens |
//! | `observers.rs` | observers of its attention |
//! | `saved.rs` | sequences in files |
//! | `window.rs` | dropped pages: evicted tokens, sliding layers, endless windows |

mod checkpoint;
pub(crate) mod fork;
mod observers;
pub(crate) mod recurrence;
mod saved;
mod window;

use std::fmt;
use std::sync::Arc;

use riffle_device::TransferCount;
use riffle_kv::{KvCache, KvUsage, PagePool};
use riffle_policy::{Phase, PolicyRules};

use crate::attention::{AttentionState, Audit, Auto, Heads, PairScorer, Policies, Reader};
use crate::options::check_sequence;
use crate::predictor::PredictorRows;
use crate::sampler::SamplerState;
use crate::{AttentionTime, AuditReport, Engine, EngineError, PairCount, SequenceOptions};
pub use checkpoint::Checkpoint;
use fork::{beside_with, fork_pages};
pub use observers::SequenceObservers;
use recurrence::Recurrence;

/// Tokens of one text with all their state: KV pages, policies, recurrent state, the unfinished answer. A
/// [`Runner`](crate::Runner) reads tokens into it.
pub struct Sequence {
    setting: Setting,
    text: Text,
    attention: AttentionState,
    recurrence: Recurrence,
    answer: AnswerUnderWay,
}

/// The engine of a sequence, and its own options.
struct Setting {
    engine: Arc<Engine>,
    options: SequenceOptions,
}

/// Tokens of a sequence.
#[derive(Debug, Clone, Default)]
struct Text {
    tokens: Vec<u32>,
    /// Number of leading tokens that were read as prompt, without generated ones.
    prefilled: usize,
    turn: Turn,
}

/// The rotation of a sequence's heads, if it depends on the length (LongRoPE).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Turn {
    /// True for the rotation of sequences beyond the length at which it changes.
    is_long: bool,
    /// True if the rotation stays fixed at any length.
    is_fixed: bool,
    /// Tokens read again because the sequence grew beyond this length.
    again_tokens: usize,
}

impl Turn {
    /// True if a sequence of `length` tokens uses another rotation.
    pub(crate) fn is_other(self, engine: &Engine, length: usize) -> bool {
        !self.is_fixed && self.is_long != engine.turns_long(length)
    }

    /// A text length that has this rotation.
    pub(crate) fn length(self) -> usize {
        if self.is_long { usize::MAX } else { 0 }
    }
}

/// The answer state that belongs to the sequence.
#[derive(Default)]
pub(crate) struct AnswerUnderWay {
    /// The latest drawn token that has not been read yet, and the state of the draws.
    pub(crate) drawn: LatestDraw,
    /// Logits after the last token, `[vocab]`; empty if not requested.
    pub(crate) logits: Vec<f32>,
    /// State of drafts, for the life of the sequence.
    pub(crate) drafts: DraftState,
}

/// The latest draw of an answer.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LatestDraw {
    /// The token, until it is read.
    pub(crate) pending: Option<u32>,
    /// The state of the draws after the token.
    pub(crate) sampler: Option<SamplerState>,
}

/// The state of drafts for a sequence.
#[derive(Default)]
pub(crate) struct DraftState {
    /// The small draft model's sequence of the same text.
    pub(crate) reader: Option<Box<Sequence>>,
    /// Rows of the predicting layer.
    pub(crate) predictor: Option<PredictorRows>,
}

/// A sequence's pages on the device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceUsage {
    /// Bytes of the sequence's pages on the device, in addition to main memory.
    pub page_bytes: u64,
    /// Bytes copied between main memory and the device, for all sequences of the engine.
    pub transferred: TransferCount,
}

/// Counts of a sequence since its start.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct SequenceCounts {
    /// The pairs of query and key that were read, over all heads of the layers with policies.
    pub pairs: PairCount,
    /// The time of attention in prompts.
    pub prefill_time: AttentionTime,
    /// The time of attention in answers.
    pub decode_time: AttentionTime,
    /// Tokens read again because the sequence grew beyond the length at which its model's rotation changes
    /// (LongRoPE).
    pub turned_tokens: usize,
    /// Pages and traffic on the device; zero on the CPU.
    pub device: DeviceUsage,
}

impl AnswerUnderWay {
    /// Sets the logits after the last token, `[vocab]`.
    pub(crate) fn set_logits(&mut self, logits: &[f32]) {
        self.logits.clear();
        self.logits.extend_from_slice(logits);
    }

    /// Ends the answer: the latest draw no longer belongs to one.
    pub(crate) fn end(&mut self) {
        self.drawn = LatestDraw::default();
    }
}

impl fmt::Debug for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sequence")
            .field("options", &self.setting.options)
            .field("tokens", &self.text.tokens.len())
            .field("prefilled", &self.text.prefilled)
            .finish_non_exhaustive()
    }
}

impl Sequence {
    /// An empty sequence whose pages come from `pool`. It takes page memory only for tokens.
    ///
    /// # Errors
    /// [`EngineError::Policy`] if a policy does not support its phase.
    pub fn new(engine: &Arc<Engine>, pool: &PagePool, options: SequenceOptions) -> Result<Self, EngineError> {
        Self::over(engine, pool.cache(), engine.reader()?, options)
    }

    /// An empty sequence over a cache and the reader of its pages.
    pub(crate) fn over(
        engine: &Arc<Engine>,
        cache: KvCache,
        reader: Box<dyn Reader>,
        options: SequenceOptions,
    ) -> Result<Self, EngineError> {
        engine.check_predicts()?;
        let engine_options = engine.options();
        let config = engine.model().config();
        check_sequence(config, &options)?;
        let shapes = &engine.resolved.policy;
        let cost = &engine_options.machine.cost;
        let policies = Policies::new([&options.prefill, &options.decode], shapes, cost)?;
        let mut attention = AttentionState::new(cache, reader, policies);
        attention.sliding = engine.sliding_layers(options.window);
        let target = options.auto_target;
        attention.audit = (options.audit || target.is_some()).then(|| {
            let layers = config.cached_layers().map(|layer| Heads::of_layer(config, layer));
            Audit::new(layers.collect(), target.unwrap_or(0.0))
        });
        attention.scorer = options.score_pairs.then(|| {
            let rotates_keys = engine.resolved.rotation.keys;
            PairScorer::new(
                engine.model(),
                rotates_keys,
                engine.whole_layers(),
                Turn::default().length(),
            )
        });
        attention.auto = target.map(|_| Auto::new(shapes, cost, engine.plan().context_tokens));
        // Drafts by the predicting layer are unsupported with a window, which moves tokens.
        let predictor_room = engine.predictor_room.as_ref().filter(|_| options.window.is_none());
        Ok(Self {
            attention,
            recurrence: Recurrence::new(config),
            text: Text {
                turn: Turn {
                    // The angles of an endless window reach the model's last position.
                    is_long: options.window.is_some() && engine.turns_long(config.max_position),
                    is_fixed: options.window.is_some(),
                    again_tokens: 0,
                },
                ..Text::default()
            },
            answer: AnswerUnderWay {
                drafts: DraftState {
                    reader: None,
                    predictor: predictor_room.map(PredictorRows::new),
                },
                ..AnswerUnderWay::default()
            },
            setting: Setting {
                options,
                engine: Arc::clone(engine),
            },
        })
    }

    /// An empty sequence with the same options and pool, which may [adopt](crate::adopt_prefix) this one's shared
    /// pages.
    ///
    /// # Errors
    /// As [`Sequence::new`].
    pub fn beside(&self) -> Result<Self, EngineError> {
        beside_with(self, self.setting.options.clone())
    }

    /// A sequence that continues from this one: both share their pages until one of them writes to a page, which
    /// copies it. Both use the budgets of their pool.
    ///
    /// # Errors
    /// [`EngineError::Policy`] if a policy's state cannot be copied.
    pub fn fork(&mut self) -> Result<Self, EngineError> {
        let mut fork = fork_pages(self, self.setting.options.clone())?;
        fork.attention.copy_statistics(&self.attention)?;
        let decode = self.attention.policies.decode.iter();
        for (from, to) in decode.zip(fork.attention.policies.decode.iter_mut()) {
            to.restore_state(&from.save_state())?;
        }
        Ok(fork)
    }

    /// As [`Sequence::fork`], with other policies for tokens generated from here on, so that one reading of a text
    /// serves several policies.
    ///
    /// # Errors
    /// [`EngineError::Option`] if the policies of either sequence learn from the text's queries or evict its tokens;
    /// [`EngineError::Policy`] if a policy does not support generated tokens.
    pub fn fork_under(&mut self, decode: PolicyRules) -> Result<Self, EngineError> {
        for rules in [&self.setting.options.decode, &decode] {
            if !rules.follows_from_keys() {
                let problem = "it has to see the text while it is read: read the text under it";
                return Err(EngineError::option("decode", rules, problem));
            }
        }
        let options = SequenceOptions {
            decode,
            ..self.setting.options.clone()
        };
        let mut fork = fork_pages(self, options)?;
        fork.attention.copy_statistics(&self.attention)?;
        Ok(fork)
    }

    /// The engine of the sequence.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.setting.engine
    }

    /// Policies and window of the sequence.
    pub fn options(&self) -> &SequenceOptions {
        &self.setting.options
    }

    /// Tokens read and written so far.
    pub fn tokens(&self) -> &[u32] {
        &self.text.tokens
    }

    /// Number of leading tokens that were read as prompt, without generated ones.
    pub(crate) fn prefilled(&self) -> usize {
        self.text.prefilled
    }

    /// Number of leading tokens in common with `tokens`.
    pub fn shared_with(&self, tokens: &[u32]) -> usize {
        common_prefix(&self.text.tokens, tokens)
    }

    /// Logits `[vocab]` after the last token; empty before the first.
    pub fn logits(&self) -> &[f32] {
        &self.answer.logits
    }

    /// Pages and policies of the sequence.
    pub(crate) fn attention(&self) -> &AttentionState {
        &self.attention
    }

    pub(crate) fn attention_mut(&mut self) -> &mut AttentionState {
        &mut self.attention
    }

    pub(crate) fn recurrence(&self) -> &Recurrence {
        &self.recurrence
    }

    pub(crate) fn recurrence_mut(&mut self) -> &mut Recurrence {
        &mut self.recurrence
    }

    /// The unfinished answer of the sequence.
    pub(crate) fn answer(&self) -> &AnswerUnderWay {
        &self.answer
    }

    pub(crate) fn answer_mut(&mut self) -> &mut AnswerUnderWay {
        &mut self.answer
    }

    /// Pages and bytes of the sequence's cache, by tier.
    pub fn usage(&self) -> KvUsage {
        self.attention.cache.usage()
    }

    /// The pool of the sequence's pages.
    pub fn pool(&self) -> PagePool {
        self.attention.cache.pool()
    }

    /// Counts of attention since the sequence began.
    pub fn counts(&self) -> SequenceCounts {
        let (counters, reader) = (&self.attention.counters, &self.attention.reader);
        SequenceCounts {
            pairs: counters.pairs,
            prefill_time: counters.time(Phase::Prefill),
            decode_time: counters.time(Phase::Decode),
            turned_tokens: self.text.turn.again_tokens,
            device: DeviceUsage {
                page_bytes: reader.resident_bytes(),
                transferred: reader.transferred(),
            },
        }
    }

    /// The kept share of exact attention so far, if [`SequenceOptions::audit`](crate::SequenceOptions::audit) or
    /// `auto_target` is on.
    pub fn audit(&self) -> Option<AuditReport> {
        self.attention.audit.as_ref().map(Audit::report)
    }

    /// Access to observers of the sequence's attention.
    pub fn observers(&mut self) -> SequenceObservers<'_> {
        SequenceObservers {
            attention: &mut self.attention,
            engine: &self.setting.engine,
        }
    }

    /// Removes the tokens after the first `tokens`. If the sequence cannot return to this length, it removes more.
    /// Returns the additionally removed tokens, which must be read again.
    ///
    /// Recurrent layers cannot remove tokens. Their state is stored before the latest prompt and at its end (after a
    /// failed prompt: at the end of its latest batch); tokens after the latest usable state must be read again.
    /// Layers with a sliding window keep about 512 tokens before it; returning further removes the whole sequence.
    /// The same holds if an endless window has moved since ([`StreamWindow`](crate::StreamWindow)), or policies have
    /// evicted tokens since.
    ///
    /// # Errors
    /// [`EngineError::Model`] if a copy of a recurrent state does not fit the model.
    #[must_use = "these tokens have to be read again"]
    pub fn truncate(&mut self, tokens: usize) -> Result<Vec<u32>, EngineError> {
        self.answer.logits.clear();
        self.answer.end();
        self.go_back(tokens.min(self.text.tokens.len()))
    }

    /// Moves the sequence's unshared pages to the farthest tier with room. Nothing is recomputed when the sequence
    /// continues. Returns the bytes that left the nearest tier.
    ///
    /// # Errors
    /// [`EngineError::Kv`] if the tier is not writable; every page is then still readable.
    pub fn park(&mut self) -> Result<u64, EngineError> {
        Ok(self.attention.cache.park()?)
    }

    /// Prepares for reading `tokens` as a prompt, in one pass or several. An unfinished answer ends. Returns the
    /// tokens that must be read first: all of the sequence's tokens, if its model's rotation changes at the new
    /// length (LongRoPE), which includes `more_tokens` that will soon follow; otherwise none.
    ///
    /// # Errors
    /// [`EngineError::EmptyPrompt`], [`EngineError::ContextExceeded`]; nothing has changed then. [`EngineError::Kv`]
    /// if a page failed during eviction; the sequence is then empty.
    #[must_use = "these tokens have to be read first"]
    pub fn begin_prompt(&mut self, tokens: &[u32], more_tokens: usize) -> Result<Vec<u32>, EngineError> {
        if tokens.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        check_room(self, "the prompt", tokens.len())?;
        self.answer.end();
        let again = self.turn_for(self.text.tokens.len() + tokens.len() + more_tokens);
        self.evict().map_err(|failure| failure.error)?;
        self.recurrence.keep_before_prompt()?;
        Ok(again)
    }

    /// Sets the rotation for a sequence of `length` tokens. Returns the tokens that must be read again, which are all
    /// or none: keys of two rotations cannot be mixed.
    pub(crate) fn turn_for(&mut self, length: usize) -> Vec<u32> {
        if !self.text.turn.is_other(&self.setting.engine, length) {
            return Vec::new();
        }
        let again = self.forget_all();
        let turn = self.text.turn;
        self.set_turn(Turn {
            is_long: !turn.is_long,
            again_tokens: turn.again_tokens + again.len(),
            ..turn
        });
        again
    }

    fn set_turn(&mut self, turn: Turn) {
        self.text.turn = turn;
        if let Some(scorer) = &mut self.attention.scorer {
            scorer.rotary_length = turn.length();
        }
    }

    /// The rotation of the sequence.
    pub(crate) fn turn(&self) -> Turn {
        self.text.turn
    }

    /// Adds tokens that a pass has read.
    pub(crate) fn take_in(&mut self, tokens: &[u32], phase: Phase) -> Result<(), EngineError> {
        let start = self.text.tokens.len();
        self.text.tokens.extend_from_slice(tokens);
        self.attention.take_attended_time(phase)?;
        if phase == Phase::Prefill {
            if self.text.prefilled == start {
                self.text.prefilled = self.text.tokens.len();
            }
            self.recurrence.keep_boundary()?;
        }
        let held = self.text.tokens.len();
        Ok(self.attention.slide(held)?)
    }

    /// Tokens of the sequence, to which a draft may be appended temporarily, and the rows of the predicting layer.
    pub(crate) fn predicted(&mut self) -> (&mut Vec<u32>, Option<&mut PredictorRows>) {
        (&mut self.text.tokens, self.answer.drafts.predictor.as_mut())
    }

    /// Sets the sequence to the first `kept` tokens of a prompt. The cache has their pages, and the sequence had the
    /// first `held` tokens before. `prompt` may be empty if `kept` does not exceed `held`.
    pub(crate) fn hold_prompt(&mut self, held: usize, kept: usize, prompt: &[u32]) {
        self.attention.cache.truncate(kept);
        self.attention.signs.truncate(kept);
        self.attention.pair_scores.truncate(kept);
        self.text.tokens.truncate(held.min(kept));
        if kept > held {
            self.text.tokens.extend_from_slice(&prompt[held..kept]);
            self.index_filled_pages();
        }
        self.text.prefilled = kept;
    }

    /// Adds the keys of pages that were filled without being read to the indexes, while the pages are near. The pass
    /// that reads an unreadable page reports it.
    fn index_filled_pages(&mut self) {
        for (_, layer) in self.setting.engine.whole_layers() {
            let _ = self.attention.extend_signs(layer);
        }
    }

    /// Adds tokens whose pages are still loading.
    pub(crate) fn hold_early(&mut self, tokens: &[u32]) {
        self.text.tokens.extend_from_slice(tokens);
        self.text.prefilled = self.text.tokens.len();
    }

    /// Returns to the first `tokens` tokens; returns the tokens that must be read again.
    pub(crate) fn go_back(&mut self, tokens: usize) -> Result<Vec<u32>, EngineError> {
        let tokens = if self.attention.reaches(tokens) { tokens } else { 0 };
        let is_there = self.attention.windows_reach(tokens);
        let known = self.recurrence.restore(if is_there { tokens } else { 0 })?;
        let again = self.text.tokens[known..tokens].to_vec();
        self.text.tokens.truncate(known);
        self.text.prefilled = self.text.prefilled.min(known);
        if let Some(rows) = &mut self.answer.drafts.predictor {
            rows.cut(known);
        }
        self.attention.truncate(known);
        Ok(again)
    }

    /// Clears the whole sequence after a failure left it inconsistent. Returns its tokens.
    pub(crate) fn forget_all(&mut self) -> Vec<u32> {
        self.answer.logits.clear();
        self.answer.end();
        self.recurrence.reset();
        self.attention.truncate(0);
        if let Some(rows) = &mut self.answer.drafts.predictor {
            rows.forget();
        }
        self.text.prefilled = 0;
        std::mem::take(&mut self.text.tokens)
    }

    /// Tokens that pass a layer together when a prompt is read: it is split at multiples of this number.
    pub fn batch_tokens(&self) -> usize {
        let options = self.setting.engine.options();
        match self.setting.options.window {
            // Pages are freed between batches.
            Some(_) => options.machine.chunk_tokens,
            None => options.machine.batch_tokens,
        }
    }
}

/// Refuses logits after `position` tokens from which no token can be drawn.
pub(crate) fn check_logits(logits: &[f32], position: usize) -> Result<(), EngineError> {
    if logits.iter().all(|logit| logit.is_finite()) {
        return Ok(());
    }
    Err(EngineError::NonFiniteLogits { position })
}

/// Number of leading tokens that two texts have in common.
pub(crate) fn common_prefix(left: &[u32], right: &[u32]) -> usize {
    left.iter().zip(right).take_while(|(a, b)| a == b).count()
}

/// Checks that the context has room for `tokens` more tokens.
pub(crate) fn check_room(sequence: &Sequence, what: &'static str, tokens: usize) -> Result<(), EngineError> {
    match sequence.options().window {
        Some(_) => Ok(()),
        None => sequence.engine().check_context(what, sequence.tokens().len() + tokens),
    }
}
