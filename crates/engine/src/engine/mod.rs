//! A loaded model with its options.

mod abilities;
pub(crate) mod draft_model;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use riffle_kv::PagePool;
use riffle_model::{
    AdapterInfo, ChatTemplate, ExpertBudget, ExpertCache, ExpertStatistics, GenerationDefaults, InfillTokens,
    InputSums, LoadTimes, ModelInfo, ModelOutline, Reranking, TextEmbedding, Tokenizer,
};

use crate::attention::{Reader, SharedRoom, SlidingLayers};
use crate::compute::Compute;
use crate::error::{require, stretch_advice};
use crate::plan::{Planner, Resolved, available_memory_bytes, policy_shapes, sliding_layers};
use crate::predictor::PredictorRoom;
use crate::{EngineError, EngineOptions, MemoryPlan, StreamWindow};
use draft_model::DraftModel;

/// A model in memory, its options and its plan. Sessions share it.
pub struct Engine {
    path: PathBuf,
    loaded: Arc<Loaded>,
    options: EngineOptions,
    plan: MemoryPlan,
    /// The shapes and budgets derived from the options.
    pub(crate) resolved: Resolved,
    fingerprint: OnceLock<u128>,
    device_room: SharedRoom,
    /// The small draft model, if the options name one.
    pub(crate) draft_model: Option<Arc<DraftModel>>,
    /// Memory of sequences for the model's predicting layer, if it drafts.
    pub(crate) predictor_room: Option<Arc<PredictorRoom>>,
    /// The plan's memory for experts that stay in the model's files. Engines of one model share the smallest budget.
    expert_budget: Option<ExpertBudget>,
}

/// The loaded model. Of the options it depends only on the device.
struct Loaded {
    outline: ModelOutline,
    compute: Box<dyn Compute>,
    tokenizer: Option<Tokenizer>,
    chat_template: Option<ChatTemplate>,
    generation: GenerationDefaults,
    embedding: TextEmbedding,
    reranking: Result<Reranking, String>,
    infill: Option<InfillTokens>,
    load_times: LoadTimes,
    adapters: Vec<AdapterInfo>,
}

impl Engine {
    /// Checks options and policies, plans the memory from the file headers, and then loads the model.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`] before anything large is allocated; [`EngineError::Model`] for a bad file.
    pub fn load(path: impl AsRef<Path>, options: EngineOptions) -> Result<Arc<Self>, EngineError> {
        let path = path.as_ref();
        options.validate()?;
        let opened = options.model.open(path)?;
        let info = opened.info();
        check_predictor(&info, &options)?;
        let options = settled(&info, &options)?;
        let shapes = policy_shapes(&info.config, &options);
        options.sequence.prefill.check_places(&shapes)?;
        options.sequence.decode.check_places(&shapes)?;
        check_text(&info, &options)?;
        let plan = plan(&info, &options)?;
        plan.check()?;
        let resolved = Resolved::new(&info.config, &options, &plan)?;
        let expert_bytes = plan.experts.as_ref().map(|experts| experts.cache_bytes);
        let loaded = opened.with_expert_bytes(expert_bytes).load()?;
        let mut engine = Self {
            resolved,
            path: path.to_owned(),
            loaded: Arc::new(Loaded {
                outline: loaded.model.outline(),
                compute: crate::compute::place(loaded.model, options.machine.device.as_ref())?,
                tokenizer: loaded.tokenizer,
                chat_template: loaded.chat_template,
                generation: loaded.generation,
                embedding: loaded.embedding,
                reranking: loaded.reranking,
                infill: loaded.infill,
                load_times: loaded.times,
                adapters: info.adapters,
            }),
            options,
            plan,
            fingerprint: OnceLock::new(),
            device_room: SharedRoom::default(),
            draft_model: None,
            predictor_room: None,
            expert_budget: None,
        };
        engine.set_expert_budget();
        engine.make_predictor_room();
        if let Some(path) = &engine.options.model.draft_model {
            engine.draft_model = Some(DraftModel::load(path, &engine)?);
        }
        Ok(Arc::new(engine))
    }

