//! The layer after a model's own that predicts the token after the next one.
//!
//! Its inputs at a position are the embedding of the next token and the hidden state for the output head (after the
//! final norm). It predicts the hidden state of the next position, and can continue from its own result. It attends
//! to its own keys and values, one pair per position, which the caller stores.

use std::sync::Arc;

use crate::blocks::{Norm, Projection, RotaryTable, for_rows};
use crate::layer::Layer;
use crate::workspace::Workspace;
use crate::{Batch, Decoder, ModelConfig, ModelError, Projected, scratch_bytes};

/// The weights of the layer. Embedding and head are the model's.
pub struct Predictor {
    /// Norm of the next token's embedding.
    pub embedding_norm: Norm,
    /// Norm of the hidden state.
    pub hidden_norm: Norm,
    /// Projection from the normalised embedding followed by the normalised state, `[hidden_size, 2 * hidden_size]`.
    pub join: Projection,
    /// An attention layer, as in the model.
    pub layer: Layer,
    /// The norm before the head, which also gives the next hidden state.
    pub final_norm: Norm,
}

/// Runs a [`Predictor`] on the CPU: [`project`](Self::project), attend, [`finish`](Self::finish), then
/// [`hidden`](Self::hidden) and [`logits`](Self::logits).
pub struct PredictorForward {
    model: Arc<Decoder>,
    batch: Option<Batch>,
    // [rows, hidden_size]
    hidden: Vec<f32>,
    // [rows, 2, hidden_size]
    joined: Vec<f32>,
    workspace: Workspace,
}

impl Predictor {
    /// Bytes of the predictor's weights in memory.
    pub(crate) fn bytes(&self) -> u64 {
        let norms = [&self.embedding_norm, &self.hidden_norm, &self.final_norm].map(Norm::bytes);
        norms.iter().sum::<u64>() + self.join.bytes() + self.layer.bytes()
    }
}

impl PredictorForward {
    /// Scratch for up to `rows` rows at a time; `None` for a model without a predictor.
    pub fn new(model: &Arc<Decoder>, rows: usize) -> Option<PredictorForward> {
        model.predictor.as_ref()?;
        Some(PredictorForward {
            batch: None,
            hidden: Vec::new(),
            joined: Vec::new(),
            workspace: Workspace::new(&model.config, rows),
            model: Arc::clone(model),
        })
    }

    /// Bytes of scratch for `rows` rows.
    pub fn scratch_bytes(config: &ModelConfig, rows: usize) -> u64 {
        let floats = 3 * (rows as u64).saturating_mul(config.hidden_size as u64);
        scratch_bytes(config, rows).saturating_add(4 * floats)
    }

    /// Maximum number of rows at a time.
    pub fn most_rows(&self) -> usize {
        self.workspace.batch_tokens()
    }

    /// Joins each token of `batch` with the hidden state at the position before it, `[rows, hidden_size]`, and
    /// projects the rows. Positions of the batch are the states' positions. The caller stores keys and values, and
    /// attends to them before [`finish`](Self::finish).
    ///
    /// # Errors
    /// [`ModelError::TokenOutOfRange`], [`ModelError::BatchTooLarge`], [`ModelError::BufferLength`] for states of
    /// another length.
    pub fn project(&mut self, batch: &Batch, hidden: &[f32]) -> Result<Projected<'_>, ModelError> {
        let (model, workspace) = (&*self.model, &mut self.workspace);
        let Some(predictor) = &model.predictor else {
            unreachable!("made of a model with a predictor")
        };
        let (config, width, rows) = (&model.config, model.config.hidden_size, batch.rows());
        batch.check(config.vocab_size, workspace.batch_tokens())?;
        ModelError::check_length("hidden", rows * width, hidden.len())?;
        self.hidden.resize(rows * width, 0.0);
        self.joined.resize(2 * rows * width, 0.0);
        model.embed(batch.tokens(), &mut self.hidden);
        let embedded = &self.hidden;
        for_rows(&mut self.joined, 2 * width, |row, joined| {
            let (embedding, state) = joined.split_at_mut(width);
            embedding.copy_from_slice(&embedded[row * width..][..width]);
            state.copy_from_slice(&hidden[row * width..][..width]);
            predictor.embedding_norm.apply_in_place(embedding);
            predictor.hidden_norm.apply_in_place(state);
        });
        predictor.join.apply(&self.joined, &mut self.hidden, &[]);
        workspace.rotary_tables.iter_mut().for_each(RotaryTable::clear);
        let mut shape = config.attention_of(0);
        if let Some(attention) = &predictor.layer.attention {
            attention.project(config, batch, 0..rows, &self.hidden, workspace);
            shape = attention.shape;
        }
        self.batch = Some(batch.clone());
        Ok(workspace.projected(&shape, None, rows))
    }

    /// Runs the projected rows through the rest of the layer, starting from [`Projected::attended`].
    ///
    /// # Errors
    /// [`ModelError`] for experts that cannot be read.
    pub fn finish(&mut self) -> Result<(), ModelError> {
        let model = &*self.model;
        let (Some(predictor), Some(batch)) = (&model.predictor, &self.batch) else {
            return Ok(());
        };
        let (layer, rows) = (&predictor.layer, 0..batch.rows());
        layer.finish(batch, rows, &mut self.hidden, &mut self.workspace, &mut []);
        layer.begin_experts(batch, &mut self.workspace);
        while !layer.advance_experts(batch, &mut self.hidden, &mut self.workspace, None)? {}
        for_rows(&mut self.hidden, model.config.hidden_size, |_, row| {
            predictor.final_norm.apply_in_place(row);
        });
        Ok(())
    }

    /// The hidden states of the finished rows, `[rows, hidden_size]`: the input for the next rows.
    pub fn hidden(&self) -> &[f32] {
        &self.hidden
    }

    /// Writes the logits of all finished rows to `out`, `[rows, vocab_size]`.
    ///
    /// # Errors
    /// [`ModelError::BufferLength`] for an `out` of another length.
    pub fn logits(&mut self, out: &mut [f32]) -> Result<(), ModelError> {
        let config = &self.model.config;
        let rows = self.hidden.len() / config.hidden_size;
        ModelError::check_length("out", rows * config.vocab_size, out.len())?;
        self.model.head_logits(&self.hidden, out);
        Ok(())
    }
}
