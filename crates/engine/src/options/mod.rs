//! What a run is asked to do, checked once before anything is allocated.

mod names;
mod sequence;
mod token_selection;
mod window;

use std::path::PathBuf;
use std::sync::Arc;

use riffle_attention::Format;
use riffle_device::ComputeDevice;
use riffle_kv::KvTiers;
use riffle_model::{Activations, Family, LoadOptions, RopeScaling};
use riffle_policy::{CostModel, Phase, PolicyRules, PolicySpec};

use crate::attention::rotation::Rotation;
use crate::{AttentionPrecision, EngineError};
pub use names::rename_options;
pub use sequence::SequenceOptions;
pub use token_selection::TokenSelection;
pub use window::StreamWindow;

/// How a model is run: context, batches, cache formats and policies.
///
/// Releases add options: name the ones you set and end with `..EngineOptions::default()`.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Model families from other crates, beside those of `riffle-model`.
    pub families: &'static [Family],
    /// Tokens the context may hold; `None` takes what the model was made for, or what fits in memory if that is less.
    pub context_tokens: Option<usize>,
    /// Positions stretched beyond what the model was made for, in place of the model's own stretching.
    pub rope_scaling: Option<RopeScaling>,
    /// Rounding of the input of linear layers with bf16 weights on the CPU: it reads prompts at twice the speed and moves
    /// logits by some 1e-2. Other weights are not concerned: quantised ones round their input to 8 bits in any case.
    pub activations: Activations,
    /// What attention of prompt tokens does with what it multiplies. Rounded, hidden states after the first layer differ, and so
    /// do the keys and values made of them: they go together with no others.
    pub attention: AttentionPrecision,
    /// Logical batch: tokens that go through one layer before the next layer starts.
    pub batch_tokens: usize,
    /// Chunk: tokens whose attention is computed together inside a layer.
    pub chunk_tokens: usize,
    /// Tokens in a page of the KV cache: a multiple of 16.
    pub page_tokens: usize,
    /// Element format of cached keys.
    pub key_format: Format,
    /// Element format of cached values.
    pub value_format: Format,
    /// Rotate heads before they are cached ([`riffle_attention::rotate_heads`]): both planes, none, or for `None` those
    /// in a 4-bit format, which lose least so.
    pub rotate: Option<bool>,
    /// Keep sinks and a window alone, of a sequence without end: set by [`EngineOptions::with_window`].
    pub window: Option<StreamWindow>,
    /// Sequences that are alive at a time: forks of a session, or requests of a [`Scheduler`](crate::Scheduler). The plan leaves room
    /// for what each has of its own.
    pub sequences: usize,
    /// Tokens that all sequences together may hold, shared ones counted once; `None` is one context full.
    pub pool_tokens: Option<usize>,
    /// Keep every page of layers with a sliding window, so that whole beginnings can be kept for other sequences: set for
    /// [`store_prefix`](crate::store_prefix) and [`share_prefix`](crate::share_prefix).
    /// Otherwise these layers hold their windows alone.
    pub keeps_beginnings: bool,
    /// Policies that choose what prompt tokens read.
    pub prefill: PolicyRules,
    /// Policies that choose what generated tokens read.
    pub decode: PolicyRules,
    /// Layers above the middle read only the tokens that the end of a prompt attends to. It holds for prompts that empty sequences
    /// read; `None` reads every token in every layer.
    pub token_selection: Option<TokenSelection>,
    /// What attention and estimates cost on this machine, for the guards of short prompts.
    pub cost: CostModel,
    /// Compare sampled queries with exact attention ([`Sequence::audit`](crate::Sequence::audit)).
    pub audit: bool,
    /// Move every KV head, while the prompt is read, to the cheapest of `streaming`, `vertical-slash`, `xattention` and
    /// `full` with which all but one in a hundred sampled queries keep this share of their mass; in place of `prefill`.
    pub auto_target: Option<f64>,
    /// Where KV pages may lie. How the cache will be used ([`KvTiers::outlook`]) and a budget of RAM that is not given
    /// follow from the model and from the memory there is.
    pub kv_tiers: KvTiers,
    /// The device that computes; `None` is the CPU. Pages are then kept in main memory as well, and
    /// [`KvTiers::device_budget_bytes`] is what they may take on the device: 0 for what it has left.
    pub device: Option<Arc<dyn ComputeDevice>>,
    /// A device that computes in place of the CPU if it can compute the model under these options.
    pub preferred_device: Option<Arc<dyn ComputeDevice>>,
    /// The text that will be read, for its place in the plan; `None` plans for a text that fills the context.
    pub prompt: Option<PromptText>,
    /// A small model with the same tokens, which drafts answers that ask for `model:PATH` ([`DraftSpec`](crate::DraftSpec)). It takes what
    /// memory the plan leaves.
    pub draft_model: Option<PathBuf>,
    /// Load the layer of the model's own files that predicts further tokens, which drafts answers that ask for `mtp`
    /// ([`DraftSpec`](crate::DraftSpec)). Every sequence then keeps keys and values of one layer more.
    pub draft_predictor: bool,
    /// Bytes the run may use in all; `None` takes what the machine has available.
    pub memory_budget_bytes: Option<u64>,
}

