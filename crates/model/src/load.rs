//! Loads a model from a path.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use riffle_files::human_bytes;
use riffle_linear::{Activations, WeightFormat};

use crate::adapters::{Adapter, Base, unusable};
use crate::blocks::{ExpertStreams, StreamedLayer, expert_classes, expert_forms, names_experts, read_rate};
use crate::decoder::Decoder;
use crate::embedding::EmbeddingFiles;
use crate::families::{self, Family};
use crate::fields::Fields;
use crate::place::ModelPlace;
use crate::tokenizer::{TokenizerSettings, tokenizer_file};
use crate::weights::Checkpoint;
use crate::{
    AdapterInfo, AdapterSpec, ChatTemplate, ExpertCache, ExpertClass, GenerationDefaults, InfillTokens, MOST_ADAPTERS,
    ModelConfig, ModelError, ModelInfo, Reranking, RopeScaling, ScoreHead, TensorInfo, TensorType, TextEmbedding,
    Tokenizer, TokenizerInfo, directory, gguf, least_expert_cache_bytes,
};

/// A model ready to run.
pub struct LoadedModel {
    /// The decoder.
    pub model: Decoder,
    /// Converts text to tokens and back, if the model has a tokenizer.
    pub tokenizer: Option<Tokenizer>,
    /// Converts messages to text, if the model has a template.
    pub chat_template: Option<ChatTemplate>,
    /// Stop tokens and sampling defaults.
    pub generation: GenerationDefaults,
    /// The way a text becomes a vector.
    pub embedding: TextEmbedding,
    /// The way a document is scored for a query. The error gives the reason why it is impossible.
    pub reranking: Result<Reranking, String>,
    /// The tokens for infill, if the model has them.
    pub infill: Option<InfillTokens>,
    /// The facts of the files.
    pub info: ModelInfo,
    /// The time of loading, by part.
    pub times: LoadTimes,
}

/// The time of loading a model by part, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct LoadTimes {
    /// Milliseconds of reading and checking headers and settings.
    pub header_ms: f64,
    /// Milliseconds of building the tokenizer.
    pub tokenizer_ms: f64,
    /// Milliseconds of reading, checking and packing the weights.
    pub weights_ms: f64,
}

/// A model with its headers, settings and tokenizer. Its weights are neither read nor allocated.
pub struct OpenedModel {
    parts: Parts,
    times: LoadTimes,
    activations: Activations,
    observes_inputs: bool,
    /// Bytes of memory for experts; the others stay in the files.
    expert_bytes: Option<u64>,
}

/// Options for reading and computing a model, in addition to its files.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct LoadOptions {
    /// Scaling of positions, replacing the model's own.
    pub rope_scaling: Option<RopeScaling>,
    /// Rounding of the input of linear layers with bf16 weights on the CPU.
    pub activations: Activations,
    /// Additional families, for models in Hugging Face directories.
    pub families: &'static [Family],
    /// Load the layer that predicts further tokens, if the files have one ([`ModelConfig::predicting_layers`]).
    pub predictor: bool,
    /// Sum the squares of the inputs of every linear layer ([`Decoder::input_sums`]).
    pub input_sums: bool,
}

impl LoadOptions {
    /// Sets the scaling of positions, replacing the model's own.
    pub fn with_rope_scaling(mut self, scaling: Option<RopeScaling>) -> Self {
        self.rope_scaling = scaling;
        self
    }

    /// Sets whether linear layers of bf16 weights round their input on the CPU.
    pub fn with_activations(mut self, activations: Activations) -> Self {
        self.activations = activations;
        self
    }

    /// Adds families. They take precedence over this crate's families of the same architecture.
    pub fn with_families(mut self, families: &'static [Family]) -> Self {
        self.families = families;
        self
    }

    /// Sets the sums over the inputs of linear layers.
    pub fn with_input_sums(mut self, input_sums: bool) -> Self {
        self.input_sums = input_sums;
        self
    }

