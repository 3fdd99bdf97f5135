//! Options of engines and answers from Python.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use pyo3::prelude::*;
use riffle_engine::{
    AttentionPrecision, Engine, EngineOptions, GenerateOptions, Profile, SamplingOptions, StreamWindow, parse_bytes,
    parse_kv_type,
};
use riffle_hub::{HubError, OtherPrograms, Settings};
use riffle_kv::{DiskTier, KvTiers};
use riffle_model::{Activations, AdapterScales, AdapterSpec};
use riffle_policy::{PolicyRules, PolicySpec};

use crate::failure::Failure;
use crate::items::Items;
use crate::python_policy;

/// The keyword arguments of `riffle.Engine`. A missing one has the command's default.
#[derive(FromPyObject, Default)]
#[pyo3(from_item_all)]
pub(crate) struct GivenEngine {
    adapter_scales: Option<Items<f32>>,
    adapters: Option<Items<PathBuf>>,
    activations: Option<String>,
    attention: Option<String>,
    audit: Option<bool>,
    auto: Option<f64>,
    batch_tokens: Option<usize>,
    chunk_tokens: Option<usize>,
    context: Option<usize>,
    decode: Option<String>,
    draft_model: Option<PathBuf>,
    draft_predictor: Option<bool>,
    keeps_beginnings: Option<bool>,
    kv_device: Option<String>,
    kv_disk: Option<PathBuf>,
    kv_disk_bytes: Option<String>,
    kv_ram: Option<String>,
    kv_rotate: Option<bool>,
    kv_type: Option<String>,
    memory: Option<String>,
    page_tokens: Option<usize>,
    pool_tokens: Option<usize>,
    prefill: Option<String>,
    profile: Option<PathBuf>,
    rope_scaling: Option<String>,
    score_pairs: Option<bool>,
    select_tokens: Option<String>,
    sequences: Option<usize>,
    sink_tokens: Option<usize>,
    weights_ram: Option<String>,
    window: Option<usize>,
}

/// The keyword arguments of answers. A missing one takes the model's recommendation.
#[derive(FromPyObject, Default)]
#[pyo3(from_item_all)]
pub(crate) struct GivenAnswer {
    draft: Option<String>,
    frequency_penalty: Option<f32>,
    ignore_end: Option<bool>,
    logit_bias: Option<HashMap<u32, f32>>,
    max_tokens: Option<usize>,
    min_p: Option<f32>,
    min_tokens: Option<usize>,
    presence_penalty: Option<f32>,
    probabilities: Option<usize>,
    repeat_penalty: Option<f32>,
    repeat_window: Option<usize>,
    seed: Option<u64>,
    stop: Option<Items<String>>,
    stop_tokens: Option<Items<u32>>,
    temperature: Option<f32>,
    top_k: Option<usize>,
    top_p: Option<f32>,
}

/// A policy's name with parameters, of the catalogue or written in Python.
pub(crate) fn policy(text: &str) -> Result<PolicySpec, Failure> {
    Ok(PolicySpec::parse_among(text, python_policy::known())?)
}

/// A size such as `8G`, if given.
fn bytes(option: &'static str, text: &Option<String>) -> Result<Option<u64>, Failure> {
    Ok(text
        .as_deref()
        .map(|text| parse_bytes(option, text.trim()))
        .transpose()?)
}

