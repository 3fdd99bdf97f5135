//! A batch on its way through a model, wherever the model computes.

use std::sync::Arc;

use crate::blocks::RotaryTable;
use crate::workspace::Workspace;
use crate::{Batch, Decoder, ModelError, RecurrentState};

/// Hidden states of one batch after another, kept where the model computes: in main memory ([`HostForward`]) or on a
/// device.
///
/// A batch begins with [`embed`](Self::embed). Then for each layer in order the model [projects](Self::project), the caller
/// attends, the model [finishes](Self::finish) the layer. Last come the [`logits`](Self::logits) of the rows that are wanted.
///
/// Results of a segment are the same to the bit for every number of threads and whatever other segments are in the batch, and
/// for every split of a text into batches, as far as the caller's attention is. Recurrent layers read chunks of 64 tokens at a time:
/// with them, splits elsewhere than at multiples of 64 tokens change results by rounding. A device rounds products of many rows
/// otherwise than those of few.
pub trait Forward: Send {
    /// The longest batch there is memory for, in rows.
    fn batch_tokens(&self) -> usize;

    /// Begins a batch with the embeddings of its tokens.
    ///
    /// # Errors
    /// [`ModelError::TokenOutOfRange`], [`ModelError::BatchTooLarge`], a device that fails.
    fn embed(&mut self, batch: &Batch) -> Result<(), ModelError>;

    /// What a layer attends with, of all rows of the batch; `None` for a recurrent layer, which has nothing to attend to.
    ///
    /// # Errors
    /// [`ModelError::NoSuchLayer`]; a device that fails.
    fn project(&mut self, layer: usize) -> Result<Option<Projected<'_>>, ModelError>;

    /// Takes the batch through the rest of a layer, from what was written to [`Projected::attended`]. A recurrent layer reads
    /// and renews its part of `states`, one for each segment, which must have seen the tokens before the segment; after an error
    /// that part is undefined.
    ///
    /// # Errors
    /// [`ModelError::NoSuchLayer`], [`ModelError::WrongStates`], [`ModelError::WrongRecurrentState`],
    /// [`ModelError::RecurrentPosition`]; a device that fails.
    fn finish(&mut self, layer: usize, states: &mut [&mut RecurrentState]) -> Result<(), ModelError>;

    /// Writes the logits of some rows of the batch to `out`, `[rows, vocab_size]`.
    ///
    /// # Errors
    /// [`ModelError::BufferLength`] for an `out` of another length, a device that fails.
    ///
    /// # Panics
    /// For a row that the batch does not have.
    fn logits(&mut self, rows: &[usize], out: &mut [f32]) -> Result<(), ModelError>;
}

/// Queries, keys and values of one layer for the rows of a batch, and room for what attention makes of them. The caller may
/// change all of them.
#[derive(Debug)]
pub struct Projected<'a> {
    /// `[rows, heads, head_dim]`, turned to their positions.
    pub queries: &'a mut [f32],
    /// `[rows, kv_heads, head_dim]`, turned to their positions.
    pub keys: &'a mut [f32],
    /// `[rows, kv_heads, head_dim]`.
    pub values: &'a mut [f32],
    /// `[rows, heads, head_dim]`: the caller writes the attention result here.
    pub attended: &'a mut [f32],
}

/// A batch in main memory, computed by the CPU.
pub struct HostForward {
    model: Arc<Decoder>,
    batch: Option<Batch>,
    // [rows, hidden_size]
    hidden: Vec<f32>,
    workspace: Workspace,
}

impl HostForward {
    /// Memory for batches of up to `batch_tokens` tokens in a context of up to `context_tokens`.
    ///
    /// Models with LongRoPE turn heads otherwise in long contexts than in short ones, and a sequence must stay with one way.
    pub fn new(model: &Arc<Decoder>, batch_tokens: usize, context_tokens: usize) -> HostForward {
        HostForward {
            batch: None,
            hidden: Vec::new(),
            workspace: Workspace::new(&model.config, batch_tokens, context_tokens),
            model: Arc::clone(model),
        }
    }

    /// Bytes it holds beside the hidden states: those that [`scratch_bytes`](crate::scratch_bytes) says.
    pub fn scratch_bytes(&self) -> u64 {
        self.workspace.bytes()
    }
}

impl Forward for HostForward {
    fn batch_tokens(&self) -> usize {
        self.workspace.batch_tokens()
    }

    fn embed(&mut self, batch: &Batch) -> Result<(), ModelError> {
        batch.check(self.model.config.vocab_size, self.workspace.batch_tokens())?;
        self.hidden.resize(batch.rows() * self.model.config.hidden_size, 0.0);
        self.model.embed(batch.tokens(), &mut self.hidden);
        self.workspace.rotary_tables.iter_mut().for_each(RotaryTable::clear);
        self.batch = Some(batch.clone());
        Ok(())
    }

    fn project(&mut self, layer: usize) -> Result<Option<Projected<'_>>, ModelError> {
        let own = self.model.layer(layer)?;
        let (Some(attention), Some(batch)) = (&own.attention, &self.batch) else {
            return Ok(None);
        };
        let config = &self.model.config;
        Ok(Some(attention.project(
            config,
            batch,
            &self.hidden,
            &mut self.workspace,
        )))
    }

    fn finish(&mut self, layer: usize, states: &mut [&mut RecurrentState]) -> Result<(), ModelError> {
        let own = self.model.layer(layer)?;
        let Some(batch) = &self.batch else {
            return Ok(());
        };
        batch.check_states(states.len())?;
        let segments = batch.segments().iter().zip(states);
        let states = segments.map(|(segment, state)| state.layer_mut(&self.model.config, layer, segment.position));
        let mut states: Vec<_> = states.collect::<Result<_, _>>()?;
        own.finish(batch, &mut self.hidden, &mut self.workspace, &mut states);
        Ok(())
    }

    fn logits(&mut self, rows: &[usize], out: &mut [f32]) -> Result<(), ModelError> {
        let vocab_size = self.model.config.vocab_size;
        ModelError::check_length("out", rows.len() * vocab_size, out.len())?;
        self.model.logits(&self.hidden, rows, out, &mut self.workspace);
        Ok(())
    }
}
