//! Options of the model.

use std::path::{Path, PathBuf};

use riffle_model::{Activations, AdapterSpec, Family, LoadOptions, ModelInfo, OpenedModel, RopeScaling};

use super::TokenSelection;
use crate::error::require;
use crate::{AttentionPrecision, EngineError};

/// Options of the model: its files, its context, and the arithmetic of its layers.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ModelOptions {
    /// Model families from other crates, beside those of `riffle-model`.
    pub families: &'static [Family],
    /// Tokens the context may hold; `None` takes the length that the model was made for, or the length that fits in memory if that is
    /// less.
    pub context_tokens: Option<usize>,
    /// Positions stretched beyond the length that the model was made for, in place of the model's own stretching.
    pub rope_scaling: Option<RopeScaling>,
    /// Rounding of the input of linear layers with bf16 weights on the CPU: it reads prompts at twice the speed and moves
    /// logits by some 1e-2. Other weights are not concerned: quantised ones round their input to 8 bits in any case.
    pub activations: Activations,
    /// Precision of the products in attention of prompt tokens. Rounded, hidden states after the first layer differ, and so
    /// do the keys and values made of them: they go together with no others.
    pub attention: AttentionPrecision,
    /// Layers above the middle read only the tokens that the end of a prompt attends to. It holds for prompts that empty sequences
    /// read; `None` reads every token in every layer.
    pub token_selection: Option<TokenSelection>,
    /// A small model with the same tokens, which drafts answers that ask for `model:PATH` ([`DraftSpec`](crate::DraftSpec)). It takes the
    /// memory that the plan leaves.
    pub draft_model: Option<PathBuf>,
    /// Load the layer of the model's own files that predicts further tokens, which drafts answers that ask for `mtp`
    /// ([`DraftSpec`](crate::DraftSpec)). Every sequence then keeps keys and values of one layer more.
    pub draft_predictor: bool,
    /// Sum the squares of the inputs of every linear layer ([`Engine::input_sums`](crate::Engine::input_sums)); on a CPU alone.
    pub input_sums: bool,
    /// Adapters (LoRA) that are loaded beside the weights, at most [`MOST_ADAPTERS`](riffle_model::MOST_ADAPTERS). Which of them a sequence
    /// is computed with, and how strongly, [`SequenceOptions::adapters`](crate::SequenceOptions::adapters) says.
    pub adapters: Vec<AdapterSpec>,
}

impl ModelOptions {
    /// The part of them that reading a model's files takes.
    pub fn load_options(&self) -> LoadOptions {
        LoadOptions::default()
            .with_rope_scaling(self.rope_scaling)
            .with_activations(self.activations)
            .with_families(self.families)
            .with_predictor(self.draft_predictor)
            .with_input_sums(self.input_sums)
    }

    /// The facts of the model at `path` and of the adapters beside it, from their headers.
    ///
    /// # Errors
    /// [`EngineError::Model`].
    pub fn inspect(&self, path: &Path) -> Result<ModelInfo, EngineError> {
        Ok(self.open(path)?.info())
    }

    /// Bytes a second at which experts are read from the files of the model at `path`, measured for a moment; `None` where no experts can stay
    /// there.
    ///
    /// # Errors
    /// [`EngineError::Model`].
    pub fn expert_read_rate(&self, path: &Path) -> Result<Option<f64>, EngineError> {
        Ok(self.open(path)?.expert_read_rate()?)
    }

    pub(crate) fn open(&self, path: &Path) -> Result<OpenedModel, EngineError> {
        Ok(OpenedModel::open(path, &self.load_options())?.with_adapters(&self.adapters)?)
    }

    /// Checks these options by themselves.
    pub(super) fn validate(&self) -> Result<(), EngineError> {
        if let Some(adapter) = self.adapters.iter().find(|adapter| !adapter.scale.is_finite()) {
            let value = format!("{}={}", adapter.path.display(), adapter.scale);
            return Err(EngineError::option("adapters", value, "the scale must be a number"));
        }
        let is_allowed = self.context_tokens != Some(0);
        require(is_allowed, "context_tokens", 0, "it must be at least 1 token")
    }
}