    /// The same model under other options. The weights are shared; everything else is checked and planned again. The
    /// weights' memory is not counted twice; caches of live sessions are not considered.
    ///
    /// # Errors
    /// As [`Engine::load`]; [`EngineError::Option`] for another scaling of positions or other activations, which
    /// belong to the loaded model.
    pub fn with_options(&self, options: EngineOptions) -> Result<Arc<Self>, EngineError> {
        let options = options
            .with_device(self.options.machine.device.clone())
            .with_preferred_device(None)
            .with_families(self.options.model.families);
        options.validate()?;
        if options.model.rope_scaling != self.options.model.rope_scaling {
            let scaling = options
                .model
                .rope_scaling
                .map_or("none".to_owned(), |scaling| scaling.to_string());
            let problem = "the weights in memory were loaded with another one: load the model again with it";
            return Err(EngineError::option("rope_scaling", scaling, problem));
        }
        if options.model.activations != self.options.model.activations {
            let problem = "the weights in memory were loaded with the other: load the model again with it";
            return Err(EngineError::option("activations", options.model.activations, problem));
        }
        self.check_adapters(&options)?;
        let config = self.model().config();
        options.check_device(config)?;
        if options.model.draft_model.is_some() && options.model.draft_model != self.options.model.draft_model {
            let problem = "the model was loaded beside another one, or none; load it anew";
            let path = options.model.draft_model.as_deref().unwrap_or(Path::new(""));
            let name = format!("model:{}", path.display());
            return Err(EngineError::option("draft_model", name, problem));
        }
        if options.model.draft_predictor && config.predictor_bytes == 0 {
            let problem = "the model was loaded without its layer that predicts further tokens: load it anew with it";
            return Err(EngineError::option("draft_predictor", "mtp", problem));
        }
        let plan = self.planner(self.memory_under(&options)).plan(&options)?;
        plan.check()?;
        let mut engine = Self {
            resolved: Resolved::new(config, &options, &plan)?,
            path: self.path.clone(),
            loaded: Arc::clone(&self.loaded),
            options,
            plan,
            fingerprint: self.fingerprint.clone(),
            device_room: SharedRoom::default(),
            draft_model: None,
            predictor_room: None,
            expert_budget: None,
        };
        engine.set_expert_budget();
        engine.make_predictor_room();
        if let (Some(_), Some(model)) = (&engine.options.model.draft_model, &self.draft_model) {
            engine.draft_model = Some(model.beside(&engine)?);
        }
        Ok(Arc::new(engine))
    }

    /// Refuses adapters that are not in memory.
    fn check_adapters(&self, options: &EngineOptions) -> Result<(), EngineError> {
        let adapters = &options.model.adapters;
        if *adapters == self.options.model.adapters {
            return Ok(());
        }
        let paths = adapters.iter().map(|adapter| adapter.path.display().to_string());
        let paths = paths.collect::<Vec<_>>().join(", ");
        let problem = "the weights in memory were loaded with others: load the model again with these";
        Err(EngineError::option("adapters", paths, problem))
    }

    /// The path that the model was loaded from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A hash of the model's settings and weights; the first call reads the weight files.
    ///
    /// # Errors
    /// [`EngineError::Model`] if the files are no longer readable.
    pub fn fingerprint(&self) -> Result<u128, EngineError> {
        if let Some(fingerprint) = self.fingerprint.get() {
            return Ok(*fingerprint);
        }
        let fingerprint = riffle_model::fingerprint_with(&self.path, &self.options.model.load_options())?;
        Ok(*self.fingerprint.get_or_init(|| fingerprint))
    }

    /// The adapters beside the weights, in the order of the options.
    pub fn adapters(&self) -> &[AdapterInfo] {
        &self.loaded.adapters
    }

    /// The model's sizes and position encoding.
    pub fn model(&self) -> &ModelOutline {
        &self.loaded.outline
    }

    /// A reader of a new sequence's pages, on the device that computes attention.
    pub(crate) fn reader(&self) -> Result<Box<dyn Reader>, EngineError> {
        self.compute().reader(&self.device_room, self.resolved.room)
    }

    /// The cache layers that store only a sliding window, in sequences with or without an endless window.
    pub(crate) fn sliding_layers(&self, window: Option<StreamWindow>) -> SlidingLayers {
        sliding_layers(self.model().config(), &self.options, window)
    }

    /// Bytes of the loaded model now.
    pub fn loaded_bytes(&self) -> u64 {
        let experts = self.expert_cache().map_or(0, ExpertCache::taken_bytes);
        self.plan.loaded_bytes().saturating_add(experts)
    }

