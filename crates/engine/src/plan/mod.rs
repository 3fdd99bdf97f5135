//! The memory plan: the needs of a run, before anything is allocated.

mod advice;
mod device;
mod experts;
mod process;
mod resolved;
mod tiers;

use riffle_attention::Span;
use riffle_files::human_bytes;
use riffle_kv::{CacheShape, KvError, LayerShape, LayerShapes, largest};
use riffle_model::{IndexerShape, ModelConfig, ModelInfo, PredictorForward};
use riffle_policy::PolicyShape;
use serde::Serialize;

use crate::attention::{Heads, IndexBlocks, PairScorer, SlidingLayers, cached_shape, sign_index_bytes};
use crate::error::require;
use crate::options::{check_indexers, has_indexers};
use crate::parse::typed_bytes;
use crate::predictor::PredictorRoom;
use crate::{EngineError, EngineOptions, TokenSelection};

pub use device::DevicePlan;
use device::room_options;
pub use experts::ExpertPlan;
use experts::WeightTiers;
pub use process::{ProcessPlan, available_memory_bytes, largest_text_bytes};
pub(crate) use resolved::Resolved;
pub use tiers::TierPlan;
use tiers::planned_tiers;
pub(crate) use tiers::sliding_layers;

/// Recurrent states per sequence: the current one, and those before the latest prompt, after its latest batch and at
/// the latest checkpoint.
const RECURRENT_STATES: u64 = 4;

/// Bytes that a run needs, part by part, and the machine's available memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MemoryPlan {
    /// Tokens the context holds.
    pub context_tokens: usize,
    /// Bytes of packed weights in memory: one copy. If experts stay in the files, only the experts in memory count.
    pub weights_bytes: u64,
    /// Experts that stay in the model's files; `None` if all weights are in memory.
    pub experts: Option<ExpertPlan>,
    /// Bytes of keys and values per token, over all layers.
    pub kv_bytes_per_token: u64,
    /// Bytes of KV pages for a full context. Pages are allocated on demand; this is the limit.
    pub kv_bytes: u64,
    /// Number of layers that store only a sliding window, and the most tokens of each.
    pub window_layers: usize,
    /// See [`Self::window_layers`].
    pub window_tokens: usize,
    /// The tiers of these pages.
    pub kv_tiers: TierPlan,
    /// Device memory; `None` on the CPU. Other fields count main memory.
    pub device: Option<DevicePlan>,
    /// Bytes of the recurrent state and its copies in a session, for any context.
    pub recurrent_bytes: u64,
    /// Bytes of activations for one logical batch, attention partials and logits, and of the predicting layer.
    pub scratch_bytes: u64,
    /// Sum of the parts in memory.
    pub total_bytes: u64,
    /// Bytes the run may use.
    pub available_bytes: u64,
    /// Other bytes of the process: program, tokenizer, prompt text.
    pub process: ProcessPlan,
    /// Longest context that fits in [`Self::available_bytes`] and in the tiers, up to the model's length; 0 if none
    /// does.
    pub largest_context_tokens: usize,
    /// Options with which the plan would fit; empty if it fits.
    pub advice: String,
    /// Options that do not change the context's length.
    pub options_for_context: Vec<String>,
}

impl MemoryPlan {
    /// Plans a run from its arguments alone.
    ///
    /// # Errors
    /// [`EngineError::ContextTooLong`], or [`EngineError::Kv`] for an impossible cache shape.
    pub fn new(info: &ModelInfo, options: &EngineOptions, available_bytes: u64) -> Result<Self, EngineError> {
        let planner = Planner {
            config: &info.config,
            vocabulary: info.tokenizer.as_ref().map_or(0, |tokenizer| tokenizer.vocab_size),
            available_bytes,
            has_weights: false,
        };
        planner.plan(options)
    }