/// The text that a run will read, as far as it is known before the model is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptText {
    /// Bytes of the text.
    pub bytes: u64,
    /// Prompts that are made of it, such as one for each question.
    pub prompts: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            families: &[],
            context_tokens: None,
            rope_scaling: None,
            activations: Activations::Exact,
            attention: AttentionPrecision::Exact,
            batch_tokens: 4096,
            chunk_tokens: 512,
            page_tokens: riffle_kv::DEFAULT_PAGE_TOKENS,
            key_format: Format::F16,
            value_format: Format::F16,
            rotate: None,
            window: None,
            sequences: 1,
            pool_tokens: None,
            keeps_beginnings: false,
            prefill: PolicySpec::full().into(),
            decode: PolicySpec::full().into(),
            token_selection: None,
            cost: CostModel::default(),
            audit: false,
            auto_target: None,
            kv_tiers: KvTiers::memory(None),
            device: None,
            preferred_device: None,
            prompt: None,
            draft_model: None,
            draft_predictor: false,
            memory_budget_bytes: None,
        }
    }
}

impl EngineOptions {
    /// The part of them that reading a model's files takes.
    pub fn load_options(&self) -> LoadOptions {
        LoadOptions::default()
            .with_rope_scaling(self.rope_scaling)
            .with_activations(self.activations)
            .with_families(self.families)
            .with_predictor(self.draft_predictor)
    }

    /// Checks everything that can be checked without a model.
    ///
    /// # Errors
    /// [`EngineError::Option`] names the option, its value and what is allowed; [`EngineError::Policy`] a policy that does
    /// not choose in its phase, or not with chunks this short.
    pub fn validate(&self) -> Result<(), EngineError> {
        if self.batch_tokens == 0 {
            return Err(EngineError::option("batch_tokens", 0, "it must be at least 1 token"));
        }
        if self.chunk_tokens == 0 {
            return Err(EngineError::option("chunk_tokens", 0, "it must be at least 1 token"));
        }
        if self.chunk_tokens > self.batch_tokens {
            return Err(EngineError::option(
                "chunk_tokens",
                self.chunk_tokens,
                format!(
                    "a chunk cannot be larger than the logical batch (`batch_tokens={}`)",
                    self.batch_tokens
                ),
            ));
        }
        if self.sequences == 0 {
            return Err(EngineError::option("sequences", 0, "it must be at least 1 sequence"));
        }
        if self.kv_tiers.slots == 0 {
            return Err(EngineError::option("slots", 0, "at least 1 page has to be on its way"));
        }
        if let Some(disk) = self.kv_tiers.disk.as_ref().filter(|disk| !disk.folder.is_dir()) {
            return Err(EngineError::option(
                "disk.folder",
                disk.folder.display(),
                "there is no such folder: create it, or choose another",
            ));
        }
        if self.context_tokens == Some(0) {
            return Err(EngineError::option("context_tokens", 0, "it must be at least 1 token"));
        }
        if let Some(target) = self.auto_target.filter(|target| !(0.0..=1.0).contains(target)) {
            return Err(EngineError::option(
                "auto_target",
                target,
                "it must be a share from 0 to 1",
            ));
        }
        self.prefill.check(Phase::Prefill, self.chunk_tokens)?;
        self.decode.check(Phase::Decode, self.chunk_tokens)?;
        Ok(())
    }

    /// Which planes hold rotated heads.
    pub(crate) fn rotation(&self) -> Rotation {
        let rotates = |format| self.rotate.unwrap_or(format == Format::Q4_0);
        Rotation {
            keys: rotates(self.key_format),
            values: rotates(self.value_format),
        }
    }

    /// Tokens that are appended to a layer of the cache at a time at most.
    pub(crate) fn append_tokens(&self) -> usize {
        // Two-phase policies need a whole batch at once.
        if self.prefill.has_two_phases() {
            self.batch_tokens
        } else {
            self.chunk_tokens
        }
    }

    /// True if a policy looks through the keys of the whole sequence.
    pub(crate) fn scans_keys(&self) -> bool {
        // Policies that a head may be moved to scan keys.
        self.auto_target.is_some() || self.prefill.scans_keys() || self.decode.scans_keys()
    }

    /// The context length for a model made for `max_position` tokens.
    ///
    /// # Errors
    /// [`EngineError::ContextTooLong`] when more was asked for than the model supports.
    pub fn context_for(&self, max_position: usize) -> Result<usize, EngineError> {
        if let (Some(window), Some(context)) = (self.window, self.context_tokens)
            && context > max_position
        {
            return Err(EngineError::option(
                "window_tokens",
                window.window_tokens,
                format!(
                    "with sinks, a page and a chunk it takes {context} tokens and this model was made for {max_position}: use a smaller window, or a smaller `chunk_tokens`"
                ),
            ));
        }
        match self.context_tokens {
            Some(context) if context > max_position => Err(EngineError::ContextTooLong {
                context,
                maximum: max_position,
            }),
            Some(context) => Ok(context),
            None => Ok(max_position),
        }
    }
}
