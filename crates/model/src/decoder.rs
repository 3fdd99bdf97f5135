//! The parts of a decoder around its layers: embedding, final norm, output head.

use std::sync::Arc;

use riffle_linear::PackedMatrix;

use crate::blocks::{LayerInputs, Norm, PositionTable, StreamStep};
use crate::fields::Fields;
use crate::inputs::InputSums;
use crate::layer::{Layer, Step};
use crate::weights::Checkpoint;
use crate::workspace::{CUT_GRID, ROW_BLOCK, Workspace};
use crate::{Batch, ExpertCache, ModelConfig, ModelError, ModelOutline, Predictor, ScoreHead, SegmentPart};

/// A complete model: weights and the order of its steps. A [`Forward`](crate::Forward) runs batches through it.
pub struct Decoder {
    /// Sizes and settings.
    pub config: ModelConfig,
    /// `[vocab_size, hidden_size]`.
    pub embedding: PackedMatrix,
    /// Factor on embeddings, if the family has one.
    pub embedding_scale: Option<f32>,
    /// The norm of embeddings, if the family has one.
    pub embedding_norm: Option<Norm>,
    /// Learned embeddings of positions, if the family has them in place of rotations.
    pub positions: Option<PositionTable>,
    /// Inputs of all layers that depend only on the token, if the family has them.
    pub layer_inputs: Option<LayerInputs>,
    /// The step that makes the residual streams from embeddings, if there are several.
    pub streams: Vec<StreamStep>,
    /// The layers, first to last.
    pub layers: Vec<Layer>,
    /// The norm before the output head.
    pub final_norm: Norm,
    /// `[vocab_size, hidden_size]`; `None` if the embedding is the output head.
    pub head: Option<PackedMatrix>,
    /// `[vocab_size]`.
    pub head_bias: Option<Vec<f32>>,
    /// The head of a model that scores texts.
    pub score_head: Option<ScoreHead>,
    /// Logits become cap · tanh(logit / cap), if the family does this.
    pub logit_cap: Option<f32>,
    /// The layer that predicts further tokens, if it was requested at load.
    pub predictor: Option<Box<Predictor>>,
    /// Sums over the inputs of linear layers, if requested at load.
    pub input_sums: Vec<Arc<InputSums>>,
    /// The cache of experts that stay in the model's files, if requested at load.
    pub expert_cache: Option<Arc<ExpertCache>>,
}

impl Decoder {
    /// Loads embedding and head under their usual names, before the layers. They are the largest tensors: loaded
    /// first, their file pages and packed weights share memory before the rest is loaded.
    pub fn new(config: &ModelConfig, weights: &mut Checkpoint, final_norm: Norm) -> Result<Decoder, ModelError> {
        let (vocab_size, hidden) = (config.vocab_size, config.hidden_size);
        let embedding = weights.matrix("model.embed_tokens.weight", vocab_size, hidden)?;
        // As in transformers, a head with its own weights is not tied, despite the settings.
        let has_own = weights.info("lm_head.weight").is_some()
            && !weights.are_equal(["model.embed_tokens.weight", "lm_head.weight"])?;
        let head = if config.tied_embeddings && !has_own {
            None
        } else {
            Some(weights.matrix("lm_head.weight", vocab_size, hidden)?)
        };
        Ok(Decoder {
            config: ModelConfig {
                tied_embeddings: head.is_none(),
                ..config.clone()
            },
            embedding,
            embedding_scale: None,
            embedding_norm: None,
            positions: None,
            layer_inputs: None,
            streams: Vec::new(),
            layers: Vec::new(),
            final_norm,
            head,
            head_bias: None,
            score_head: None,
            logit_cap: None,
            predictor: None,
            input_sums: Vec::new(),
            expert_cache: None,
        })
    }

    /// The model's outline, without weights.
    pub fn outline(&self) -> ModelOutline {
        ModelOutline::new(&self.config, &self.layers)
    }

    /// Bytes of the weights in memory, without a cache of experts.
    pub(crate) fn bytes(&self) -> u64 {
        let head = self.head.as_ref().map_or(0, |head| head.bytes() as u64);
        let bias = self.head_bias.as_ref().map_or(0, |bias| 4 * bias.len() as u64);
        let score = self.score_head.as_ref().map_or(0, ScoreHead::bytes);
        let layers: u64 = self.layers.iter().map(Layer::bytes).sum();
        let predictor = self.predictor.as_ref().map_or(0, |predictor| predictor.bytes());
        let embedding_norm = self.embedding_norm.as_ref().map_or(0, Norm::bytes);
        let inputs = self.layer_inputs.as_ref().map_or(0, LayerInputs::bytes)
            + self.streams.iter().map(StreamStep::bytes).sum::<u64>()
            + self.positions.as_ref().map_or(0, PositionTable::bytes)
            + embedding_norm;
        self.embedding.bytes() as u64 + inputs + layers + self.final_norm.bytes() + head + bias + score + predictor
    }

