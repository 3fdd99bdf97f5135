//! One pass of tokens through the layers: the weights are read once for all sequences that have work in it.
//!
//! For each layer the model projects the rows of the batch, each sequence appends, selects, attends and observes, and the model
//! finishes the layer. A pass goes on in pieces: rows of linear work, or a chunk of one prompt's attention. Between two pieces
//! the caller may do other work, which bounds how long anybody waits for it.
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

/// How far a prefill has come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefillProgress {
    /// Tokens read so far; a fraction while a logical batch is under way through the layers.
    pub tokens_done: f64,
    /// Tokens to read.
    pub tokens: usize,
    /// The logical batch under way; `None` where tokens are read in another way.
    pub batch: Option<BatchProgress>,
}

/// How far a logical batch of a prompt has come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchProgress {
    /// Tokens of the sequence before it.
    pub first: usize,
    /// Tokens of the batch.
    pub tokens: usize,
    /// Share of its work that is done, counted in layers.
    pub share: f64,
    /// Seconds that its attention has taken so far.
    pub attention_s: f64,
}

/// How far a pass through the layers has come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PassProgress {
    /// Share of the pass that is done, counted in layers.
    pub share: f64,
    /// Seconds that attention has taken so far.
    pub attention_s: f64,
}

/// Tokens that one sequence reads in a pass.
pub struct Work<'a> {
    /// The sequence that reads them.
    pub sequence: &'a mut Sequence,
    /// The tokens, at least one.
    pub tokens: &'a [u32],
    /// [`Phase::Prefill`] for tokens of a prompt, [`Phase::Decode`] for generated and for drafted ones. Several tokens of the second
    /// kind give the bits of reading them one by one.
    pub phase: Phase,
    /// Tokens that the sequence will hold when the prompt has been read.
    pub goal: usize,
    /// Rows of a prompt that the pass takes through the whole of the last layer. Generated and drafted tokens all go through it.
    pub finished_rows: FinishedRows,
}

/// Rows of a prompt that have logits and hidden states when their pass has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishedRows {
    /// The last one at least, from which the answer goes on.
    Last,
    /// All of them.
    All,
}

/// Takes sequences through the layers: holds the scratch of a pass, and nothing of any sequence.
pub struct Runner {
    engine: Arc<Engine>,
    /// Memory of the model's pass, once there was one.
    forward: Option<Box<dyn ModelForward>>,
    partials: Vec<Partial>,
    /// Rows of the latest pass.
    rows: usize,
    /// Takes the small model that drafts through its layers.
    pub(crate) small: Option<Box<Runner>>,
    /// Memory for the layer that predicts further tokens.
    pub(crate) predictor: Option<Box<PredictorForward>>,
}

impl Runner {
    /// A runner that holds no memory before its first pass.
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

    /// Takes work of several sequences through all layers. `after_piece` is told how far the pass is, and may
    /// stop it: then every sequence holds what it held before. Returns for each sequence why it did not get through, if it did not.
    ///
    /// # Errors
    /// [`EngineError::Interrupted`], and failures that are of no single sequence, after which each holds what it held before or, with
    /// recurrent layers, the tokens up to where these know their state.
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

    /// Reads `tokens` into one sequence as a prompt, batch by batch. `observe` is told how many have been read.
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

    /// Rows of the latest pass, those of each sequence beside those of the one before.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Logits of rows of the latest pass that went through, `[rows, vocab]`.
    ///
    /// # Errors
    /// A device that fails.
    ///
    /// # Panics
    /// For rows that the pass did not have. Rows of a prompt that are not among its [`FinishedRows`] have no meaningful logits.
    pub fn logits(&mut self, rows: Range<usize>, out: &mut Vec<f32>) -> Result<(), EngineError> {
        self.logits_of(&rows.collect::<Vec<_>>(), out)
    }

    /// As [`logits`](Self::logits), of single rows.
    pub(crate) fn logits_of(&mut self, rows: &[usize], out: &mut Vec<f32>) -> Result<(), EngineError> {
        out.resize(rows.len() * self.engine.model().config().vocab_size, 0.0);
        Ok(begun(&mut self.forward).as_dyn().logits(rows, out)?)
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The runner of the small model that drafts, until it is given back.
    pub(crate) fn take_small(&mut self, engine: &Arc<Engine>) -> Box<Runner> {
        let small = self.small.take().filter(|small| Arc::ptr_eq(&small.engine, engine));
        small.unwrap_or_else(|| Box::new(Runner::new(engine)))
    }

    /// Takes rows through the layer that predicts further tokens, until it is given back; `None` where that layer drafts nothing.
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
            // The old buffers are freed before larger ones are allocated, so that the plan counts them once.
            self.forward = None;
            self.forward = Some(self.engine.compute().forward(tokens)?);
        }
        Ok(begun(&mut self.forward))
    }
}
