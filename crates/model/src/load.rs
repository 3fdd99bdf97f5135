//! From a path to a model.

use std::path::{Path, PathBuf};

use riffle_linear::{Activations, WeightFormat};

use crate::decoder::Decoder;
use crate::families::Family;
use crate::fields::Fields;
use crate::weights::Checkpoint;
use crate::{
    ChatTemplate, GenerationDefaults, ModelConfig, ModelError, ModelInfo, RopeScaling, TensorInfo, TensorType,
    Tokenizer, TokenizerInfo, directory, gguf,
};

/// A model ready to run.
pub struct LoadedModel {
    /// The decoder.
    pub model: Decoder,
    /// Text to tokens and back, where the model brings a tokenizer.
    pub tokenizer: Option<Tokenizer>,
    /// Messages to text, where the model brings a template.
    pub chat_template: Option<ChatTemplate>,
    /// Stop tokens and sampling defaults.
    pub generation: GenerationDefaults,
    /// What the files say.
    pub info: ModelInfo,
}

/// How a model is to compute, beside what its files say.
#[derive(Debug, Clone, Copy, Default)]
pub struct LoadOptions {
    /// Positions stretched in place of the model's own stretching.
    pub rope_scaling: Option<RopeScaling>,
    /// Whether linear layers of bf16 weights round their input on the CPU.
    pub activations: Activations,
}

/// Describes the model at `path`, a directory or a GGUF file, from its headers; weights are neither read nor given
/// memory.
pub fn inspect(path: impl AsRef<Path>) -> Result<ModelInfo, ModelError> {
    inspect_scaled(path, None)
}

/// As [`inspect`], with positions stretched by `scaling` in place of the model's own stretching.
pub fn inspect_scaled(path: impl AsRef<Path>, scaling: Option<&RopeScaling>) -> Result<ModelInfo, ModelError> {
    Ok(open(path.as_ref(), scaling)?.info())
}

/// Loads the model at `path`, a directory or a GGUF file, weights packed for computing and held once.
pub fn load(path: impl AsRef<Path>) -> Result<LoadedModel, ModelError> {
    load_with(path, LoadOptions::default())
}

/// As [`load`], computing as `options` say.
pub fn load_with(path: impl AsRef<Path>, options: LoadOptions) -> Result<LoadedModel, ModelError> {
    let mut parts = open(path.as_ref(), options.rope_scaling.as_ref())?;
    parts.weights.set_activations(options.activations);
    let mut info = parts.info();
    let mut decoder = (parts.family.build)(&parts.fields, &info.config, &mut parts.weights)?;
    info.unused_tensors = parts.weights.untaken();
    info.config.weight_bytes = decoder.bytes();
    decoder.config = info.config.clone();
    Ok(LoadedModel {
        model: decoder,
        tokenizer: parts.tokenizer,
        chat_template: parts.chat_template,
        generation: info.generation.clone(),
        info,
    })
}

/// Tensors that no family computes and that take no memory: pictures, and layers that predict further tokens.
const NOT_COMPUTED: [&str; 2] = ["model.visual.", "mtp."];

/// Everything of a model but its weights' data.
pub(crate) struct Parts {
    pub(crate) path: PathBuf,
    pub(crate) format: &'static str,
    pub(crate) fields: Fields,
    pub(crate) family: &'static Family,
    pub(crate) config: ModelConfig,
    pub(crate) weights: Checkpoint,
    pub(crate) tokenizer: Option<Tokenizer>,
    /// The file the tokenizer came from.
    pub(crate) tokenizer_path: PathBuf,
    pub(crate) chat_template: Option<ChatTemplate>,
    pub(crate) generation: GenerationDefaults,
}

pub(crate) fn open(path: &Path, scaling: Option<&RopeScaling>) -> Result<Parts, ModelError> {
    let metadata = std::fs::metadata(path).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => ModelError::NotFound { path: path.to_owned() },
        _ => ModelError::Io {
            path: path.to_owned(),
            source,
        },
    })?;
    let parts = match metadata.is_dir() {
        true => directory::open(path, scaling)?,
        false => gguf::open(path, scaling)?,
    };
    parts.check_vocabulary()?;
    Ok(parts)
}

impl Parts {
    fn info(&self) -> ModelInfo {
        let tensors = self.weights.list();
        let tensor_bytes = tensors.iter().map(|tensor| tensor.bytes).sum();
        let mut config = self.config.clone();
        let computed = tensors.iter().filter(|tensor| {
            let name = &tensor.name;
            !NOT_COMPUTED.iter().any(|prefix| name.starts_with(prefix))
        });
        config.weight_bytes = computed.map(|tensor| tensor.bytes).sum();
        config.weight_format = most_common_format(&tensors);
        let text_of = |id: Option<u32>| self.tokenizer.as_ref()?.token_text(id?);
        ModelInfo {
            path: self.path.clone(),
            format: self.format,
            config,
            tensors,
            tensor_bytes,
            unused_tensors: Vec::new(),
            tokenizer: self.tokenizer.as_ref().map(|tokenizer| TokenizerInfo {
                kind: tokenizer.kind().to_owned(),
                vocab_size: tokenizer.vocab_size(),
                longest_token_bytes: longest_token_bytes(tokenizer),
                bos: text_of(tokenizer.bos()),
                eos: text_of(tokenizer.eos()),
            }),
            generation: self.generation.clone(),
            has_chat_template: self.chat_template.is_some(),
        }
    }

    /// Every id the tokenizer or the configuration can produce must have an embedding.
    fn check_vocabulary(&self) -> Result<(), ModelError> {
        let embedded = self.config.vocab_size;
        if let Some(tokenizer) = self
            .tokenizer
            .as_ref()
            .filter(|tokenizer| tokenizer.vocab_size() > embedded)
        {
            return Err(ModelError::VocabularyTooLarge {
                path: self.tokenizer_path.clone(),
                tokens: tokenizer.vocab_size(),
                embedded,
            });
        }
        let stops = self.generation.eos.iter().map(|id| ("eos_token_id", id));
        for (role, &id) in stops.chain(self.generation.bos.iter().map(|id| ("bos_token_id", id))) {
            if id as usize >= embedded {
                return Err(ModelError::MissingToken {
                    path: self.fields.path().to_owned(),
                    role,
                    token: id.to_string(),
                });
            }
        }
        Ok(())
    }
}

fn longest_token_bytes(tokenizer: &Tokenizer) -> usize {
    let ids = 0..tokenizer.vocab_size() as u32;
    let bytes = ids.filter_map(|id| Some(tokenizer.token_text(id)?.len()));
    bytes.max().unwrap_or(0)
}

fn most_common_format(tensors: &[TensorInfo]) -> WeightFormat {
    let bytes_of = |wanted: WeightFormat| -> u64 {
        let same = tensors
            .iter()
            .filter(|tensor| tensor.element_type == TensorType::Weights(wanted));
        same.map(|tensor| tensor.bytes).sum()
    };
    let formats = WeightFormat::ALL.iter().copied();
    formats
        .max_by_key(|format| bytes_of(*format))
        .unwrap_or(WeightFormat::F32)
}