impl GivenEngine {
    /// The engine's options.
    pub(crate) fn resolved(self) -> Result<EngineOptions, Failure> {
        let defaults = EngineOptions::default();
        let profile = self.profile()?;
        let batch_tokens = self.batch_tokens.unwrap_or(defaults.machine.batch_tokens);
        let preferred = profile
            .prefill
            .preferred_chunk_tokens()
            .unwrap_or(defaults.machine.chunk_tokens);
        let mut options = EngineOptions::default();
        options.model.context_tokens = self.context;
        options.model.rope_scaling = self.rope_scaling.as_deref().map(str::parse).transpose()?;
        options.model.activations = named(
            "activations",
            self.activations.as_deref(),
            Activations::ALL,
            Activations::name,
        )?
        .unwrap_or_default();
        options.model.attention = named(
            "attention",
            self.attention.as_deref(),
            &AttentionPrecision::ALL,
            AttentionPrecision::name,
        )?
        .unwrap_or_default();
        options.machine.batch_tokens = batch_tokens;
        options.machine.chunk_tokens = self.chunk_tokens.unwrap_or(preferred.min(batch_tokens));
        options.cache.page_tokens = self.page_tokens.unwrap_or(defaults.cache.page_tokens);
        (options.cache.key_format, options.cache.value_format) =
            parse_kv_type(self.kv_type.as_deref().unwrap_or("f16"))?;
        options.cache.rotate = self.kv_rotate;
        options.machine.sequences = self.sequences.unwrap_or(1);
        options.cache.pool_tokens = self.pool_tokens;
        options.cache.keeps_beginnings = self.keeps_beginnings.unwrap_or(false);
        options.sequence.prefill = profile.prefill;
        options.sequence.decode = profile.decode;
        options.machine.cost = profile.cost;
        options.sequence.audit = self.audit.unwrap_or(false);
        options.sequence.score_pairs = self.score_pairs.unwrap_or(false);
        options.model.draft_model = self.draft_model.as_deref().map(model_path).transpose()?;
        options.model.draft_predictor = self.draft_predictor.unwrap_or(false);
        options.sequence.auto_target = self.auto;
        options.model.token_selection = self.select_tokens.as_deref().map(str::parse).transpose()?;
        options.cache.kv_tiers = self.tiers()?;
        options.machine.memory_budget_bytes = bytes("memory_budget_bytes", &self.memory)?;
        options.machine.weights_budget_bytes = bytes("weights_budget_bytes", &self.weights_ram)?;
        options.machine.batch_grows = self.batch_tokens.is_none();
        let options = with_adapters(options, self.adapters, self.adapter_scales)?;
        match self.window {
            Some(window_tokens) => Ok(options.with_window(StreamWindow {
                window_tokens,
                sink_tokens: self.sink_tokens.unwrap_or(64),
            })?),
            None => Ok(options),
        }
    }

    /// The tiers of the cache.
    fn tiers(&self) -> Result<KvTiers, Failure> {
        let mut tiers = KvTiers {
            device_budget_bytes: bytes("device_budget_bytes", &self.kv_device)?.unwrap_or(0),
            ..KvTiers::memory(bytes("ram_budget_bytes", &self.kv_ram)?)
        };
        if let Some(folder) = self.kv_disk.clone() {
            let budget_bytes = bytes("disk.budget_bytes", &self.kv_disk_bytes)?;
            tiers.disk = Some(DiskTier { folder, budget_bytes });
        }
        Ok(tiers)
    }

    /// The policies of both phases, from a profile's file or by name.
    fn profile(&self) -> Result<Profile, Failure> {
        let Some(path) = &self.profile else {
            let rules = |text: &Option<String>| policy(text.as_deref().unwrap_or("full")).map(PolicyRules::from);
            return Ok(Profile {
                prefill: rules(&self.prefill)?,
                decode: rules(&self.decode)?,
                ..Profile::default()
            });
        };
        if self.prefill.is_some() || self.decode.is_some() {
            return Err(Failure::option(
                "profile names the policies: leave prefill and decode out, or the profile",
            ));
        }
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure::option(format!(
                "{}: {error}; riffle calibrate --out writes a profile",
                path.display()
            ))
        })?;
        Ok(text.parse::<Profile>()?)
    }
}

impl GivenAnswer {
    /// The options of an answer of this engine.
    pub(crate) fn resolved(self, engine: &Engine) -> Result<GenerateOptions, Failure> {
        let mut logit_bias: Vec<(u32, f32)> = self.logit_bias.into_iter().flatten().collect();
        logit_bias.sort_by_key(|(token, _)| *token);
        let mut sampling = SamplingOptions::recommended(engine.generation_defaults());
        sampling.logit_bias = logit_bias;
        set(&mut sampling.repeat_penalty, self.repeat_penalty);
        set(&mut sampling.repeat_window, self.repeat_window);
        set(&mut sampling.presence_penalty, self.presence_penalty);
        set(&mut sampling.frequency_penalty, self.frequency_penalty);
        set(&mut sampling.top_k, self.top_k);
        set(&mut sampling.temperature, self.temperature);
        set(&mut sampling.top_p, self.top_p);
        set(&mut sampling.min_p, self.min_p);
        set(&mut sampling.seed, self.seed);
        sampling.validate()?;
        let vocabulary = engine.model().config().vocab_size;
        check_tokens(sampling.logit_bias.iter().map(|(token, _)| *token), vocabulary)?;
        let stop_tokens = self
            .stop_tokens
            .map(|given| given.list("stop_tokens"))
            .transpose()?
            .unwrap_or_default();
        check_tokens(stop_tokens.iter().copied(), vocabulary)?;
        let mut options = GenerateOptions::default();
        set(&mut options.max_tokens, self.max_tokens);
        options.sampling = sampling;
        options.stops = self
            .stop
            .map(|given| given.list("stop"))
            .transpose()?
            .unwrap_or_default();
        options.stop_tokens = stop_tokens;
        options.min_tokens = self.min_tokens.unwrap_or(0);
        options.ignores_end = self.ignore_end.unwrap_or(false);
        options.probabilities = self.probabilities;
        if let Some(draft) = &self.draft {
            options.draft = draft.parse()?;
        }
        Ok(options)
    }
}

