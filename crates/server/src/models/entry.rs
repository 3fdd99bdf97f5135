//! A model of a server: its names and public facts, loaded or not.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use riffle_engine::{Engine, EngineOptions};
use riffle_model::{GenerationDefaults, ModelConfig, ModelInfo};
use tokio::sync::OnceCell;

use super::PlannedModel;
use crate::ServerOptions;
use crate::api::ollama::facts::ModelFacts;
use crate::app::aside;
use crate::failure::Failure;
use crate::metrics::Metrics;
use crate::speech::has_thoughts;

/// A model in the lists of a server.
pub(crate) struct Entry {
    /// The name in answers.
    pub(crate) name: String,
    /// Further names.
    pub(crate) aliases: Vec<String>,
    /// Adapters (LoRA) that requests may use as their model: their names and paths.
    pub(crate) adapters: Vec<(String, PathBuf)>,
    pub(crate) path: PathBuf,
    pub(crate) config: ModelConfig,
    pub(crate) options: EngineOptions,
    pub(crate) context_tokens: usize,
    /// Bytes of keys and values of the full cache.
    pub(crate) kv_bytes: u64,
    pub(crate) on_device: bool,
    pub(crate) generation: GenerationDefaults,
    pub(crate) has_chat_template: bool,
    pub(crate) takes_tools: bool,
    pub(crate) thinks: bool,
    pub(crate) fills_in: bool,
    /// Counters, which continue when the model is loaded again.
    pub(crate) metrics: Arc<Metrics>,
    facts: OnceCell<ModelFacts>,
}

/// A name for requests.
pub(crate) struct Name<'a> {
    pub(crate) text: &'a str,
    /// The path of the adapter; `None` for the model itself.
    pub(crate) adapter: Option<&'a Path>,
}

impl Entry {
    /// The entry of a loaded model.
    pub(crate) fn of_engine(engine: &Engine, options: &ServerOptions) -> Self {
        let template = engine.chat_template();
        let mentions = |text: &str| template.is_some_and(|template| template.mentions(text));
        let is_own = |name: &str| name == options.model_name || options.aliases.iter().any(|alias| alias == name);
        let adapters = options.adapter_names.iter().zip(engine.adapters());
        let adapters = adapters.filter(|(name, _)| !name.is_empty() && !is_own(name));
        Self {
            name: options.model_name.clone(),
            aliases: options.aliases.clone(),
            adapters: adapters
                .map(|(name, adapter)| (name.clone(), adapter.path.clone()))
                .collect(),
            path: engine.path().to_owned(),
            config: engine.model().config().clone(),
            options: engine.options().clone(),
            context_tokens: engine.plan().context_tokens,
            kv_bytes: engine.plan().kv_bytes,
            on_device: engine.options().machine.device.is_some(),
            generation: engine.generation_defaults().clone(),
            has_chat_template: template.is_some(),
            takes_tools: mentions("tools"),
            thinks: has_thoughts(mentions),
            fills_in: engine.infill_tokens().is_some(),
            metrics: Arc::new(Metrics::new(None)),
            facts: OnceCell::new(),
        }
    }

    /// The entry of a model that is loaded on demand.
    pub(crate) fn of_planned(model: &PlannedModel) -> Self {
        let info = &model.info;
        let mentions = |text: &str| info.chat_templates.iter().any(|template| template.contains(text));
        Self {
            name: model.name.clone(),
            aliases: Vec::new(),
            adapters: Vec::new(),
            path: model.path.clone(),
            config: info.config.clone(),
            options: model.options.clone(),
            context_tokens: model.plan.context_tokens,
            kv_bytes: model.plan.kv_bytes,
            on_device: model.plan.device.is_some(),
            generation: info.generation.clone(),
            has_chat_template: !info.chat_templates.is_empty(),
            takes_tools: mentions("tools"),
            thinks: has_thoughts(mentions),
            fills_in: info.has_infill_tokens,
            metrics: Arc::new(Metrics::new(Some(&model.name))),
            facts: OnceCell::new_with(Some(ModelFacts::of(info))),
        }
    }

    /// The names of the model and its adapters, the name in answers first.
    pub(crate) fn names(&self) -> impl Iterator<Item = Name<'_>> {
        let own = std::iter::once(&self.name).chain(&self.aliases);
        let own = own.map(|name| Name {
            text: name,
            adapter: None,
        });
        own.chain(self.adapters.iter().map(|(name, path)| Name {
            text: name,
            adapter: Some(path),
        }))
    }

    /// Facts about the model's files. For a model that was loaded at the start they are read at first use.
    pub(crate) async fn facts(&self) -> Result<&ModelFacts, Failure> {
        let read = || {
            let (path, options) = (self.path.clone(), self.options.model.clone());
            aside(move || {
                let info: Result<ModelInfo, _> = options.inspect(&path);
                info.map(|info| ModelFacts::of(&info))
                    .map_err(|error| Failure::from_engine(&error))
            })
        };
        self.facts.get_or_try_init(read).await
    }
}