    /// Sets whether to load the layer that predicts further tokens, if the files have one.
    pub fn with_predictor(mut self, predictor: bool) -> Self {
        self.predictor = predictor;
        self
    }
}

/// Describes the model at `path`, a directory or a GGUF file, from its headers. Weights are neither read nor
/// allocated.
pub fn inspect(path: impl AsRef<Path>) -> Result<ModelInfo, ModelError> {
    inspect_with(path, &LoadOptions::default())
}

/// As [`inspect`], with `options`.
pub fn inspect_with(path: impl AsRef<Path>, options: &LoadOptions) -> Result<ModelInfo, ModelError> {
    Ok(OpenedModel::open(path, options)?.info())
}

/// The tokenizer of the model at `path`, a directory or a GGUF file; `None` if it has none. Weights and architecture
/// settings are not read, so a directory may contain only a tokenizer.
///
/// # Errors
/// [`ModelError::NotFound`], and errors of the tokenizer's files.
pub fn load_tokenizer(path: impl AsRef<Path>) -> Result<Option<Tokenizer>, ModelError> {
    let path = path.as_ref();
    if tokenizer_file(path).exists() {
        return Tokenizer::from_directory(path, &TokenizerSettings::from_directory(path)?);
    }
    match ModelPlace::find(path)? {
        ModelPlace::Directory(path) => Tokenizer::from_directory(&path, &TokenizerSettings::from_directory(&path)?),
        ModelPlace::File(path) => gguf::open_tokenizer(&path),
    }
}

/// Loads the model at `path`, a directory or a GGUF file. Weights are packed for computing and stored once.
pub fn load(path: impl AsRef<Path>) -> Result<LoadedModel, ModelError> {
    load_with(path, &LoadOptions::default())
}

/// As [`load`], with `options`.
pub fn load_with(path: impl AsRef<Path>, options: &LoadOptions) -> Result<LoadedModel, ModelError> {
    OpenedModel::open(path, options)?.load()
}

impl OpenedModel {
    /// Opens the model at `path`, a directory or a GGUF file.
    pub fn open(path: impl AsRef<Path>, options: &LoadOptions) -> Result<OpenedModel, ModelError> {
        let start = Instant::now();
        let parts = open(path.as_ref(), options)?;
        let times = LoadTimes {
            header_ms: milliseconds_since(start) - parts.tokenizer_ms,
            tokenizer_ms: parts.tokenizer_ms,
            weights_ms: 0.0,
        };
        Ok(OpenedModel {
            parts,
            times,
            activations: options.activations,
            observes_inputs: options.input_sums,
            expert_bytes: None,
        })
    }

    /// Keeps experts in the model's files, with `expert_bytes` of memory for those in use; with `None`, all are
    /// loaded. Layers whose experts cannot stay there ([`ModelConfig::streamable`]) are always loaded.
    #[must_use]
    pub fn with_expert_bytes(mut self, expert_bytes: Option<u64>) -> OpenedModel {
        self.expert_bytes = expert_bytes;
        self
    }

    /// Adds adapters beside the weights, at most [`MOST_ADAPTERS`](crate::MOST_ADAPTERS). Their headers are checked
    /// against the model.
    ///
    /// # Errors
    /// [`ModelError::AdapterRefused`]; errors of their files.
    pub fn with_adapters(mut self, adapters: &[AdapterSpec]) -> Result<OpenedModel, ModelError> {
        if let Some(beyond) = adapters.get(MOST_ADAPTERS) {
            let problem = format!("at most {MOST_ADAPTERS} adapters go together");
            return Err(unusable(&beyond.path, problem));
        }
        let opened = self.parts.open_adapters(adapters)?;
        if !opened.is_empty() {
            let host_only = &mut self.parts.config.host_only;
            *host_only = host_only.or(Some("adapters (LoRA)"));
        }
        self.parts.weights.set_adapters(opened);
        Ok(self)
    }

