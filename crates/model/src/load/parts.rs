//! Everything of a model except its weights' data, and the checks of its files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use riffle_files::human_bytes;
use riffle_linear::WeightFormat;

use crate::adapters::{Adapter, Base};
use crate::blocks::{ExpertStreams, StreamedLayer, expert_classes, expert_forms, names_experts};
use crate::embedding::EmbeddingFiles;
use crate::families::{self, Family};
use crate::fields::Fields;
use crate::load::LoadOptions;
use crate::place::ModelPlace;
use crate::weights::Checkpoint;
use crate::{
    AdapterInfo, AdapterSpec, ChatTemplate, ExpertCache, GenerationDefaults, InfillTokens, ModelConfig, ModelError,
    ModelInfo, ScoreHead, TensorInfo, TensorType, Tokenizer, TokenizerInfo, directory, gguf, least_expert_cache_bytes,
};

/// Everything of a model except its weights' data.
pub(crate) struct Parts {
    pub(crate) path: PathBuf,
    pub(crate) format: &'static str,
    pub(crate) fields: Fields,
    pub(crate) family: &'static Family,
    pub(crate) config: ModelConfig,
    pub(crate) weights: Checkpoint,
    /// True if the layer that predicts further tokens is loaded.
    pub(crate) loads_predictor: bool,
    pub(crate) tokenizer: Option<Tokenizer>,
    /// The file the tokenizer came from.
    pub(crate) tokenizer_path: PathBuf,
    pub(crate) tokenizer_ms: f64,
    pub(crate) chat_template: Option<ChatTemplate>,
    pub(crate) generation: GenerationDefaults,
    pub(crate) embedding: EmbeddingFiles,
    pub(crate) infill: Option<InfillTokens>,
    /// The files' own prompt for a query and a document.
    pub(crate) reranking_prompt: Option<String>,
}

/// Prefix of tensor names of the layer that predicts further tokens.
const PREDICTOR: &str = "mtp.";

/// Prefix of layer names in GPT-2-like models, which families rename if they support them.
const FOREIGN_LAYERS: &str = "transformer.h.";

/// Unsupported tensors that take no memory: pictures, sound.
const NOT_COMPUTED: [&str; 9] = [
    "model.visual.",
    "visual.",
    "vision_tower.",
    "vision_model.",
    "audio_tower.",
    "multi_modal_projector.",
    // Names in GGUF files.
    "v.",
    "a.",
    "mm.",
];

/// Suffixes of stored tensors that follow from the settings.
const DERIVED: [&str; 5] = [
    ".rotary_emb.inv_freq",
    ".attn_rot_embd",
    ".attn_rot_embd.weight",
    // Masks of GPT-2.
    ".attn.bias",
    ".attn.masked_bias",
];

/// The most names in an error about unused tensors.
const LARGEST_NAME_COUNT: usize = 3;

pub(crate) fn open(path: &Path, options: &LoadOptions) -> Result<Parts, ModelError> {
    let mut parts = match ModelPlace::find(path)? {
        ModelPlace::Directory(path) => directory::open(&path, options)?,
        ModelPlace::File(path) => gguf::open(&path, options)?,
    };
    parts.check_vocabulary()?;
    parts.check_layers()?;
    parts.check_names()?;
    parts.find_predictor(options);
    if let Some(tokenizer) = &mut parts.tokenizer {
        tokenizer.add_control_tokens(&parts.generation.eos);
        parts.chat_template = parts.chat_template.map(|template| template.with_tokenizer(tokenizer));
    }
    Ok(parts)
}

impl Parts {
    pub(super) fn open_adapters(&self, adapters: &[AdapterSpec]) -> Result<Vec<Adapter>, ModelError> {
        let known_name = |name: &str| {
            let mut renames = self.family.renames.iter();
            let renamed = renames.find_map(|(stored, known)| Some(format!("{known}{}", name.strip_prefix(stored)?)));
            renamed.unwrap_or_else(|| name.to_owned())
        };
        let base = Base {
            weights: &self.weights,
            config: &self.config,
            known_name: &known_name,
            is_gguf: self.format == "gguf",
        };
        adapters
            .iter()
            .map(|adapter| Adapter::open(&adapter.path, &base))
            .collect()
    }

    /// Takes the head of a model that scores texts, if it has one. In a model for words only, such a head is an unused
    /// tensor.
    pub(super) fn score_head(&mut self, config: &ModelConfig) -> Result<Option<ScoreHead>, ModelError> {
        const NAME: &str = "score.weight";
        if config.predicts_tokens && !self.embedding.ranks {
            return Ok(None);
        }
        let Some(rows) = self.weights.info(NAME).and_then(|info| info.shape.first().copied()) else {
            return Ok(None);
        };
        let matrix = self.weights.matrix(NAME, rows, config.hidden_size)?;
        Ok(Some(ScoreHead::of_last(matrix)))
    }

    /// Lets experts stay in the files, with `bytes` of memory for those in use.
    pub(super) fn stream_experts(&mut self, bytes: u64) -> Result<(), ModelError> {
        let forms = expert_forms(&self.weights, &self.config);
        let least = least_expert_cache_bytes(&expert_classes(&forms));
        if forms.is_empty() || bytes < least {
            return Err(ModelError::FewExpertBytes {
                path: self.path.clone(),
                given: human_bytes(bytes),
                least: human_bytes(least),
            });
        }
        let layers: Vec<StreamedLayer> = forms.iter().map(StreamedLayer::from).collect();
        let cache = ExpertCache::start(forms, self.weights.reopened()?, self.weights.activations(), bytes)?;
        self.weights.set_streams(ExpertStreams::new(cache, layers));
        Ok(())
    }

