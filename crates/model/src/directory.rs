//! Models as Hugging Face stores them: a directory of JSON files and safetensors.

use std::path::Path;

use riffle_linear::WeightFormat;

use crate::fields::{Fields, read_json};
use crate::language_model::LanguageModel;
use crate::tokenizer::TokenizerSettings;
use crate::weights::Checkpoint;
use crate::{
    ChatTemplate, GenerationDefaults, ModelConfig, ModelError, ModelInfo, TensorInfo, TensorType, Tokenizer,
    TokenizerInfo, families,
};

const CONFIG_FILE: &str = "config.json";

/// A model ready to run.
pub struct LoadedModel {
    /// The decoder.
    pub model: Box<dyn LanguageModel>,
    /// Text to tokens and back, where the model brings a tokenizer.
    pub tokenizer: Option<Tokenizer>,
    /// Messages to text, where the model brings a template.
    pub chat_template: Option<ChatTemplate>,
    /// Stop tokens and sampling defaults.
    pub generation: GenerationDefaults,
    /// What the files say.
    pub info: ModelInfo,
}

/// Describes the model at `path` from its headers; weights are neither read nor given memory.
pub fn inspect(path: impl AsRef<Path>) -> Result<ModelInfo, ModelError> {
    let parts = Parts::open(path.as_ref())?;
    parts.info()
}

/// Loads the model at `path`, weights packed for computing and held once.
pub fn load(path: impl AsRef<Path>) -> Result<LoadedModel, ModelError> {
    let mut parts = Parts::open(path.as_ref())?;
    let mut info = parts.info()?;
    let mut decoder = (parts.family.build)(&parts.fields, &info.config, &mut parts.weights)?;
    info.unused_tensors = parts.weights.untaken();
    info.config.weight_bytes = decoder.bytes();
    decoder.config = info.config.clone();
    Ok(LoadedModel {
        model: Box::new(decoder),
        tokenizer: parts.tokenizer,
        chat_template: parts.chat_template,
        generation: info.generation.clone(),
        info,
    })
}

/// Everything of a directory but the weights' data.
struct Parts {
    path: std::path::PathBuf,
    fields: Fields,
    family: &'static families::Family,
    config: ModelConfig,
    weights: Checkpoint,
    tokenizer: Option<Tokenizer>,
    tokenizer_kind: String,
    chat_template: Option<ChatTemplate>,
    generation: GenerationDefaults,
}

impl Parts {
    fn open(path: &Path) -> Result<Parts, ModelError> {
        let metadata = std::fs::metadata(path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => ModelError::NotFound { path: path.to_owned() },
            _ => ModelError::Io {
                path: path.to_owned(),
                source,
            },
        })?;
        if !metadata.is_dir() {
            return Err(ModelError::NotAModel {
                path: path.to_owned(),
                problem: "it is a file".into(),
            });
        }
        let config_path = path.join(CONFIG_FILE);
        let Some(value) = read_json(&config_path)? else {
            return Err(ModelError::MissingFile {
                directory: path.to_owned(),
                file: CONFIG_FILE.into(),
                hint: "give the directory that holds config.json and the weights",
            });
        };
        let fields = Fields::new(&config_path, value)?;
        let (family, architecture) = families::find(&fields)?;
        let config = (family.configure)(&fields, &architecture)?;
        let weights = Checkpoint::open(path)?;
        let tokenizer = Tokenizer::from_directory(path)?;
        let settings = TokenizerSettings::from_directory(path)?;
        let generation = GenerationDefaults::from_directory(path, &fields)?;
        check_vocabulary(path, &config, tokenizer.as_ref(), &generation)?;
        Ok(Parts {
            path: path.to_owned(),
            chat_template: ChatTemplate::from_directory(path, &settings)?,
            tokenizer_kind: tokenizer.as_ref().map(Tokenizer::kind).unwrap_or_default().to_owned(),
            fields,
            family,
            config,
            weights,
            tokenizer,
            generation,
        })
    }

    fn info(&self) -> Result<ModelInfo, ModelError> {
        let tensors = self.weights.list();
        let tensor_bytes = tensors.iter().map(|tensor| tensor.bytes).sum();
        let mut config = self.config.clone();
        config.weight_bytes = tensor_bytes;
        config.weight_format = most_common_format(&tensors);
        let text_of = |id: Option<u32>| self.tokenizer.as_ref()?.token_text(id?);
        Ok(ModelInfo {
            path: self.path.clone(),
            format: "safetensors",
            config,
            tensors,
            tensor_bytes,
            unused_tensors: Vec::new(),
            tokenizer: self.tokenizer.as_ref().map(|tokenizer| TokenizerInfo {
                kind: self.tokenizer_kind.clone(),
                vocab_size: tokenizer.vocab_size(),
                bos: text_of(tokenizer.bos()),
                eos: text_of(tokenizer.eos()),
            }),
            generation: self.generation.clone(),
            has_chat_template: self.chat_template.is_some(),
        })
    }
}

/// Every id the tokenizer or the configuration can produce must have an embedding.
fn check_vocabulary(
    path: &Path,
    config: &ModelConfig,
    tokenizer: Option<&Tokenizer>,
    generation: &GenerationDefaults,
) -> Result<(), ModelError> {
    if let Some(tokenizer) = tokenizer.filter(|tokenizer| tokenizer.vocab_size() > config.vocab_size) {
        return Err(ModelError::VocabularyTooLarge {
            path: path.join("tokenizer.json"),
            tokens: tokenizer.vocab_size(),
            embedded: config.vocab_size,
        });
    }
    let named = generation.eos.iter().map(|id| ("eos_token_id", id));
    for (role, &id) in named.chain(generation.bos.iter().map(|id| ("bos_token_id", id))) {
        if id as usize >= config.vocab_size {
            return Err(ModelError::MissingToken {
                path: path.join(CONFIG_FILE),
                role,
                token: id.to_string(),
            });
        }
    }
    Ok(())
}

fn most_common_format(tensors: &[TensorInfo]) -> WeightFormat {
    let bytes_of = |wanted: TensorType| -> u64 {
        tensors
            .iter()
            .filter(|tensor| tensor.element_type == wanted)
            .map(|tensor| tensor.bytes)
            .sum()
    };
    [
        (bytes_of(TensorType::F32), WeightFormat::F32),
        (bytes_of(TensorType::F16), WeightFormat::F16),
        (bytes_of(TensorType::Bf16), WeightFormat::Bf16),
    ]
    .into_iter()
    .max_by_key(|(bytes, _)| *bytes)
    .map_or(WeightFormat::F32, |(_, format)| format)
}