    /// Bytes that this model and others beside it may use together: the budget of the options, or else the free memory
    /// and this model's memory.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_under(&self.options)
    }

    fn memory_under(&self, options: &EngineOptions) -> u64 {
        let budget = options.machine.memory_budget_bytes;
        budget.unwrap_or_else(|| available_memory_bytes().saturating_add(self.loaded_bytes()))
    }

    fn expert_cache(&self) -> Option<&ExpertCache> {
        self.compute().host()?.expert_cache.as_deref()
    }

    fn set_expert_budget(&mut self) {
        let planned = self.plan.experts.as_ref();
        self.expert_budget = planned.and_then(|experts| Some(self.expert_cache()?.set_budget(experts.cache_bytes)));
    }

    fn make_predictor_room(&mut self) {
        let has_predictor = self.compute().host().is_some_and(|model| model.predictor.is_some());
        if self.options.model.draft_predictor && has_predictor {
            let context = self.plan.context_tokens;
            self.predictor_room = Some(PredictorRoom::new(self.model().config(), &self.options, context));
        }
    }

    pub(crate) fn compute(&self) -> &dyn Compute {
        &*self.loaded.compute
    }

    /// Sums over the inputs of linear layers, if the options request them; empty on a device.
    pub fn input_sums(&self) -> &[Arc<InputSums>] {
        self.compute().host().map_or(&[], |model| &model.input_sums)
    }

    /// Counts of experts loaded on demand; `None` if all weights are in memory.
    pub fn expert_statistics(&self) -> Option<ExpertStatistics> {
        Some(self.expert_cache()?.statistics())
    }

    /// The options this engine runs under.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// The engine's memory plan.
    pub fn plan(&self) -> &MemoryPlan {
        &self.plan
    }

    /// A pool of pages for sequences of this engine, which together stay within the budgets of its plan.
    ///
    /// # Errors
    /// [`EngineError::Kv`] if the folder of the disk tier is not writable.
    pub fn page_pool(&self) -> Result<PagePool, EngineError> {
        Ok(PagePool::new(self.resolved.cache, self.resolved.tiers.clone())?)
    }

    /// Checks that the context has room for `tokens` tokens.
    ///
    /// # Errors
    /// [`EngineError::ContextExceeded`] with the options with which they would fit.
    pub fn check_context(&self, what: &'static str, tokens: usize) -> Result<(), EngineError> {
        if self.options.sequence.window.is_none() && tokens > self.plan.context_tokens {
            Err(self.context_exceeded(what, tokens))
        } else {
            Ok(())
        }
    }

    /// The error that lists options with which `needed` tokens would fit.
    pub(crate) fn context_exceeded(&self, what: &'static str, needed: usize) -> EngineError {
        let config = self.model().config();
        let advice = if needed > config.max_position {
            out_of_positions(needed, config.max_position)
        } else {
            self.longer_context(needed)
        };
        EngineError::ContextExceeded {
            what,
            needed,
            context: self.plan.context_tokens,
            advice,
        }
    }

    /// Advice for fitting a context of `needed` tokens.
    fn longer_context(&self, needed: usize) -> String {
        let options = self.options.clone().with_context_tokens(Some(needed));
        match self.planner(self.plan.available_bytes).plan(&options) {
            Ok(plan) if plan.fits() => format!("raise `context_tokens` to at least {needed} or shorten the input"),
            Ok(plan) if plan.options_for_context.is_empty() => "shorten the input".to_owned(),
            Ok(plan) => {
                let ways = plan.options_for_context.iter();
                let ways: Vec<String> = ways
                    .map(|options| format!("`context_tokens={needed}` {options}"))
                    .collect();
                format!("use {}, or shorten the input", ways.join(", or "))
            }
            Err(_) => "shorten the input".to_owned(),
        }
    }

    fn planner(&self, available_bytes: u64) -> Planner<'_> {
        Planner {
            config: self.model().config(),
            vocabulary: self.loaded.tokenizer.as_ref().map_or(0, Tokenizer::vocab_size),
            available_bytes,
            has_weights: true,
        }
    }

    /// True if the keys of a sequence of `tokens` tokens rotate as in long sequences (LongRoPE); false for models
    /// without this difference.
    pub(crate) fn turns_long(&self, tokens: usize) -> bool {
        self.model().rotation_changes_at().is_some_and(|length| tokens > length)
    }

    /// The layers with keys and values that see the whole sequence: their index in the model and in the cache.
    pub(crate) fn whole_layers(&self) -> Vec<(usize, usize)> {
        let model = self.model();
        let config = model.config();
        let layers = config.cached_layers().enumerate();
        let whole = layers.filter(|(_, layer)| model.window(*layer).is_none());
        whole.map(|(cached, layer)| (layer, cached)).collect()
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// [`EngineError::NoTokenizer`] if the model has none.
    pub fn tokenizer(&self) -> Result<&Tokenizer, EngineError> {
        self.loaded
            .tokenizer
            .as_ref()
            .ok_or_else(|| EngineError::NoTokenizer(self.path.display().to_string()))
    }

    /// The model's chat template, if it has one.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.loaded.chat_template.as_ref()
    }

    /// The time of loading, by part.
    pub fn load_times(&self) -> LoadTimes {
        self.loaded.load_times
    }

    /// End tokens and sampling the model recommends.
    pub fn generation_defaults(&self) -> &GenerationDefaults {
        &self.loaded.generation
    }
}

