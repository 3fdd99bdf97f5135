//! Facts from a model's files.

use std::path::PathBuf;

use crate::{AdapterInfo, GenerationDefaults, ModelConfig, TensorInfo};

/// A model as described by its headers.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ModelInfo {
    /// The path of the model.
    pub path: PathBuf,
    /// Storage form: `safetensors` or `gguf`.
    pub format: &'static str,
    /// Sizes and settings. `weight_bytes` is the size in the files; after loading, the size in memory.
    pub config: ModelConfig,
    /// Every tensor of every file, by name. The parts of a matrix that another program quantised count as one tensor,
    /// in the format in memory.
    pub tensors: Vec<TensorInfo>,
    /// Bytes of all tensors in the files.
    pub tensor_bytes: u64,
    /// Tensors that the architecture does not use; known after loading, empty before.
    pub unused_tensors: Vec<String>,
    /// The tokenizer, if there is one.
    pub tokenizer: Option<TokenizerInfo>,
    /// Stop tokens and sampling defaults.
    pub generation: GenerationDefaults,
    /// Texts of the model's chat templates; may be empty.
    pub chat_templates: Vec<String>,
    /// True if the vocabulary has tokens for filling in the middle of a text.
    pub has_infill_tokens: bool,
    /// The adapters beside the weights, which [`ModelConfig::weight_bytes`] includes.
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
    /// Bytes of the longest token in the vocabulary's spelling, an upper bound of a token's text.
    pub longest_token_bytes: usize,
    /// The text of the token at the start of a text.
    pub bos: Option<String>,
    /// The text of the token at the end of a text.
    pub eos: Option<String>,
    /// Approximate memory of the tokenizer's tables, in bytes.
    pub memory_bytes: u64,
}
