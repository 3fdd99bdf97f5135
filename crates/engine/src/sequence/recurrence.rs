//! The recurrent state of a sequence, and the positions to which it can return.

use riffle_model::{Decoder, ModelConfig, RecurrentState};

use crate::EngineError;

/// The states of recurrent layers, with copies: before the latest prompt, after its latest batch, and at the latest
/// checkpoint. Empty for models without such layers.
pub(crate) struct Recurrence {
    pub(crate) state: RecurrentState,
    before_prompt: RecurrentState,
    boundary: RecurrentState,
    checkpoint: RecurrentState,
}

impl Recurrence {
    pub(crate) fn new(config: &ModelConfig) -> Self {
        let state = RecurrentState::new(config);
        Self {
            before_prompt: state.clone(),
            boundary: state.clone(),
            checkpoint: state.clone(),
            state,
        }
    }

    /// True if the model has layers with a recurrent state.
    pub(crate) fn is_recurrent(&self) -> bool {
        !self.state.is_empty()
    }

    /// Continues from a stored state.
    pub(crate) fn resume(&mut self, state: RecurrentState) -> Result<(), EngineError> {
        self.state = state;
        self.before_prompt.reset();
        self.checkpoint.reset();
        self.keep_boundary()
    }

    /// Copies another sequence's states.
    pub(crate) fn copy_from(&mut self, other: &Self) -> Result<(), EngineError> {
        self.state.copy_from(&other.state)?;
        self.before_prompt.copy_from(&other.before_prompt)?;
        self.boundary.copy_from(&other.boundary)?;
        self.checkpoint.copy_from(&other.checkpoint).map_err(EngineError::from)
    }

    /// Resets the state.
    pub(crate) fn reset(&mut self) {
        self.state.reset();
        self.copies_mut().into_iter().for_each(RecurrentState::reset);
    }

    /// Copies the state before a prompt is read.
    pub(crate) fn keep_before_prompt(&mut self) -> Result<(), EngineError> {
        keep(&self.state, &mut self.before_prompt)
    }

    /// Copies the state after a batch of a prompt.
    pub(crate) fn keep_boundary(&mut self) -> Result<(), EngineError> {
        keep(&self.state, &mut self.boundary)
    }

    /// Copies the state at a checkpoint, and starts to record later inputs.
    pub(crate) fn keep_checkpoint(&mut self) -> Result<(), EngineError> {
        keep(&self.state, &mut self.checkpoint)?;
        self.state.record();
        Ok(())
    }

    /// True if the state `kept` tokens after a checkpoint can be replayed from the recording.
    pub(crate) fn can_replay(&self, checkpoint_tokens: usize, kept: usize) -> bool {
        let recorded = self.state.recorded();
        let is_behind = |recorded| self.state.tokens() == Some(checkpoint_tokens + recorded);
        self.checkpoint.tokens() == Some(checkpoint_tokens)
            && recorded.is_some_and(|recorded| kept <= recorded && is_behind(recorded))
    }

    /// Returns to the state `kept` tokens after the checkpoint.
    pub(crate) fn replay(&mut self, model: &Decoder, kept: usize) -> Result<(), EngineError> {
        Ok(self.state.replay(model, &self.checkpoint, kept)?)
    }

    /// True if the state at a position is known; always for models without recurrent layers.
    pub(crate) fn knows(&self, tokens: usize) -> bool {
        self.latest_known(tokens) == tokens
    }

    /// The positions with a known state, including 0, for models with recurrent layers.
    pub(crate) fn positions(&self) -> [usize; 4] {
        [&self.state, &self.before_prompt, &self.boundary, &self.checkpoint].map(position)
    }

    /// The latest position up to `tokens` with a known state; `tokens` for models without recurrent layers.
    pub(crate) fn latest_known(&self, tokens: usize) -> usize {
        if self.state.is_empty() {
            return tokens;
        }
        let known = self.positions().into_iter().filter(|position| *position <= tokens);
        known.max().unwrap_or(0)
    }

    /// Returns to the latest position up to `tokens` with a known state, and returns this position: `tokens` for
    /// models without recurrent layers.
    pub(crate) fn restore(&mut self, tokens: usize) -> Result<usize, EngineError> {
        if self.state.is_empty() || self.state.tokens() == Some(tokens) {
            return Ok(tokens);
        }
        // Copies of removed tokens would otherwise be mistaken for those of other tokens at their positions.
        for copy in self.copies_mut() {
            if position(copy) > tokens {
                copy.reset();
            }
        }
        let mut latest = &self.before_prompt;
        for copy in [&self.boundary, &self.checkpoint] {
            if position(copy) >= position(latest) {
                latest = copy;
            }
        }
        self.state.copy_from(latest)?;
        Ok(position(latest))
    }

    fn copies_mut(&mut self) -> [&mut RecurrentState; 3] {
        [&mut self.before_prompt, &mut self.boundary, &mut self.checkpoint]
    }
}

fn keep(state: &RecurrentState, copy: &mut RecurrentState) -> Result<(), EngineError> {
    if state.tokens() != copy.tokens() {
        copy.copy_from(state)?;
    }
    Ok(())
}

/// Copies are made only if all layers agree.
fn position(copy: &RecurrentState) -> usize {
    copy.tokens().unwrap_or(0)
}