    /// True if the complete plan fits.
    pub fn fits(&self) -> bool {
        let on_device = self.device.as_ref().is_none_or(DevicePlan::fits);
        self.total_bytes <= self.available_bytes && self.kv_tiers.refusal.is_none() && on_device
    }

    /// Checks that the plan fits.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`] gives the needed and available memory and options that would fit;
    /// [`EngineError::TierTooSmall`] the option to change.
    pub fn check(&self) -> Result<(), EngineError> {
        if self.fits() {
            return Ok(());
        }
        if let Some(device) = self.device.as_ref().filter(|device| !device.fits()) {
            return Err(device.refusal());
        }
        if let Some(refusal) = &self.kv_tiers.refusal {
            return Err(EngineError::TierTooSmall {
                tokens: self.context_tokens,
                needed: human_bytes(self.kv_bytes),
                refusal: refusal.clone(),
                advice: self.advice.clone(),
            });
        }
        Err(EngineError::OutOfMemory {
            needed: human_bytes(self.total_bytes),
            parts: self.parts_text(),
            available: human_bytes(self.available_bytes),
            advice: self.advice.clone(),
        })
    }

    /// Bytes of a loaded model before a session begins, without experts from its files.
    pub(crate) fn loaded_bytes(&self) -> u64 {
        let process = self.process.program_bytes.saturating_add(self.process.tokenizer_bytes);
        let resident = self.experts.as_ref().map(|experts| experts.resident_bytes);
        resident.unwrap_or(self.weights_bytes).saturating_add(process)
    }

    fn parts_text(&self) -> String {
        let mut parts = vec![
            match &self.experts {
                None => format!("weights {}", human_bytes(self.weights_bytes)),
                Some(experts) => format!(
                    "weights {}, {} of them of {} experts in memory",
                    human_bytes(self.weights_bytes),
                    human_bytes(experts.cache_bytes),
                    experts.held
                ),
            },
            format!(
                "KV of {} tokens {}",
                self.context_tokens,
                human_bytes(self.kv_tiers.device_bytes + self.kv_tiers.ram_bytes)
            ),
        ];
        if self.recurrent_bytes > 0 {
            parts.push(format!("recurrent state {}", human_bytes(self.recurrent_bytes)));
        }
        let process = &self.process;
        parts.push(format!("scratch {}", human_bytes(self.scratch_bytes)));
        parts.push(format!("tokenizer {}", human_bytes(process.tokenizer_bytes)));
        parts.push(format!("prompt text {}", human_bytes(process.prompt_bytes)));
        parts.push(format!("program {}", human_bytes(process.program_bytes)));
        parts.join(", ")
    }
}

/// Plans runs of one model in one amount of memory.
#[derive(Clone, Copy)]
pub(crate) struct Planner<'a> {
    pub(crate) config: &'a ModelConfig,
    /// Tokens of the vocabulary; 0 without a tokenizer.
    pub(crate) vocabulary: usize,
    pub(crate) available_bytes: u64,
    /// True if the model is loaded. Free device memory then excludes its weights, and experts stay where they were at
    /// load.
    pub(crate) has_weights: bool,
}

