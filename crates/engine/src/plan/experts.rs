//! Weights in two tiers: some experts of a mixture are in memory, the others in the model's files.

use riffle_model::{ExpertClass, ModelConfig, expert_cache_bytes, expert_slots, least_expert_cache_bytes};
use serde::Serialize;

use crate::EngineOptions;

/// Length of the contexts for which weights in memory must leave room; otherwise experts stay in the files.
const SHORT_CONTEXT_TOKENS: usize = 4096;

/// Pages get at most one in this many bytes of the memory that resident weights and scratch leave: one value for a
/// requested context, one for the default. `weights_budget_bytes` overrides both.
const PAGES_SHARE: u64 = 2;
const UNASKED_PAGES_SHARE: u64 = 8;

/// One in this many bytes of resident weights stays free for padding.
const PADDING_SHARE: u64 = 64;

/// Scratch of a longer logical batch may take one in this many bytes of the same memory.
const BATCH_SHARE: u64 = 4;
const LONGEST_BATCH: usize = 32_768;

/// Memory of a mixture whose experts stay in the model's files, and the bytes that a run reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ExpertPlan {
    /// Bytes of the weights that are always in memory.
    pub resident_bytes: u64,
    /// Bytes of the experts in memory, and of those being loaded.
    pub cache_bytes: u64,
    /// Number of experts in memory.
    pub held: usize,
    /// Number of experts of all layers whose experts stay in the files.
    pub experts: usize,
    /// Bytes of experts that one token of an answer uses.
    pub token_bytes: u64,
    /// Bytes of these that are read from the files if all experts are equally likely. Real texts prefer some experts,
    /// and read less.
    pub token_read_bytes: u64,
    /// Bytes that a logical batch of a prompt reads, if every expert has a token.
    pub batch_read_bytes: u64,
    /// Tokens of a logical batch.
    pub batch_tokens: usize,
}

/// The places of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WeightTiers {
    /// All in memory.
    Resident,
    /// Experts stay in the files, with this many bytes of weights in memory.
    Given(u64),
    /// Experts stay in the files. The experts in use get the memory that pages leave.
    Rest,
}

impl WeightTiers {
    /// The tiers for these options; `fits` tells if a run with all weights in memory leaves room for a context.
    /// Experts that a loaded model left in its files stay there.
    pub(super) fn new(
        config: &ModelConfig,
        options: &EngineOptions,
        is_loaded: bool,
        fits: impl Fn(usize) -> bool,
    ) -> WeightTiers {
        if config.streamable.is_empty() || options.machine.device.is_some() {
            return WeightTiers::Resident;
        }
        match options.machine.weights_budget_bytes {
            Some(bytes) if bytes < config.weight_bytes => return WeightTiers::Given(bytes),
            _ if is_loaded => return WeightTiers::Rest,
            Some(_) => return WeightTiers::Resident,
            None => {}
        }
        let short = SHORT_CONTEXT_TOKENS.min(config.max_position);
        if fits(options.model.context_tokens.unwrap_or(short)) {
            WeightTiers::Resident
        } else {
            WeightTiers::Rest
        }
    }

    /// Fewest bytes of weights in memory.
    pub(super) fn least_bytes(self, config: &ModelConfig) -> u64 {
        match self {
            WeightTiers::Resident => config.weight_bytes,
            WeightTiers::Given(bytes) => bytes,
            WeightTiers::Rest => resident_bytes(config),
        }
    }

    /// Bytes for experts in memory beside `pages`, if others stay in the files; `room` is the memory besides the
    /// fewest bytes.
    pub(super) fn expert_bytes(
        self,
        config: &ModelConfig,
        options: &EngineOptions,
        room: u64,
        pages: u64,
    ) -> Option<u64> {
        match self {
            WeightTiers::Resident => None,
            WeightTiers::Given(bytes) => Some(given_bytes(config, bytes)),
            WeightTiers::Rest => Some(rest_bytes(config, options, room, pages)),
        }
    }
}

/// Bytes of all experts in memory.
fn all_experts_bytes(config: &ModelConfig) -> u64 {
    config.streamable.iter().map(ExpertClass::bytes).sum()
}