/// The options with adapters (LoRA) beside the weights, and the scales of sequences. Without scales each adapter has
/// its full strength.
fn with_adapters(
    options: EngineOptions,
    paths: Option<Items<PathBuf>>,
    scales: Option<Items<f32>>,
) -> Result<EngineOptions, Failure> {
    let paths = paths
        .map(|given| given.list("adapters"))
        .transpose()?
        .unwrap_or_default();
    let scales = scales.map(|given| given.list("adapter_scales")).transpose()?;
    let specs = paths.into_iter().map(|path| AdapterSpec { path, scale: 1.0 });
    let mut options = options.with_adapters(specs.collect());
    if let Some(scales) = scales {
        let adapters = options.model.adapters.len();
        if scales.len() != adapters {
            return Err(Failure::option(format!(
                "adapter_scales has {} scales, but there are {adapters} adapters: give one for each",
                scales.len()
            )));
        }
        if let Some(scale) = scales.iter().find(|scale| !scale.is_finite()) {
            return Err(Failure::option(format!(
                "adapter_scales holds {scale}, but scales must be finite"
            )));
        }
        options.sequence.adapters = AdapterScales::new(&scales);
    }
    Ok(options)
}

/// Replaces a default by the given value.
fn set<T>(value: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *value = given;
    }
}

/// Refuses token ids outside the vocabulary.
pub(crate) fn check_tokens(tokens: impl IntoIterator<Item = u32>, vocabulary: usize) -> Result<(), Failure> {
    match tokens.into_iter().find(|token| *token as usize >= vocabulary) {
        None => Ok(()),
        Some(token) => Err(Failure::option(format!(
            "token {token} is not one of the model's {vocabulary}: give ids from 0 to {}",
            vocabulary - 1
        ))),
    }
}

/// The file or folder of a model: a path, or a name in the hub's cache.
pub(crate) fn model_path(path: &Path) -> Result<PathBuf, Failure> {
    if path.symlink_metadata().is_ok() {
        return Ok(path.to_owned());
    }
    let Some(text) = path.to_str() else {
        return Ok(path.to_owned());
    };
    let found = Settings::from_environment()
        .and_then(|settings| riffle_hub::locate(&settings, &OtherPrograms::from_environment(), text));
    match found {
        Ok(Some(found)) => Ok(found),
        // The loader reports a path that is neither a file nor a name.
        Ok(None) => Ok(path.to_owned()),
        Err(HubError::NotStored { name }) => Err(Failure::new(
            crate::failure::Class::Model,
            format!(
                "{name}: there is no such file or folder, nor a model of that name here; get it: riffle pull {name}"
            ),
        )),
        Err(error) => Err(error.into()),
    }
}

/// The one of `all` with this name.
fn named<T: Copy>(
    option: &'static str,
    given: Option<&str>,
    all: &[T],
    name: impl Fn(T) -> &'static str,
) -> Result<Option<T>, Failure> {
    let Some(text) = given else {
        return Ok(None);
    };
    let found = all.iter().find(|value| name(**value).eq_ignore_ascii_case(text));
    let names: Vec<&str> = all.iter().map(|value| name(*value)).collect();
    match found {
        Some(value) => Ok(Some(*value)),
        None => Err(Failure::option(format!(
            "{option} is {text:?}, but it must be {}",
            names.join(" or ")
        ))),
    }
}