impl Planner<'_> {
    /// A plan, with advice if it does not fit.
    pub(crate) fn plan(&self, options: &EngineOptions) -> Result<MemoryPlan, EngineError> {
        let mut plan = self.plan_only(options)?;
        if !plan.fits() {
            (plan.advice, plan.options_for_context) = advice::suggest(self, options, &plan);
        }
        Ok(plan)
    }

    pub(crate) fn plan_only(&self, options: &EngineOptions) -> Result<MemoryPlan, EngineError> {
        options.validate()?;
        if let Some(selection) = &options.model.token_selection {
            selection.check(self.config, options)?;
        }
        check_indexers(self.config, options)?;
        let (config, has_weights) = (self.config, self.has_weights);
        let asked = options.context_for(config.max_position)?;
        if config.attention_layers() == 0 {
            return Err(EngineError::NoAttention);
        }
        let shape = cache_shape(config, options)?;
        let sliding = sliding_layers(config, options, options.sequence.window);
        let with = |tiers: WeightTiers, context: usize| self.of_context(options, (&shape, tiers), &sliding, context);
        let fits = |context: usize| with(WeightTiers::Resident, context).fits();
        let tiers = WeightTiers::new(config, options, has_weights, fits);
        self.check_weights_budget(options, tiers)?;
        let of_context = |context: usize| with(tiers, context);
        let largest_context_tokens = largest(config.max_position, |context| of_context(context).fits());
        // If no context is requested, use the longest that fits, unless none does.
        let context = match options.model.context_tokens {
            None if largest_context_tokens > 0 => largest_context_tokens,
            _ => asked,
        };
        let device = options.machine.device.as_ref();
        let device = device.map(|device| DevicePlan::new(&**device, config, options, context, has_weights));
        Ok(MemoryPlan {
            device: device.transpose()?,
            largest_context_tokens,
            ..of_context(context)
        })
    }

    /// The plan of main memory for a context of this length.
    fn of_context(
        &self,
        options: &EngineOptions,
        (shape, weights): (&CacheShape, WeightTiers),
        sliding: &SlidingLayers,
        context: usize,
    ) -> MemoryPlan {
        let config = self.config;
        let scratch_bytes = scratch_bytes(self.config, options, context);
        let process = ProcessPlan::new(options, self.vocabulary, context);
        let recurrent_bytes = self.recurrent_bytes(options);
        let beside = recurrent_bytes
            .saturating_add(scratch_bytes)
            .saturating_add(process.total_bytes());
        let in_any_case = match options.machine.device {
            None => beside.saturating_add(weights.least_bytes(config)),
            Some(_) => beside,
        };
        let room = self.available_bytes.saturating_sub(in_any_case);
        let pages_room = match weights {
            WeightTiers::Rest => experts::pages_room(options, room),
            _ => room,
        };
        let tiers = planned_tiers(options, (sliding, has_indexers(config)), context, pages_room);
        let kv_tiers = TierPlan::new(&tiers, shape, tiers.outlook.context_tokens);
        let pages = kv_tiers.device_bytes.saturating_add(kv_tiers.ram_bytes);
        let expert_bytes = weights.expert_bytes(config, options, room, pages);
        let batch = options.machine.batch_tokens.min(context);
        let experts = expert_bytes.map(|bytes| ExpertPlan::new(config, bytes, batch));
        let weights_bytes = match &experts {
            None => config.weight_bytes,
            Some(experts) => experts.resident_bytes.saturating_add(experts.cache_bytes),
        };
        let resident = match options.machine.device {
            None => beside.saturating_add(weights_bytes),
            Some(_) => beside,
        };
        let total_bytes = match options.machine.device {
            None => resident.saturating_add(pages),
            // Weights pass through main memory and are freed before the first page.
            Some(_) => weights_bytes
                .saturating_add(process.total_bytes())
                .max(resident.saturating_add(pages)),
        };
        MemoryPlan {
            context_tokens: context,
            weights_bytes,
            experts,
            kv_bytes_per_token: shape.bytes_per_token(),
            kv_bytes: tiers.pages_bytes(shape, tiers.outlook.context_tokens),
            window_layers: sliding.layers.len(),
            window_tokens: sliding.most_tokens().min(context),
            kv_tiers,
            device: None,
            recurrent_bytes,
            scratch_bytes,
            total_bytes,
            available_bytes: self.available_bytes,
            process,
            largest_context_tokens: 0,
            advice: String::new(),
            options_for_context: Vec::new(),
        }
    }

    /// Refuses a budget of weights that the weights exceed.
    fn check_weights_budget(&self, options: &EngineOptions, tiers: WeightTiers) -> Result<(), EngineError> {
        let is_open = !self.has_weights || !self.config.streamable.is_empty();
        let Some(bytes) = options.machine.weights_budget_bytes.filter(|_| is_open) else {
            return Ok(());
        };
        let (least, why) = match tiers {
            WeightTiers::Resident => (
                self.config.weight_bytes,
                ": no weights of this model can stay in its file, or a device computes it",
            ),
            _ => (ExpertPlan::least_weights_bytes(self.config), ""),
        };
        let requirement = format!("it must be at least {}{why}", typed_bytes(least));
        require(bytes >= least, "weights_budget_bytes", typed_bytes(bytes), requirement)
    }

    /// Lengthens the logical batch if the options allow it and experts are read once per batch. Its scratch stays a
    /// small part of the memory.
    pub(crate) fn with_long_batch(&self, options: &EngineOptions) -> Result<EngineOptions, EngineError> {
        if !options.machine.batch_grows || self.config.streamable.is_empty() {
            return Ok(options.clone());
        }
        let plan = self.plan_only(options)?;
        let Some(experts) = plan.experts.as_ref().filter(|experts| !experts.holds_all()) else {
            return Ok(options.clone());
        };
        let pages = plan.kv_tiers.device_bytes.saturating_add(plan.kv_tiers.ram_bytes);
        let room = experts.cache_bytes.saturating_add(pages);
        let machine = &options.machine;
        let longer = experts::longer_batches(machine.batch_tokens, machine.chunk_tokens, plan.context_tokens);
        for batch in longer {
            let options = options
                .clone()
                .with_context_tokens(options.model.context_tokens.or(Some(plan.context_tokens)))
                .with_batch_tokens(batch);
            let long = self.plan_only(&options)?;
            if long.fits() && experts::pays(long.scratch_bytes.saturating_sub(plan.scratch_bytes), room) {
                return Ok(options);
            }
        }
        Ok(options.clone())
    }

    fn recurrent_bytes(&self, options: &EngineOptions) -> u64 {
        options.machine.sequences as u64
            * (RECURRENT_STATES * self.config.recurrent_bytes() + self.config.recorded_bytes())
    }
}

