//! Tokens go through the layers: a prompt in logical batches, an answer one by one.

pub(crate) mod attention_step;
pub(crate) mod attention_time;
pub(crate) mod audit;
pub(crate) mod auto;
pub(crate) mod choice;
pub(crate) mod chunk;
pub(crate) mod compute;
pub(crate) mod device;
pub(crate) mod layer_rows;
pub(crate) mod reading;
pub(crate) mod rotation;
pub(crate) mod tiles;

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use riffle_attention::AttendOptions;
use riffle_model::{Batch, ModelConfig, RecurrentState};
use riffle_policy::Phase;

use crate::pass::attention_step::{AttendedIn, LayerAttention};
use crate::pass::chunk::Step;
use crate::pass::compute::ModelForward;
use crate::pass::layer_rows::LayerRows;
use crate::pass::tiles::Heads;
use crate::{Engine, EngineError, Session};

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

impl Session {
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
        self.finish_logits(Phase::Decode)
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
        self.finish_logits(Phase::Prefill)
    }

    /// Takes a logical batch of a prompt that ends at `goal` tokens through every layer. `self.forward` holds its
    /// last hidden states afterwards.
    pub(crate) fn read_batch(
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
                return self.slide();
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
        let (model, options) = (engine.model(), engine.options());
        let config = model.config();
        let forward = forward_for(&mut self.forward, &engine, batch.len())?;
        self.batch_tokens = batch.len();
        forward
            .as_dyn()
            .embed(&Batch::of_one(batch, self.rolling.position(start))?)?;
        let (policies, observers) = match phase {
            Phase::Prefill => (&mut self.prefill, Some(&mut self.decode)),
            Phase::Decode => (&mut self.decode, None),
        };
        let mut attention = LayerAttention {
            cache: &mut self.cache,
            device: self.pages.as_mut(),
            rotation: options.rotation(),
            policies,
            observers,
            means: &mut self.means,
            step: Step {
                phase,
                layers: config.attention_layers(),
                heads: Heads::of(config),
                total_tokens: goal,
                page_tokens: options.page_tokens,
                scale: config.attention_scale,
                soft_cap: config.soft_cap,
                evicted: &self.evicted,
            },
            window: &|layer| match (model.window(layer), options.window) {
                (Some(own), Some(kept)) => Some(own.min(kept.window_tokens)),
                (own, _) => own,
            },
            chunk_tokens: options.chunk_tokens,
            options: AttendOptions::new(config.attention_scale)
                .with_soft_cap(config.soft_cap)
                .with_arithmetic(phase.arithmetic()),
            partials: &mut self.partials,
            pairs: &mut self.pairs,
            time: &mut self.attention_time[usize::from(phase == Phase::Decode)],
            audit: self.audit.as_mut(),
            auto: self.auto.as_mut(),
            after_chunk,
        };
        let place = Place {
            config,
            slot: self.rolling.place(start),
            tokens: batch.len(),
        };
        for layer in 0..config.layers {
            let flow = run_layer(forward, &mut attention, &mut self.recurrence.state, layer, place)?;
            if flow.is_break() {
                return Err(EngineError::Interrupted {
                    tokens: start,
                    total: goal,
                });
            }
        }
        Ok(())
    }

    /// Logits of the last token that was read in a phase.
    fn finish_logits(&mut self, phase: Phase) -> Result<(), EngineError> {
        let last = self.batch_tokens - 1;
        self.logits_of(last..self.batch_tokens)?;
        if let Some(pages) = &mut self.pages {
            self.attention_time[usize::from(phase == Phase::Decode)].attend_ms += pages.attended_ms()?;
        }
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
            Some(forward) => {
                let rows: Vec<usize> = rows.collect();
                Ok(forward.as_dyn().logits(&rows, &mut self.logits)?)
            }
            None => unreachable!("a batch has been read"),
        }
    }
}

/// Memory for batches of at least `tokens` tokens, in `memory` from one batch to the next.
fn forward_for<'f>(
    memory: &'f mut Option<ModelForward>,
    engine: &Engine,
    tokens: usize,
) -> Result<&'f mut ModelForward, EngineError> {
    let forward = match memory.take() {
        Some(forward) if forward.batch_tokens() >= tokens => forward,
        // The old buffers are freed before larger ones are allocated, so that the plan counts them once.
        shorter => {
            drop(shorter);
            engine.compute().forward(tokens, engine.rotary_context())?
        }
    };
    Ok(memory.insert(forward))
}

/// The tokens of a batch in the cache of their sequence.
#[derive(Clone, Copy)]
struct Place<'a> {
    config: &'a ModelConfig,
    /// Where the first of them stands.
    slot: usize,
    tokens: usize,
}

/// Takes tokens of a sequence through a layer: the model projects, the sequence attends, the model finishes.
fn run_layer(
    forward: &mut ModelForward,
    attention: &mut LayerAttention<'_>,
    recurrent: &mut RecurrentState,
    layer: usize,
    place: Place<'_>,
) -> Result<ControlFlow<()>, EngineError> {
    let Place { config, slot, tokens } = place;
    let Some(projected) = forward.project(layer, tokens, config.head_dim, attention.rotation)? else {
        forward.as_dyn().finish(layer, 0..tokens, &mut [recurrent])?;
        return Ok((attention.after_chunk)(layer, tokens));
    };
    let rows = LayerRows {
        layer,
        cache_layer: config.cache_layer(layer).unwrap_or(layer),
        slot,
        tokens,
        queries: projected.queries,
        new_keys: projected.new_keys,
    };
    match attention.layer(&rows, projected.output)? {
        ControlFlow::Continue(AttendedIn::Device) => {}
        ControlFlow::Continue(AttendedIn::Output) => forward.take_output(tokens)?,
        ControlFlow::Break(()) => return Ok(ControlFlow::Break(())),
    }
    forward.as_dyn().finish(layer, 0..tokens, &mut [recurrent])?;
    Ok(ControlFlow::Continue(()))
}
