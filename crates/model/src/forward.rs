//! A batch on its way through a model, wherever the model computes.

use std::ops::Range;
use std::sync::Arc;

use crate::{AttentionStep, Decoder, LanguageModel, ModelError, RecurrentState, Workspace};

/// Hidden states of one batch after another, kept where the model computes: in main memory ([`HostForward`]) or on a
/// device.
pub trait Forward: Send {
    /// The longest batch there is memory for.
    fn batch_tokens(&self) -> usize;

    /// Begins a batch with the embeddings of its tokens.
    ///
    /// # Errors
    /// [`ModelError::TokenOutOfRange`], [`ModelError::BatchTooLarge`], a device that fails.
    fn embed(&mut self, tokens: &[u32]) -> Result<(), ModelError>;

    /// Takes the batch through a layer, as [`LanguageModel::layer`].
    ///
    /// # Errors
    /// As [`LanguageModel::layer`]; a device that fails.
    fn layer(
        &mut self,
        layer: usize,
        start_position: usize,
        attention: &mut dyn AttentionStep,
        recurrent: &mut RecurrentState,
    ) -> Result<(), ModelError>;

    /// Writes the logits of tokens `rows` of the batch to `out`, `[rows, vocab_size]`.
    ///
    /// # Errors
    /// A device that fails.
    fn logits(&mut self, rows: Range<usize>, out: &mut [f32]) -> Result<(), ModelError>;
}

/// A batch in main memory, computed by the CPU.
pub struct HostForward {
    model: Arc<Decoder>,
    // [tokens, hidden_size]
    hidden: Vec<f32>,
    workspace: Workspace,
}

impl HostForward {
    /// Memory for batches of up to `batch_tokens` tokens in a context of up to `context_tokens`.
    pub fn new(model: &Arc<Decoder>, batch_tokens: usize, context_tokens: usize) -> HostForward {
        HostForward {
            hidden: Vec::new(),
            workspace: Workspace::new(&model.config, batch_tokens).for_context(context_tokens),
            model: Arc::clone(model),
        }
    }
}

impl Forward for HostForward {
    fn batch_tokens(&self) -> usize {
        self.workspace.batch_tokens()
    }

    fn embed(&mut self, tokens: &[u32]) -> Result<(), ModelError> {
        self.hidden.resize(tokens.len() * self.model.config.hidden_size, 0.0);
        self.model.embed(tokens, &mut self.hidden)
    }

    fn layer(
        &mut self,
        layer: usize,
        start_position: usize,
        attention: &mut dyn AttentionStep,
        recurrent: &mut RecurrentState,
    ) -> Result<(), ModelError> {
        let (hidden, workspace) = (&mut self.hidden, &mut self.workspace);
        self.model
            .layer(layer, start_position, hidden, attention, recurrent, workspace)
    }

    fn logits(&mut self, rows: Range<usize>, out: &mut [f32]) -> Result<(), ModelError> {
        let width = self.model.config.hidden_size;
        let hidden = &self.hidden[rows.start * width..rows.end * width];
        self.model.logits(hidden, out, &mut self.workspace);
        Ok(())
    }
}