/// The shape of a model's cache under these options.
fn cache_shape(config: &ModelConfig, options: &EngineOptions) -> Result<CacheShape, KvError> {
    let layers = config
        .cached_layers()
        .map(|layer| cached_shape(&config.attention_of(layer)));
    // Keys of indexers follow all layers. They have no values.
    let indexers = config.indexing_layers().filter_map(|layer| config.indexer_of(layer));
    let layers = layers.chain(indexers.map(|indexer| LayerShape {
        is_latent: true,
        ..LayerShape::new(1, indexer.width)
    }));
    let shape = CacheShape {
        layers: LayerShapes::new(&layers.collect::<Vec<_>>())?,
        page_tokens: options.cache.page_tokens,
        key_format: options.cache.key_format,
        value_format: options.cache.value_format,
    };
    shape.validate()?;
    Ok(shape)
}

/// The shapes for a model's policies: one for each layer with keys and values, then one for each indexer, which has
/// no policy.
pub fn policy_shapes(config: &ModelConfig, options: &EngineOptions) -> Vec<PolicyShape> {
    let of_layer = |layer| Heads::of_layer(config, layer).for_policies(options.machine.chunk_tokens);
    let indexers = config.indexing_layers().filter_map(|layer| config.indexer_of(layer));
    let of_indexer = |indexer: IndexerShape| PolicyShape {
        kv_heads: 1,
        group: indexer.heads,
        head_dim: indexer.width,
        chunk_tokens: options.machine.chunk_tokens,
    };
    config
        .cached_layers()
        .map(of_layer)
        .chain(indexers.map(of_indexer))
        .collect()
}

