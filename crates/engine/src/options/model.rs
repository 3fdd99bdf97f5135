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
    /// Model families from other crates, in addition to `riffle-model`'s.
    pub families: &'static [Family],
    /// Length of the context in tokens; `None` uses the model's length, or the length that fits in memory if it is
    /// shorter.
    pub context_tokens: Option<usize>,
    /// Scaling of positions beyond the model's length, replacing the model's own scaling.
    pub rope_scaling: Option<RopeScaling>,
    /// Rounding of the input of linear layers with bf16 weights on the CPU: it reads prompts at twice the speed and
    /// changes logits by about 1e-2. Other weights are unaffected; quantised ones always round their input to 8 bits.
    pub activations: Activations,
    /// Precision of products in attention of prompt tokens. Rounding changes hidden states after the first layer, and
    /// so the keys and values, which cannot be mixed with exact ones.
    pub attention: AttentionPrecision,
    /// Layers above the middle read only the tokens that the end of a prompt attends to. It applies to prompts of
    /// empty sequences; `None` reads every token in every layer.
    pub token_selection: Option<TokenSelection>,
    /// A small model with the same tokens, which drafts answers that request `model:PATH`
    /// ([`DraftSpec`](crate::DraftSpec)). It uses the memory that the plan leaves.
    pub draft_model: Option<PathBuf>,
    /// Load the layer in the model's files that predicts further tokens. It drafts answers that request `mtp`
    /// ([`DraftSpec`](crate::DraftSpec)). Every sequence then stores keys and values of one more layer.
    pub draft_predictor: bool,
    /// Sum the squares of the inputs of every linear layer ([`Engine::input_sums`](crate::Engine::input_sums)); only
    /// on a CPU.
    pub input_sums: bool,
    /// Adapters (LoRA) to load beside the weights, at most [`MOST_ADAPTERS`](riffle_model::MOST_ADAPTERS).
    /// [`SequenceOptions::adapters`](crate::SequenceOptions::adapters) sets their strengths for each sequence.
    pub adapters: Vec<AdapterSpec>,
}

impl ModelOptions {
    /// The options for reading a model's files.
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

    /// Measured rate of reading experts from the files of the model at `path`, in bytes per second; `None` if no
    /// experts can stay there.
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