    pub(super) fn info(&self) -> ModelInfo {
        let tensors = self.weights.list();
        let tensor_bytes = self.weights.file_bytes();
        let mut config = self.config.clone();
        let bytes_of = |counts: &dyn Fn(&str) -> bool| -> u64 {
            let named = self.weights.names().zip(&tensors);
            let counted = named.filter(|(name, _)| counts(name));
            counted.map(|(_, tensor)| tensor.bytes).sum()
        };
        let adapters: Vec<AdapterInfo> = self.weights.adapters().iter().map(Adapter::info).collect();
        let of_adapters: u64 = adapters.iter().map(|adapter| adapter.bytes).sum();
        config.weight_bytes = bytes_of(&|name| self.is_computed(name)) + of_adapters + self.embedding.file_bytes();
        config.expert_bytes = bytes_of(&|name| names_experts(name));
        config.streamable = expert_classes(&expert_forms(&self.weights, &config));
        config.predictor_bytes = bytes_of(&|name| self.loads_predictor && name.starts_with(PREDICTOR));
        config.weight_format = most_common_format(&tensors);
        config.has_bf16_weights = tensors
            .iter()
            .any(|tensor| tensor.element_type == TensorType::Weights(WeightFormat::Bf16));
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
                memory_bytes: tokenizer.memory_bytes(),
            }),
            generation: self.generation.clone(),
            has_infill_tokens: self.infill.is_some(),
            chat_templates: self
                .chat_template
                .as_ref()
                .map_or_else(Vec::new, |template| template.texts().map(str::to_owned).collect()),
            adapters,
        }
    }

    /// Records which layers predict further tokens. Only the first is supported: files do not define the input of
    /// further ones.
    fn find_predictor(&mut self, options: &LoadOptions) {
        let layers: BTreeSet<&str> = self.weights.names().filter_map(|name| predicting_layer(name)).collect();
        let has_join = self.weights.info("mtp.fc.weight").is_some();
        self.config.predicting_layers = match self.family.build_predictor {
            Some(_) if has_join => layers.len().max(self.predicting_layers().unwrap_or(1)),
            _ => 0,
        };
        self.loads_predictor = options.predictor && self.config.predicting_layers == 1;
    }

    /// True if a tensor takes memory.
    fn is_computed(&self, name: &str) -> bool {
        if name.starts_with(PREDICTOR) {
            self.loads_predictor
        } else {
            let is_behind = layer_of(name).is_some_and(|layer| layer >= self.config.layers);
            let is_beside = families::is_wrapper(&self.fields) && !families::is_of_text_model(name);
            !is_behind && !is_beside && !NOT_COMPUTED.iter().any(|prefix| name.starts_with(prefix))
        }
    }

    /// Number of predicting layers after the model's own that the files count with them.
    fn predicting_layers(&self) -> Result<usize, ModelError> {
        Ok(self.fields.optional_count("num_nextn_predict_layers")?.unwrap_or(0))
    }

    /// Checks that the weights have no more layers than configured: otherwise it would be another, shorter model.
    fn check_layers(&self) -> Result<(), ModelError> {
        let end = self.config.layers + self.predicting_layers()?;
        let beyond = |name: &&String| layer_of(name).is_some_and(|layer| layer >= end);
        match self.weights.names().find(beyond) {
            None => Ok(()),
            Some(name) => {
                let problem = format!(
                    "is {}, but the weights hold more layers ({name}); use the configuration these weights came with",
                    self.config.layers
                );
                Err(self.fields.error("num_hidden_layers", problem))
            }
        }
    }

    /// Layers under names of another architecture: some programs save models under the class of a relative.
    fn check_names(&self) -> Result<(), ModelError> {
        match self.weights.names().find(|name| name.starts_with(FOREIGN_LAYERS)) {
            None => Ok(()),
            Some(name) => {
                let problem = format!(
                    "is {}, but the weights have the names of another architecture ({name}); take the model from its author, or a GGUF file of it",
                    self.config.architecture
                );
                Err(self.fields.error("architectures", problem))
            }
        }
    }

    /// Unused tensors mean settings of another model, except for known unused ones.
    pub(super) fn refuse_unused(&self, unused: &[String]) -> Result<(), ModelError> {
        let tied = self.config.tied_embeddings;
        let known = |name: &str| {
            // `check_layers` counts layers after the model's own.
            !self.is_computed(name)
                || DERIVED.iter().any(|suffix| name.ends_with(suffix))
                || (tied && name == "lm_head.weight")
        };
        let mut unknown: Vec<&String> = unused.iter().filter(|name| !known(name)).collect();
        let count = unknown.len();
        unknown.truncate(LARGEST_NAME_COUNT);
        match count {
            0 => Ok(()),
            count => Err(ModelError::UnusedTensors {
                path: self.fields.path().to_owned(),
                count,
                tensors: unknown.into_iter().cloned().collect(),
            }),
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

/// The layer a tensor belongs to.
fn layer_of(name: &str) -> Option<usize> {
    let below = name
        .strip_prefix("model.layers.")
        .or_else(|| name.strip_prefix("blk."))?;
    below.split_once('.')?.0.parse().ok()
}

/// The number of the predicting layer to which a tensor belongs.
fn predicting_layer(name: &str) -> Option<&str> {
    Some(name.strip_prefix("mtp.layers.")?.split_once('.')?.0)
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
