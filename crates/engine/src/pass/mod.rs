//! One pass of tokens through the layers: the weights are read once for all sequences in it.
//!
//! In each layer the model projects the rows of the batch. Each sequence then appends, selects, attends and observes.
//! At the end the model finishes the layer. A pass consists of pieces: rows of linear work, or a chunk of one prompt's
//! attention. Between two pieces the caller may do other work, so waiting times are bounded.
//!
//! The result of a sequence does not depend on the others in the pass.

mod awake;
mod job;
mod layer;
mod selected;

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use riffle_attention::Partial;
use riffle_model::PredictorForward;
use riffle_policy::Phase;

use crate::compute::ModelForward;
use crate::predictor::PredictorRoom;
use crate::{Engine, EngineError, Failure, Sequence};
pub(crate) use job::Pass;
use job::begun;

/// Progress of a prefill.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefillProgress {
    /// Tokens read so far; a fraction while a logical batch passes the layers.
    pub tokens_done: f64,
    /// Tokens to read.
    pub tokens: usize,
    /// The current logical batch; `None` if tokens are read in another way.
    pub batch: Option<BatchProgress>,
}

/// Progress of a logical batch of a prompt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchProgress {
    /// Number of earlier tokens of the sequence.
    pub first: usize,
    /// Tokens of the batch.
    pub tokens: usize,
    /// Completed share of the batch's work, counted in layers.
    pub share: f64,
    /// Seconds spent in attention so far.
    pub attention_s: f64,
}

/// Progress of a pass through the layers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PassProgress {
    /// Completed share of the pass, counted in layers.
    pub share: f64,
    /// Seconds spent in attention so far.
    pub attention_s: f64,
}

/// Tokens that one sequence reads in a pass.
pub struct Work<'a> {
    /// The sequence that reads them.
    pub sequence: &'a mut Sequence,
    /// The tokens, at least one.
    pub tokens: &'a [u32],
    /// [`Phase::Prefill`] for prompt tokens, [`Phase::Decode`] for generated and drafted ones. Several decode tokens
    /// have the same bits as reading them one by one.
    pub phase: Phase,
    /// Tokens of the sequence after the complete prompt.
    pub goal: usize,
    /// Rows of a prompt that the last layer computes completely. Generated and drafted tokens always pass it.
    pub finished_rows: FinishedRows,
}

/// Rows of a prompt with logits and hidden states after the pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishedRows {
    /// At least the last row, from which the answer continues.
    Last,
    /// All rows.
    All,
}

/// Runs sequences through the layers: it holds the scratch of a pass, but no state of sequences.
pub struct Runner {
    engine: Arc<Engine>,
    /// Scratch of the model's pass, after the first one.
    forward: Option<Box<dyn ModelForward>>,
    partials: Vec<Partial>,
    /// Rows of the latest pass.
    rows: usize,
    /// Runs the small draft model.
    pub(crate) small: Option<Box<Runner>>,
    /// Scratch of the predicting layer.
    pub(crate) predictor: Option<Box<PredictorForward>>,
}

impl Runner {
    /// A runner; it allocates memory at its first pass.
    pub fn new(engine: &Arc<Engine>) -> Self {
        Self {
            engine: Arc::clone(engine),
            forward: None,
            partials: Vec::new(),
            rows: 0,
            small: None,
            predictor: None,
        }
    }

    /// Runs the work of several sequences through all layers. `after_piece` receives the progress and may stop the
    /// pass: every sequence is then unchanged. Returns the failure of each sequence, if any.
    ///
    /// # Errors
    /// [`EngineError::Interrupted`], and failures that affect all sequences. Each sequence is then unchanged or, with
    /// recurrent layers, truncated to the latest position with a known state.
    pub fn pass(
        &mut self,
        work: &mut [Work<'_>],
        after_piece: &mut dyn FnMut(PassProgress) -> ControlFlow<()>,
    ) -> Result<Vec<Option<Failure>>, EngineError> {
        let mut pass = self.begin(work)?;
        let tokens = work.first().map_or(0, |work| work.sequence.tokens().len());
        loop {
            let error = match self.advance(&mut pass, work) {
                Ok(ControlFlow::Break(())) => return Ok(self.complete(pass, work)),
                Ok(ControlFlow::Continue(())) if after_piece(pass.progress()).is_continue() => continue,
                Ok(ControlFlow::Continue(())) => {
                    let total = work.iter().map(|work| work.goal).max().unwrap_or(0);
                    EngineError::Interrupted { tokens, total }
                }
                Err(error) => error,
            };
            self.abandon(pass, work);
            return Err(error);
        }
    }

    /// Reads `tokens` into one sequence as a prompt, batch by batch. `observe` receives the number of tokens read.
    pub(crate) fn read(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        observe: &mut dyn FnMut(f64) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        let goal = sequence.tokens().len() + tokens.len();
        let mut done = 0;
        for batch in tokens.chunks(sequence.batch_tokens()) {
            let work = Work {
                sequence: &mut *sequence,
                tokens: batch,
                phase: Phase::Prefill,
                goal,
                finished_rows: FinishedRows::Last,
            };
            let mut after_piece = |at: PassProgress| observe(done as f64 + at.share * batch.len() as f64);
            let failure = self.pass(&mut [work], &mut after_piece)?.pop().flatten();
            failure.map_or(Ok(()), |failure| Err(failure.error))?;
            done += batch.len();
        }
        Ok(())
    }

    /// Rows of the latest pass; the rows of each sequence are adjacent.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Logits of rows of the latest completed pass, `[rows, vocab]`.
    ///
    /// # Errors
    /// A device that fails.
    ///
    /// # Panics
    /// For rows outside the pass. Rows of a prompt outside its [`FinishedRows`] have no meaningful logits.
    pub fn logits(&mut self, rows: Range<usize>, out: &mut Vec<f32>) -> Result<(), EngineError> {
        self.logits_of(&rows.collect::<Vec<_>>(), out)
    }

    /// As [`logits`](Self::logits), for single rows.
    pub(crate) fn logits_of(&mut self, rows: &[usize], out: &mut Vec<f32>) -> Result<(), EngineError> {
        out.resize(rows.len() * self.engine.model().config().vocab_size, 0.0);
        Ok(begun(&mut self.forward).as_dyn().logits(rows, out)?)
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Takes the runner of the small draft model; the caller must return it.
    pub(crate) fn take_small(&mut self, engine: &Arc<Engine>) -> Box<Runner> {
        let small = self.small.take().filter(|small| Arc::ptr_eq(&small.engine, engine));
        small.unwrap_or_else(|| Box::new(Runner::new(engine)))
    }

    /// Takes the runner of the predicting layer; the caller must return it. `None` if this layer does not draft.
    pub(crate) fn take_predictor(&mut self) -> Option<Box<PredictorForward>> {
        self.engine.predictor_room.as_ref()?;
        let model = self.engine.compute().host()?;
        self.predictor.take().or_else(|| {
            let rows = PredictorRoom::rows_together(self.engine.options());
            PredictorForward::new(model, rows).map(Box::new)
        })
    }

    /// Memory for batches of at least `tokens` tokens.
    fn forward_for(&mut self, tokens: usize) -> Result<&mut dyn ModelForward, EngineError> {
        let mut forward = self.forward.iter_mut();
        if !forward.any(|forward| forward.as_dyn().batch_tokens() >= tokens) {
            // Old buffers are freed before larger ones are allocated, so that the plan counts them once.
            self.forward = None;
            self.forward = Some(self.engine.compute().forward(tokens)?);
        }
        Ok(begun(&mut self.forward))
    }
}