    /// Refuses layers whose attention or states differ from the configuration.
    ///
    /// # Errors
    /// [`ModelError::Config`].
    pub(crate) fn check_layers(&self, fields: &Fields) -> Result<(), ModelError> {
        for (number, layer) in self.layers.iter().enumerate() {
            let mut states = layer.steps.iter().filter_map(Step::state);
            let is_as_said = states.next() == self.config.state_of(number)
                && states.next().is_none()
                && layer.attention.is_some() == self.config.is_attention(number);
            let mut behind = layer.steps.iter().skip_while(|step| !matches!(step, Step::Experts(_)));
            behind.next();
            if behind.any(|step| matches!(step, Step::Experts(_) | Step::Recur(_))) {
                let problem = format!("layer {number} has a state or further experts behind its experts");
                return Err(fields.error("layers", problem));
            }
            if !is_as_said {
                let problem = format!("layer {number} is built with other attention or another state than configured");
                return Err(fields.error("layers", problem));
            }
        }
        Ok(())
    }

    /// One of the layers.
    ///
    /// # Errors
    /// [`ModelError::NoSuchLayer`].
    pub(crate) fn layer(&self, layer: usize) -> Result<&Layer, ModelError> {
        self.layers.get(layer).ok_or(ModelError::NoSuchLayer {
            layer,
            layers: self.layers.len(),
        })
    }

    /// Writes the embeddings of `tokens`, which must be valid, to `hidden`, `[tokens, hidden_size]`.
    pub(crate) fn embed(&self, tokens: &[u32], hidden: &mut [f32]) {
        let rows = hidden.chunks_exact_mut(self.config.hidden_size);
        for (&token, row) in tokens.iter().zip(rows) {
            self.embedding.row_into(token as usize, row);
            if let Some(scale) = self.embedding_scale {
                row.iter_mut().for_each(|value| *value *= scale);
            }
            if let Some(norm) = &self.embedding_norm {
                norm.apply_in_place(row);
            }
        }
    }

    /// Computes the inputs of all layers for the rows of a batch, if the model has them.
    pub(crate) fn prepare_layer_inputs(&self, batch: &Batch, workspace: &mut Workspace) {
        let Some(inputs) = &self.layer_inputs else { return };
        let width = self.config.hidden_size;
        let Workspace {
            normed, layer_inputs, ..
        } = workspace;
        let block = (normed.len() / width).clamp(1, ROW_BLOCK);
        let outputs = layer_inputs.chunks_mut(block * inputs.width());
        for (number, (tokens, output)) in batch.tokens().chunks(block).zip(outputs).enumerate() {
            let embedded = &mut normed[..tokens.len() * width];
            self.embed(tokens, embedded);
            let rows = number * block..number * block + tokens.len();
            let parts: Vec<SegmentPart> = batch.parts(rows).collect();
            inputs.prepare((tokens, &parts), embedded, &mut output[..tokens.len() * inputs.width()]);
        }
    }

    /// Computes the residual streams of a batch from its embeddings, `[rows, hidden_size]`, if there are several;
    /// `hidden` becomes the first layer's stream.
    pub(crate) fn begin_streams(&self, batch: &Batch, hidden: &mut [f32], workspace: &mut Workspace) {
        if self.streams.is_empty() {
            return;
        }
        for rows in batch.row_blocks(0..batch.rows(), ROW_BLOCK, CUT_GRID) {
            let parts: Vec<SegmentPart> = batch.parts(rows.clone()).collect();
            let mut block = workspace.row_block(batch, hidden, rows, 0);
            self.streams.iter().for_each(|step| step.apply(&mut block, &parts));
        }
    }

    /// Writes the logits of some rows of `hidden`, `[tokens, hidden_size]`, to `out`, `[rows, vocab_size]`.
    pub(crate) fn logits(&self, hidden: &[f32], rows: &[usize], out: &mut [f32], workspace: &mut Workspace) {
        let (width, vocab_size) = (self.config.hidden_size, self.config.vocab_size);
        let block = (workspace.normed.len() / width).clamp(1, ROW_BLOCK);
        for (rows, out) in rows.chunks(block).zip(out.chunks_mut(block * vocab_size)) {
            let normed = &mut workspace.normed[..rows.len() * width];
            let mut done = 0;
            for run in rows.chunk_by(|row, next| row + 1 == *next) {
                let hidden = &hidden[run[0] * width..][..run.len() * width];
                self.final_norm
                    .apply(hidden, &mut normed[done * width..][..run.len() * width]);
                done += run.len();
            }
            self.head_logits(normed, out);
        }
    }

    /// The matrix of the head.
    pub fn head(&self) -> &PackedMatrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// Writes the logits of normalised rows, `[rows, hidden_size]`, to `out`, `[rows, vocab_size]`.
    pub(crate) fn head_logits(&self, normed: &[f32], out: &mut [f32]) {
        self.head().matmul(normed, out);
        for row in out.chunks_exact_mut(self.config.vocab_size) {
            if let Some(bias) = &self.head_bias {
                row.iter_mut().zip(bias).for_each(|(logit, bias)| *logit += bias);
            }
            if let Some(cap) = self.logit_cap {
                row.iter_mut().for_each(|logit| *logit = cap * (*logit / cap).tanh());
            }
        }
    }
}
