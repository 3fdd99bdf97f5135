//! A loaded model with the options it runs under.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use riffle_model::{ChatTemplate, GenerationDefaults, LoadTimes, ModelInfo, ModelOutline, OpenedModel, Tokenizer};

use crate::compute::Compute;
use crate::plan::{available_memory_bytes, policy_shape};
use crate::{EngineError, EngineOptions, MemoryPlan};

/// A model in memory, its options and its plan. Sessions share it.
pub struct Engine {
    path: PathBuf,
    loaded: Arc<Loaded>,
    options: EngineOptions,
    plan: MemoryPlan,
    fingerprint: OnceLock<u128>,
}

/// What does not depend on the options but the device.
struct Loaded {
    outline: ModelOutline,
    compute: Compute,
    tokenizer: Option<Tokenizer>,
    chat_template: Option<ChatTemplate>,
    generation: GenerationDefaults,
    load_times: LoadTimes,
}

impl Engine {
    /// Checks options and policies, plans the memory from the file headers alone, and only then loads the model.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`] before anything large is allocated; [`EngineError::Model`] for a bad file.
    pub fn load(path: impl AsRef<Path>, options: EngineOptions) -> Result<Arc<Self>, EngineError> {
        let path = path.as_ref();
        options.validate()?;
        let opened = OpenedModel::open(path, options.rope_scaling.as_ref())?;
        let info = opened.info();
        let options = options.resolved(&info.config);
        let shape = policy_shape(&info.config, &options);
        options.prefill.check_places(&shape)?;
        options.decode.check_places(&shape)?;
        let plan = plan(&info, &options)?;
        plan.check(&options)?;
        let loaded = opened.load(options.activations)?;
        Ok(Arc::new(Self {
            path: path.to_owned(),
            loaded: Arc::new(Loaded {
                outline: loaded.model.outline(),
                compute: Compute::new(loaded.model, options.device.as_ref())?,
                tokenizer: loaded.tokenizer,
                chat_template: loaded.chat_template,
                generation: loaded.generation,
                load_times: loaded.times,
            }),
            options,
            plan,
            fingerprint: OnceLock::new(),
        }))
    }

    /// The same model under other options, where its weights lie: they are shared, everything else is checked and planned
    /// anew. Memory that the weights take is not counted twice; caches of sessions that are alive are not known to it.
    ///
    /// # Errors
    /// As [`Engine::load`]; [`EngineError::Option`] for another stretching of positions or other activations, which belong to the
    /// loaded model.
    pub fn with_options(&self, options: EngineOptions) -> Result<Arc<Self>, EngineError> {
        let options = EngineOptions {
            device: self.options.device.clone(),
            preferred_device: None,
            ..options
        };
        options.validate()?;
        if options.rope_scaling != self.options.rope_scaling {
            let scaling = options
                .rope_scaling
                .map_or("none".to_owned(), |scaling| scaling.to_string());
            let problem = "the model was loaded with another one; load it anew";
            return Err(EngineError::option("--rope-scaling", scaling, problem));
        }
        if options.activations != self.options.activations {
            let problem = "the model was loaded with the other; load it anew";
            return Err(EngineError::option("--activations", options.activations, problem));
        }
        let config = self.model().config();
        options.check_device(config)?;
        let available = options
            .memory_budget_bytes
            .unwrap_or_else(|| available_memory_bytes().saturating_add(config.weight_bytes));
        let plan = MemoryPlan::with_weights(config, &options, available)?;
        plan.check(&options)?;
        Ok(Arc::new(Self {
            path: self.path.clone(),
            loaded: Arc::clone(&self.loaded),
            options,
            plan,
            fingerprint: self.fingerprint.clone(),
        }))
    }

    /// Where the model was loaded from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A hash of the model's settings and weights; reads the weight files when it is first asked for.
    ///
    /// # Errors
    /// [`EngineError::Model`] when the files cannot be read any more.
    pub fn fingerprint(&self) -> Result<u128, EngineError> {
        if let Some(fingerprint) = self.fingerprint.get() {
            return Ok(*fingerprint);
        }
        let fingerprint = riffle_model::fingerprint(&self.path)?;
        Ok(*self.fingerprint.get_or_init(|| fingerprint))
    }

    /// The model's sizes, and how its keys carry positions.
    pub fn model(&self) -> &ModelOutline {
        &self.loaded.outline
    }

    pub(crate) fn compute(&self) -> &Compute {
        &self.loaded.compute
    }

    /// The options this engine runs under.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// The memory plan the engine keeps to.
    pub fn plan(&self) -> &MemoryPlan {
        &self.plan
    }

    /// The context length that decides how keys are turned, where that depends on it.
    pub(crate) fn rotary_context(&self) -> usize {
        match self.options.window {
            // Its angles go on to the model's last position.
            Some(_) => self.model().config().max_position,
            None => self.plan.context_tokens,
        }
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// [`EngineError::NoTokenizer`] when the model came without one.
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

    /// Where the time of loading went.
    pub fn load_times(&self) -> LoadTimes {
        self.loaded.load_times
    }

    /// End tokens and sampling the model recommends.
    pub fn generation_defaults(&self) -> &GenerationDefaults {
        &self.loaded.generation
    }
}

/// The memory plan of a model under these options, from its headers and the memory available now.
///
/// # Errors
/// As [`MemoryPlan::new`].
pub fn plan(info: &ModelInfo, options: &EngineOptions) -> Result<MemoryPlan, EngineError> {
    let options = &options.resolved(&info.config);
    options.check_device(&info.config)?;
    let available = options.memory_budget_bytes.unwrap_or_else(available_memory_bytes);
    MemoryPlan::new(&info.config, options, available)
}

/// The most threads that [`with_threads`] starts: four for each core, and at least 64.
///
/// Threads beyond the number of cores only wait for one another, and thousands of them take longer to start and to wake
/// than the work takes. The lower limit lets scripts with a fixed number run on small machines.
pub fn max_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (4 * cores).max(64)
}

/// Runs `work` on `threads` threads, or on every core for `None`. Work that starts inside the pool is handed out
/// faster than work that has to enter it, so whole runs belong in here.
///
/// # Errors
/// [`EngineError::Threads`] when the pool cannot be started, [`EngineError::Option`] for zero threads or more than
/// [`max_threads`].
pub fn with_threads<T: Send>(threads: Option<usize>, work: impl FnOnce() -> T + Send) -> Result<T, EngineError> {
    if let Some(threads) = threads.filter(|threads| !(1..=max_threads()).contains(threads)) {
        let requirement = format!("it must be a whole number from 1 to {}", max_threads());
        return Err(EngineError::option("--threads", threads, requirement));
    }
    // Zero stands for every core in rayon.
    let threads = threads.unwrap_or(0);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.map_err(|error| EngineError::Threads {
        threads,
        reason: error.to_string(),
    })?;
    Ok(pool.install(work))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_threads_than_a_machine_can_use_are_refused() {
        for threads in [0, max_threads() + 1, 100_000, usize::MAX] {
            let error = with_threads(Some(threads), || ()).unwrap_err();
            assert!(
                matches!(error, EngineError::Option { name: "--threads", .. }),
                "{error}"
            );
        }
        assert_eq!(with_threads(Some(3), rayon::current_num_threads).unwrap(), 3);
    }
}
