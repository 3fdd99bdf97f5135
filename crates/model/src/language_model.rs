//! The seam between a model and the engine that drives it.

use std::any::Any;
use std::error::Error;

use crate::{ModelConfig, ModelError, RecurrentState, Workspace};

/// Queries, keys and values of one layer for a batch of consecutive tokens.
#[derive(Debug, Clone, Copy)]
pub struct AttentionInput<'a> {
    /// The layer.
    pub layer: usize,
    /// Its place among the layers that hold keys and values.
    pub cache_layer: usize,
    /// Absolute position of the first token.
    pub start_position: usize,
    /// Tokens in the batch.
    pub tokens: usize,
    /// `[tokens, heads, head_dim]`, rotated.
    pub queries: &'a [f32],
    /// `[tokens, kv_heads, head_dim]`, rotated; empty where they are taken from `on_device`.
    pub keys: &'a [f32],
    /// `[tokens, kv_heads, head_dim]`; likewise.
    pub values: &'a [f32],
    /// All of them where the device that computed them keeps them, for a step that [takes them there](AttentionStep::meet).
    pub on_device: Option<&'a OnDevice>,
}

/// What a device keeps of a layer, of a type that decoder and attention step know.
pub type OnDevice = dyn Any + Send + Sync;

/// Where an attention step left its result, `[tokens, heads, head_dim]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attended {
    /// In the output it was given.
    InOutput,
    /// Where [`AttentionInput::on_device`] has room for it; the output says nothing.
    OnDevice,
}

/// What a model asks of its caller in each layer: keep keys and values, and attend to those the caller chooses.
pub trait AttentionStep {
    /// A decoder on a device shows queries, keys and values where they lie, before queries come to main memory for
    /// [`attend`](Self::attend): the step may change them there, and says whether it takes keys and values from there, so that they
    /// need not come as well.
    fn meet(&mut self, _rows: &OnDevice) -> Result<bool, Box<dyn Error + Send + Sync>> {
        Ok(false)
    }

    /// Writes the attention result, `[tokens, heads, head_dim]`, to `output`, or leaves it on the device whose rows it was given;
    /// says which.
    fn attend(
        &mut self,
        input: AttentionInput<'_>,
        output: &mut [f32],
    ) -> Result<Attended, Box<dyn Error + Send + Sync>>;
}

/// A decoder, driven layer by layer.
///
/// Results are the same to the bit for every split of a text into batches and for every number of threads, as far as
/// the attention step's are. Recurrent layers read chunks of 64 tokens at a time: with them, splits elsewhere than at
/// multiples of 64 tokens change results by rounding.
pub trait LanguageModel: Send + Sync {
    /// Sizes and settings.
    fn config(&self) -> &ModelConfig;

    /// Writes the embeddings of `tokens` to `hidden`, `[tokens, hidden_size]`.
    fn embed(&self, tokens: &[u32], hidden: &mut [f32]) -> Result<(), ModelError>;

    /// Takes `hidden`, `[tokens, hidden_size]`, through one layer. A recurrent layer reads and renews its part of
    /// `recurrent`, which must have seen the `start_position` tokens before; after an error that part is undefined.
    fn layer(
        &self,
        layer: usize,
        start_position: usize,
        hidden: &mut [f32],
        attention: &mut dyn AttentionStep,
        recurrent: &mut RecurrentState,
        workspace: &mut Workspace,
    ) -> Result<(), ModelError>;

    /// Writes the logits of `hidden`, `[tokens, hidden_size]`, to `out`, `[tokens, vocab_size]`.
    ///
    /// # Panics
    ///
    /// When `out` is not as long as the tokens of `hidden` need or the workspace is another model's.
    fn logits(&self, hidden: &[f32], out: &mut [f32], workspace: &mut Workspace);
}