    /// The facts of the files.
    pub fn info(&self) -> ModelInfo {
        self.parts.info()
    }

    /// Measured rate of reading experts from the model's files, in bytes per second; `None` if none can stay there.
    ///
    /// # Errors
    /// [`ModelError::Io`], [`ModelError::ChangedWeights`].
    pub fn expert_read_rate(&self) -> Result<Option<f64>, ModelError> {
        let forms = expert_forms(&self.parts.weights, &self.parts.config);
        if forms.is_empty() {
            return Ok(None);
        }
        read_rate(&forms, &self.parts.weights.reopened()?).map(Some)
    }

    /// Loads the weights, packed for computing and stored once.
    pub fn load(self) -> Result<LoadedModel, ModelError> {
        let start = Instant::now();
        let OpenedModel {
            mut parts,
            mut times,
            activations,
            observes_inputs,
            expert_bytes,
        } = self;
        parts.weights.set_activations(activations);
        if let Some(bytes) = expert_bytes {
            parts.stream_experts(bytes)?;
        }
        if observes_inputs {
            let names = gguf::stored_names(&parts)?;
            parts.weights.observe_inputs(names);
        }
        let mut info = parts.info();
        let mut decoder = (parts.family.build)(&parts.fields, &info.config, &mut parts.weights)?;
        decoder.check_layers(&parts.fields)?;
        if decoder.score_head.is_none() {
            decoder.score_head = parts.score_head(&info.config)?;
        }
        let embedding = std::mem::take(&mut parts.embedding);
        let embedding = embedding.load(&mut parts.weights, info.config.hidden_size)?;
        decoder.input_sums = parts.weights.take_input_sums();
        decoder.expert_cache = parts.weights.streams().map(|streams| Arc::clone(&streams.cache));
        parts.weights.adapters().iter().try_for_each(Adapter::check_taken)?;
        let build_predictor = parts.family.build_predictor.filter(|_| parts.loads_predictor);
        if let Some(build) = build_predictor {
            let predictor = build(&parts.fields, &info.config, &mut parts.weights)?;
            info.config.predictor_bytes = predictor.bytes();
            decoder.predictor = Some(Box::new(predictor));
        }
        info.unused_tensors = parts.weights.untaken();
        parts.refuse_unused(&info.unused_tensors)?;
        info.config.weight_bytes = decoder.bytes() + embedding.bytes();
        match &decoder.expert_cache {
            None => info.config.streamable = Vec::new(),
            // A later plan may resize the cache.
            Some(_) => {
                let in_files = info.config.streamable.iter().map(ExpertClass::all_file_bytes);
                info.config.weight_bytes += in_files.sum::<u64>();
            }
        }
        decoder.config = info.config.clone();
        times.weights_ms = milliseconds_since(start);
        riffle_linear::gather_pages();
        let outputs = decoder.score_head.as_ref().map(ScoreHead::outputs);
        let tokenizer = parts.tokenizer.as_ref();
        let reranking = Reranking::of_model(&info.config, outputs, tokenizer, parts.reranking_prompt);
        Ok(LoadedModel {
            embedding,
            reranking,
            infill: parts.infill,
            model: decoder,
            tokenizer: parts.tokenizer,
            chat_template: parts.chat_template,
            generation: info.generation.clone(),
            info,
            times,
        })
    }
}

pub(crate) fn milliseconds_since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
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
    fn open_adapters(&self, adapters: &[AdapterSpec]) -> Result<Vec<Adapter>, ModelError> {
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
    fn score_head(&mut self, config: &ModelConfig) -> Result<Option<ScoreHead>, ModelError> {
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
    fn stream_experts(&mut self, bytes: u64) -> Result<(), ModelError> {
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

    fn info(&self) -> ModelInfo {
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
    fn refuse_unused(&self, unused: &[String]) -> Result<(), ModelError> {
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