/// Bytes of the weights that are always in memory.
fn resident_bytes(config: &ModelConfig) -> u64 {
    // Both are sizes in files, or both in memory, up to the padding of rows.
    let in_files = config.streamable.iter().map(ExpertClass::all_file_bytes);
    config.weight_bytes.saturating_sub(in_files.sum())
}

/// Bytes of `room` for pages; experts get the rest.
pub(super) fn pages_room(options: &EngineOptions, room: u64) -> u64 {
    match options.model.context_tokens {
        Some(_) => room / PAGES_SHARE,
        None => room / UNASKED_PAGES_SHARE,
    }
}

/// Bytes for experts in memory: `room` without `pages`, up to their largest share, and without padding.
fn rest_bytes(config: &ModelConfig, options: &EngineOptions, room: u64, pages: u64) -> u64 {
    // Norms stored in 16 bits and padded rows take slightly more in memory than in files.
    let padding = resident_bytes(config) / PADDING_SHARE;
    let rest = room.saturating_sub(pages.min(pages_room(options, room)) + padding);
    rest.max(least_expert_cache_bytes(&config.streamable))
}

/// Longer logical batches than `batch_tokens`, longest first: a context in one batch, in two, in four and so on.
pub(super) fn longer_batches(batch_tokens: usize, chunk_tokens: usize, context: usize) -> impl Iterator<Item = usize> {
    let counts = std::iter::successors(Some(1), |count: &usize| count.checked_mul(2));
    counts
        .map(move |count| context.div_ceil(count).next_multiple_of(chunk_tokens.max(1)))
        .take_while(move |batch| *batch > batch_tokens)
        .filter(|batch| *batch <= LONGEST_BATCH)
}

/// True if the scratch of a longer batch is a small part of the memory that experts and pages share.
pub(super) fn pays(further_scratch_bytes: u64, room: u64) -> bool {
    further_scratch_bytes <= room / BATCH_SHARE
}

impl ExpertPlan {
    /// A plan with `budget_bytes` for experts, or less if they need less.
    pub(super) fn new(config: &ModelConfig, budget_bytes: u64, batch_tokens: usize) -> ExpertPlan {
        let classes = &config.streamable;
        let held: usize = expert_slots(classes, budget_bytes).iter().sum();
        let experts: usize = classes.iter().map(ExpertClass::count).sum();
        let used = config.experts.map_or(0, |shape| shape.used);
        let token_bytes = classes
            .iter()
            .map(|class| (class.layers * used) as u64 * class.file_bytes);
        let all_bytes = classes.iter().map(ExpertClass::all_file_bytes);
        let (token_bytes, all_bytes): (u64, u64) = (token_bytes.sum(), all_bytes.sum());
        let missing = |bytes: u64| {
            let missing = (experts - held.min(experts)) as u128;
            (u128::from(bytes) * missing / experts.max(1) as u128) as u64
        };
        ExpertPlan {
            resident_bytes: resident_bytes(config),
            cache_bytes: expert_cache_bytes(classes, budget_bytes),
            held,
            experts,
            token_bytes,
            token_read_bytes: missing(token_bytes),
            batch_read_bytes: missing(all_bytes),
            batch_tokens,
        }
    }

    /// Upper bounds of tokens per second for answers and prompts, with a disk of `bytes_per_s`; `None` if nothing is
    /// read.
    pub fn rates(&self, bytes_per_s: f64) -> [Option<f64>; 2] {
        let rate = |tokens: usize, bytes: u64| (bytes > 0).then(|| tokens as f64 * bytes_per_s / bytes as f64);
        [
            rate(1, self.token_read_bytes),
            rate(self.batch_tokens, self.batch_read_bytes),
        ]
    }

    /// Fewest bytes of weights in memory with which a model runs.
    pub(super) fn least_weights_bytes(config: &ModelConfig) -> u64 {
        resident_bytes(config).saturating_add(least_expert_cache_bytes(&config.streamable))
    }

    /// True if all experts fit in memory.
    pub fn holds_all(&self) -> bool {
        self.held == self.experts
    }
}

/// Bytes of experts in memory if all weights get `weights_bytes`.
fn given_bytes(config: &ModelConfig, weights_bytes: u64) -> u64 {
    let given = weights_bytes.saturating_sub(resident_bytes(config));
    given.min(all_experts_bytes(config).saturating_add(least_expert_cache_bytes(&config.streamable)))
}