/// Bytes of a session besides weights and pages.
fn scratch_bytes(config: &ModelConfig, options: &EngineOptions, context: usize) -> u64 {
    let batch = options.machine.batch_tokens.min(context);
    // Two-phase policies hold the sums of a complete batch.
    let chunk = if options.sequence.prefill.has_two_phases() {
        batch
    } else {
        options.machine.chunk_tokens.min(batch)
    };
    let rotation = options.cache.rotation();
    let of_layer = |layer: usize| {
        let shape = config.attention_of(layer);
        let keys = shape.query_width() + shape.keys_width();
        let rotated = usize::from(rotation.keys) * keys + usize::from(rotation.values) * shape.values_width();
        chunk * (shape.attended_width() + 2 * shape.heads) + batch * rotated
    };
    let attention = (0..config.layers).map(of_layer).max().unwrap_or(0);
    let chosen = chosen_bytes(config, [batch, chunk], context);
    let floats = batch * config.hidden_size + attention + config.hidden_size;
    let shapes = policy_shapes(config, options);
    // A fork stores as much about its sequence as a session.
    let kept = (context * size_of::<u32>()) as u64
        + (config.vocab_size * size_of::<f32>()) as u64
        + index_block_bytes(config, context)
        + sign_index_bytes([&options.sequence.prefill, &options.sequence.decode], &shapes, context)
        + pair_score_bytes(config, options, context)
        + options.sequence.prefill.stored_bytes(&shapes, context)
        + options.sequence.decode.stored_bytes(&shapes, context);
    // Memory for answers that pass the layers beside a prompt.
    let answers = match options.machine.sequences {
        1 => 0,
        rows => riffle_model::scratch_bytes(config, rows) + (rows * config.hidden_size * size_of::<f32>()) as u64,
    };
    let selection = options.model.token_selection.as_ref();
    let hidden = selection.map_or(0, |_| TokenSelection::hidden_bytes(config, options, context));
    riffle_model::scratch_bytes(config, batch)
        + answers
        + hidden
        + predictor_bytes(config, options, context)
        + (floats * size_of::<f32>()) as u64
        + chosen
        + options.machine.sequences as u64 * kept
}

/// Bytes of the scores of pairs of a sequence.
fn pair_score_bytes(config: &ModelConfig, options: &EngineOptions, context: usize) -> u64 {
    let layers = config.cached_layers().map(|layer| Heads::of_layer(config, layer));
    if options.sequence.score_pairs {
        PairScorer::bytes(layers, context)
    } else {
        0
    }
}

/// Bytes of the keys of blocks that a sequence keeps for its indexers.
fn index_block_bytes(config: &ModelConfig, context: usize) -> u64 {
    let indexers = config.indexing_layers().filter_map(|layer| config.indexer_of(layer));
    indexers
        .map(|indexer| IndexBlocks::planned_bytes(&indexer, context))
        .sum()
}

/// Bytes of the indexers' selections for a chunk, or for a batch if several layers read them.
fn chosen_bytes(config: &ModelConfig, [batch, chunk]: [usize; 2], context: usize) -> u64 {
    let indexers = || config.indexers.iter().flatten();
    let most = |indexer: &IndexerShape| indexer.tokens.saturating_add(indexer.block - 1).min(context);
    let tokens = indexers().map(most).max().unwrap_or(0);
    let is_shared = config.indexing_layers().count() < indexers().count();
    let rows = if is_shared { batch + chunk } else { chunk };
    (rows * tokens * size_of::<Span>()) as u64
}

/// Bytes of drafts by the model's own predicting layer, besides its weights.
fn predictor_bytes(config: &ModelConfig, options: &EngineOptions, context: usize) -> u64 {
    if !options.model.draft_predictor || config.predictor_bytes == 0 {
        return 0;
    }
    // Prompts and answers of several sequences use separate scratch.
    let runners = options.machine.sequences.min(2) as u64;
    let rows = PredictorRoom::rows_together(options);
    runners * PredictorForward::scratch_bytes(config, rows) + PredictorRoom::planned_bytes(config, options, context)
}
