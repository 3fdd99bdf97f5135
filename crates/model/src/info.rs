//! The facts that a model's files state.

use std::path::PathBuf;

use crate::{AdapterInfo, GenerationDefaults, ModelConfig, TensorInfo};

/// A model as its headers describe it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ModelInfo {
    /// The path that it was read from.
    pub path: PathBuf,
    /// How it is stored: `safetensors` or `gguf`.
    pub format: &'static str,
    /// Sizes and settings. `weight_bytes` is what the files hold; after loading it is what memory holds.
    pub config: ModelConfig,
    /// Every tensor of every file, by name. Those of a matrix that another program quantised stand as one, in the format that memory holds.
    pub tensors: Vec<TensorInfo>,
    /// Bytes of all tensors in the files.
    pub tensor_bytes: u64,
    /// Tensors the architecture has no use for; known after loading, empty before.
    pub unused_tensors: Vec<String>,
    /// The tokenizer, where there is one.
    pub tokenizer: Option<TokenizerInfo>,
    /// Stop tokens and sampling defaults.
    pub generation: GenerationDefaults,
    /// Texts of the model's chat templates; empty where it has none.
    pub chat_templates: Vec<String>,
    /// True if the vocabulary has tokens for filling in the middle of a text.
    pub has_infill_tokens: bool,
    /// The adapters beside the weights; [`ModelConfig::weight_bytes`] counts them.
    pub adapters: Vec<AdapterInfo>,
}

/// Facts of a tokenizer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TokenizerInfo {
    /// The algorithm: `BPE`, `Unigram`, `WordPiece` or `WordLevel`.
    pub kind: String,
    /// Highest token id + 1.
    pub vocab_size: usize,
    /// Bytes of the longest token as the vocabulary spells it: no token stands for more bytes of a text.
    pub longest_token_bytes: usize,
    /// The text of the token that begins a text.
    pub bos: Option<String>,
    /// The text of the token that ends a text.
    pub eos: Option<String>,
    /// Memory the tokenizer's tables take, about, in bytes.
    pub memory_bytes: u64,
}
