//! Loads a model from a path.

mod parts;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use riffle_linear::Activations;

use crate::adapters::{Adapter, unusable};
use crate::blocks::{expert_forms, read_rate};
use crate::decoder::Decoder;
use crate::families::Family;
use crate::place::ModelPlace;
use crate::tokenizer::{TokenizerSettings, tokenizer_file};
use crate::{
    AdapterSpec, ChatTemplate, ExpertClass, GenerationDefaults, InfillTokens, MOST_ADAPTERS, ModelError, ModelInfo,
    Reranking, RopeScaling, ScoreHead, TextEmbedding, Tokenizer, gguf,
};

pub(crate) use parts::{Parts, open};

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
    /// Load the layer that predicts further tokens, if the files have one
    /// ([`predicting_layers`](crate::ModelConfig::predicting_layers)).
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
    /// loaded. Layers whose experts cannot stay there ([`streamable`](crate::ModelConfig::streamable)) are always
    /// loaded.
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
