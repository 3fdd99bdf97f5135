//! The recurrent state of a session, and the positions it can go back to.

use riffle_model::{ModelConfig, RecurrentState};

use crate::EngineError;

/// The state of the layers that hold no keys and values, with copies of it from before the latest prompt and from the
/// end of its latest batch. Empty for models without such layers.
pub(crate) struct Recurrence {
    pub(crate) state: RecurrentState,
    before_prompt: RecurrentState,
    boundary: RecurrentState,
}

impl Recurrence {
    /// States that are held: the current one and two copies.
    pub(crate) const STATES: u64 = 3;

    pub(crate) fn new(config: &ModelConfig) -> Self {
        let state = RecurrentState::new(config);
        Self {
            before_prompt: state.clone(),
            boundary: state.clone(),
            state,
        }
    }

    /// Continues from a state that was stored.
    pub(crate) fn resume(&mut self, state: RecurrentState) -> Result<(), EngineError> {
        self.state = state;
        self.before_prompt.reset();
        self.keep_boundary()
    }

    /// Continues from where another is.
    pub(crate) fn copy_from(&mut self, other: &Self) -> Result<(), EngineError> {
        self.state.copy_from(&other.state)?;
        self.before_prompt.copy_from(&other.before_prompt)?;
        self.boundary.copy_from(&other.boundary).map_err(EngineError::from)
    }

    /// Begins anew.
    pub(crate) fn reset(&mut self) {
        for state in [&mut self.state, &mut self.before_prompt, &mut self.boundary] {
            state.reset();
        }
    }

    /// Copies the state before a prompt is read.
    pub(crate) fn keep_before_prompt(&mut self) -> Result<(), EngineError> {
        keep(&self.state, &mut self.before_prompt)
    }

    /// Copies the state after a batch of a prompt.
    pub(crate) fn keep_boundary(&mut self) -> Result<(), EngineError> {
        keep(&self.state, &mut self.boundary)
    }

    /// Takes the state back to the latest position up to `tokens` at which it is known, and returns that position:
    /// `tokens` itself for models without recurrent layers.
    pub(crate) fn restore(&mut self, tokens: usize) -> Result<usize, EngineError> {
        if self.state.is_empty() || self.state.tokens() == Some(tokens) {
            return Ok(tokens);
        }
        // Copies of what is forgotten would be taken for those of other tokens at their positions.
        for copy in [&mut self.before_prompt, &mut self.boundary] {
            if position(copy) > tokens {
                copy.reset();
            }
        }
        let latest = match position(&self.before_prompt) > position(&self.boundary) {
            true => &self.before_prompt,
            false => &self.boundary,
        };
        self.state.copy_from(latest)?;
        Ok(position(latest))
    }
}

fn keep(state: &RecurrentState, copy: &mut RecurrentState) -> Result<(), EngineError> {
    if state.tokens() != copy.tokens() {
        copy.copy_from(state)?;
    }
    Ok(())
}

/// Copies are only made when all layers agree.
fn position(copy: &RecurrentState) -> usize {
    copy.tokens().unwrap_or(0)
}