/// Refuses model files without a predicting layer if it should draft.
fn check_predictor(info: &ModelInfo, options: &EngineOptions) -> Result<(), EngineError> {
    let layers = info.config.predicting_layers;
    let found = match layers {
        _ if !options.model.draft_predictor => return Ok(()),
        1 => return Ok(()),
        0 => "holds no layer that predicts further tokens".to_owned(),
        layers => format!("holds {layers} layers that predict further tokens, and one is supported"),
    };
    let problem = format!(
        "{} {found}: use `draft=ngram`, sparse or model:PATH in place of it, or a file of the model that holds one",
        info.path.display()
    );
    Err(EngineError::option("draft_predictor", "mtp", problem))
}

/// Refuses a text that cannot fit the context, before it is encoded: a token has at most the bytes of the longest one
/// in the vocabulary.
fn check_text(info: &ModelInfo, options: &EngineOptions) -> Result<(), EngineError> {
    let (Some(text), Some(tokenizer), None) = (&options.machine.prompt, &info.tokenizer, options.sequence.window)
    else {
        return Ok(());
    };
    let context = options.model.context_tokens.unwrap_or(info.config.max_position);
    let longest = tokenizer.longest_token_bytes.max(1) as u64;
    let needed = usize::try_from(text.bytes / longest).unwrap_or(usize::MAX);
    if needed <= context {
        return Ok(());
    }
    let maximum = info.config.max_position;
    Err(EngineError::ContextExceeded {
        what: "the prompt, even if all of its tokens were long,",
        needed,
        context,
        advice: if needed > maximum {
            out_of_positions(needed, maximum)
        } else {
            format!("shorten the input, or raise `context_tokens` up to {maximum}")
        },
    })
}

fn out_of_positions(needed: usize, maximum: usize) -> String {
    format!(
        "shorten the input to the {maximum} positions that the model was made for, or stretch them{}",
        stretch_advice(needed, maximum)
    )
}

/// The memory plan of a model under these options, from its headers and the memory available now.
///
/// # Errors
/// As [`MemoryPlan::new`].
pub fn plan(info: &ModelInfo, options: &EngineOptions) -> Result<MemoryPlan, EngineError> {
    let options = &settled(info, options)?;
    options.check_device(&info.config)?;
    MemoryPlan::new(info, options, available_bytes(options))
}

fn available_bytes(options: &EngineOptions) -> u64 {
    options
        .machine
        .memory_budget_bytes
        .unwrap_or_else(available_memory_bytes)
}

/// Adds options that follow from the model and the memory: the device, the length of a logical batch.
fn settled(info: &ModelInfo, options: &EngineOptions) -> Result<EngineOptions, EngineError> {
    let options = options.resolved(&info.config);
    let planner = Planner {
        config: &info.config,
        vocabulary: info.tokenizer.as_ref().map_or(0, |tokenizer| tokenizer.vocab_size),
        available_bytes: available_bytes(&options),
        has_weights: false,
    };
    let longer = planner.with_long_batch(&options);
    // Invalid options are reported by the code that plans with them.
    Ok(longer.unwrap_or(options))
}

/// The most threads that [`with_threads`] starts: four for each core, and at least 64.
///
/// Further threads only wait for each other, and starting thousands takes longer than the work. The lower limit lets
/// scripts with a fixed number run on small machines.
pub fn max_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (4 * cores).max(64)
}

/// Runs `work` on `threads` threads, or on every core for `None`. Starting inside the pool is faster than entering it
/// for each task, so wrap whole runs.
///
/// # Errors
/// [`EngineError::Threads`] if the pool cannot start, [`EngineError::Option`] for zero threads or more than
/// [`max_threads`].
pub fn with_threads<T: Send>(threads: Option<usize>, work: impl FnOnce() -> T + Send) -> Result<T, EngineError> {
    // In rayon, zero means every core.
    let is_allowed = threads.is_none_or(|threads| (1..=max_threads()).contains(&threads));
    let threads = threads.unwrap_or(0);
    let requirement = format!("it must be a whole number from 1 to {}", max_threads());
    require(is_allowed, "threads", threads, requirement)?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.map_err(|error| EngineError::Threads {
        threads,
        reason: error.to_string(),
    })?;
    Ok(pool.install(work))
}
