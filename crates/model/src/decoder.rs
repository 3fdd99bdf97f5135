//! What every decoder is around its layers: embedding, final norm, output head.

use riffle_linear::PackedMatrix;

use crate::blocks::Norm;
use crate::language_model::{AttentionStep, LanguageModel};
use crate::layer::Layer;
use crate::weights::Checkpoint;
use crate::workspace::{Pass, ROW_BLOCK, Workspace};
use crate::{ModelConfig, ModelError, ModelOutline, RecurrentState};

/// A whole model: weights and the order of work. On the CPU it computes itself ([`LanguageModel`]).
pub struct Decoder {
    /// Sizes and settings.
    pub config: ModelConfig,
    /// `[vocab_size, hidden_size]`.
    pub embedding: PackedMatrix,
    /// Factor on embeddings, where a family has one.
    pub embedding_scale: Option<f32>,
    /// The layers, first to last.
    pub layers: Vec<Layer>,
    /// The norm before the head.
    pub final_norm: Norm,
    /// `[vocab_size, hidden_size]`; `None` where the embedding serves.
    pub head: Option<PackedMatrix>,
    /// `[vocab_size]`.
    pub head_bias: Option<Vec<f32>>,
    /// Logits are bent to cap · tanh(logit / cap), where a family does so.
    pub logit_cap: Option<f32>,
}

impl Decoder {
    /// Embedding and head under their usual names, around layers to come. They are the largest tensors: taken first,
    /// their file pages and their packed weights stand in memory together before the rest does.
    pub(crate) fn new(config: &ModelConfig, weights: &mut Checkpoint, final_norm: Norm) -> Result<Decoder, ModelError> {
        let (vocab_size, hidden) = (config.vocab_size, config.hidden_size);
        let embedding = weights.matrix("model.embed_tokens.weight", vocab_size, hidden)?;
        let head = match config.tied_embeddings {
            true => None,
            false => Some(weights.matrix("lm_head.weight", vocab_size, hidden)?),
        };
        Ok(Decoder {
            config: config.clone(),
            embedding,
            embedding_scale: None,
            layers: Vec::new(),
            final_norm,
            head,
            head_bias: None,
            logit_cap: None,
        })
    }

    /// What is known of it without its weights.
    pub fn outline(&self) -> ModelOutline {
        ModelOutline::new(&self.config, &self.layers)
    }

    /// Bytes the weights take in memory.
    pub(crate) fn bytes(&self) -> u64 {
        let head = self.head.as_ref().map_or(0, |head| head.bytes() as u64);
        let bias = self.head_bias.as_ref().map_or(0, |bias| 4 * bias.len() as u64);
        let layers: u64 = self.layers.iter().map(Layer::bytes).sum();
        self.embedding.bytes() as u64 + layers + self.final_norm.bytes() + head + bias
    }
}

impl LanguageModel for Decoder {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn embed(&self, tokens: &[u32], hidden: &mut [f32]) -> Result<(), ModelError> {
        let width = self.config.hidden_size;
        check_length("hidden", tokens.len() * width, hidden.len())?;
        if let Some(&token) = tokens.iter().find(|&&token| token as usize >= self.config.vocab_size) {
            return Err(ModelError::TokenOutOfRange {
                token,
                vocab_size: self.config.vocab_size,
            });
        }
        for (&token, row) in tokens.iter().zip(hidden.chunks_exact_mut(width)) {
            self.embedding.row_into(token as usize, row);
            if let Some(scale) = self.embedding_scale {
                row.iter_mut().for_each(|value| *value *= scale);
            }
        }
        Ok(())
    }

    fn layer(
        &self,
        layer: usize,
        start_position: usize,
        hidden: &mut [f32],
        attention: &mut dyn AttentionStep,
        recurrent: &mut RecurrentState,
        workspace: &mut Workspace,
    ) -> Result<(), ModelError> {
        let tokens = hidden.len() / self.config.hidden_size;
        check_length("hidden", tokens * self.config.hidden_size, hidden.len())?;
        workspace.check(&self.config, tokens)?;
        let Some(block) = self.layers.get(layer) else {
            return Err(ModelError::NoSuchLayer {
                layer,
                layers: self.layers.len(),
            });
        };
        let recurrent = recurrent.layer_mut(&self.config, layer, start_position)?;
        let mut pass = Pass {
            layer,
            start_position,
            tokens,
            attention,
            recurrent,
            workspace,
        };
        block.forward(&self.config, &mut pass, hidden)
    }

    fn logits(&self, hidden: &[f32], out: &mut [f32], workspace: &mut Workspace) {
        let (width, vocab_size) = (self.config.hidden_size, self.config.vocab_size);
        assert_eq!(
            hidden.len() / width * vocab_size,
            out.len(),
            "logits: `out` must hold [tokens, vocab_size]"
        );
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        let rows = (workspace.normed.len() / width).clamp(1, ROW_BLOCK);
        for (hidden, out) in hidden.chunks(rows * width).zip(out.chunks_mut(rows * vocab_size)) {
            let normed = &mut workspace.normed[..hidden.len()];
            self.final_norm.apply(hidden, normed);
            head.matmul(normed, out);
            for row in out.chunks_exact_mut(vocab_size) {
                if let Some(bias) = &self.head_bias {
                    row.iter_mut().zip(bias).for_each(|(logit, bias)| *logit += bias);
                }
                if let Some(cap) = self.logit_cap {
                    row.iter_mut().for_each(|logit| *logit = cap * (*logit / cap).tanh());
                }
            }
        }
    }
}

fn check_length(buffer: &'static str, expected: usize, found: usize) -> Result<(), ModelError> {
    if expected == found {
        Ok(())
    } else {
        Err(ModelError::BufferLength {
            buffer,
            expected,
            found,
        })
    }
}
