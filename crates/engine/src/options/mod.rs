//! Options of a run, checked before anything is allocated.

mod cache;
mod indexers;
mod machine;
mod model;
mod names;
mod sequence;
mod setters;
mod token_selection;
mod window;

use crate::EngineError;
pub use cache::CacheOptions;
pub(crate) use indexers::{check_indexers, check_sequence, has_indexers};
pub use machine::MachineOptions;
pub use model::ModelOptions;
pub use names::rename_options;
pub use sequence::SequenceOptions;
pub use token_selection::TokenSelection;
pub use window::StreamWindow;

/// Options of an engine, in four parts. There is a setter for each option; fields are accessed through the parts.
///
/// ```
/// use riffle_engine::EngineOptions;
///
/// let options = EngineOptions::default()
///     .with_context_tokens(Some(4096))
///     .with_decode("quest".parse()?);
/// assert_eq!(options.model.context_tokens, Some(4096));
/// assert_eq!(options.machine.sequences, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct EngineOptions {
    /// The device, the memory, and the work at a time.
    pub machine: MachineOptions,
    /// The model's files, its context and its arithmetic.
    pub model: ModelOptions,
    /// The format and tiers of cached keys and values.
    pub cache: CacheOptions,
    /// Options of sequences whose requests set none of their own.
    pub sequence: SequenceOptions,
}

/// The known part of a run's text, before the model is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptText {
    /// Bytes of the text.
    pub bytes: u64,
    /// Number of prompts built from the text, such as one per question.
    pub prompts: usize,
}

impl EngineOptions {
    /// Checks the options as far as possible without a model.
    ///
    /// # Errors
    /// [`EngineError::Option`] names the option, its value and the values allowed; [`EngineError::Policy`] a policy
    /// that does not support its phase, or chunks this short.
    pub fn validate(&self) -> Result<(), EngineError> {
        self.machine.validate()?;
        self.cache.validate()?;
        self.model.validate()?;
        self.sequence.validate(self.machine.chunk_tokens)
    }

    /// Maximum number of tokens appended to a layer of the cache at a time.
    pub(crate) fn append_tokens(&self) -> usize {
        // Two-phase policies need a complete batch at once.
        if self.sequence.prefill.has_two_phases() {
            self.machine.batch_tokens
        } else {
            self.machine.chunk_tokens
        }
    }

    /// The context length for a model that supports `max_position` tokens.
    ///
    /// # Errors
    /// [`EngineError::ContextTooLong`] if more tokens are requested than the model supports.
    pub fn context_for(&self, max_position: usize) -> Result<usize, EngineError> {
        if let (Some(window), Some(context)) = (self.sequence.window, self.model.context_tokens)
            && context > max_position
        {
            let requirement = format!(
                "with sinks, a page and a chunk it takes {context} tokens and this model was made for {max_position}: use a smaller window, or a smaller `chunk_tokens`"
            );
            return Err(EngineError::option("window_tokens", window.window_tokens, requirement));
        }
        let (context, maximum) = (self.model.context_tokens.unwrap_or(max_position), max_position);
        if context > maximum {
            return Err(EngineError::ContextTooLong { context, maximum });
        }
        Ok(context)
    }
}
