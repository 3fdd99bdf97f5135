//! Weights in two tiers: some experts of a mixture lie in memory, the others in the model's files.

use riffle_model::{ExpertClass, ModelConfig, expert_cache_bytes, expert_slots, least_expert_cache_bytes};
use serde::Serialize;

use crate::EngineOptions;

/// Contexts that weights in memory must leave room for, before experts stay in the files instead.
const SHORT_CONTEXT_TOKENS: usize = 4096;

/// The part of the memory beside resident weights and scratch that pages get at most: of a context that was asked for, and of one that
/// nobody chose. `weights_budget_bytes` says otherwise.
const PAGES_SHARE: u64 = 2;
const UNASKED_PAGES_SHARE: u64 = 8;

/// The part of resident weights that is left free for what they take beyond their bytes in files.
const PADDING_SHARE: u64 = 64;

/// The part of the same memory that scratch may take for a longer logical batch, and the longest one.
const BATCH_SHARE: u64 = 4;
const LONGEST_BATCH: usize = 32_768;

/// The memory that a mixture of experts takes when its experts stay in the model's files, and the bytes that a run reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ExpertPlan {
    /// Bytes of the weights that lie in memory in any case.
    pub resident_bytes: u64,
    /// Bytes of the experts in memory, and of those on their way.
    pub cache_bytes: u64,
    /// Experts that are in memory at a time.
    pub held: usize,
    /// Experts of all layers whose experts stay in the files.
    pub experts: usize,
    /// Bytes of experts that a token of an answer computes with.
    pub token_bytes: u64,
    /// Bytes of them that are read from the files where all experts are chosen alike often. Texts choose some more often, and read less.
    pub token_read_bytes: u64,
    /// Bytes that a logical batch of a prompt reads, in which every expert has a token.
    pub batch_read_bytes: u64,
    /// Tokens of a logical batch.
    pub batch_tokens: usize,
}

/// The places of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WeightTiers {
    /// All in memory.
    Resident,
    /// Experts stay in the files, and so many bytes of weights lie in memory.
    Given(u64),
    /// Experts stay in the files. The memory that pages leave free holds the experts in use.
    Rest,
}

impl WeightTiers {
    /// The tiers that options ask for; `fits` says if a run with all weights in memory fits a context. Experts that a loaded model left in its
    /// files stay there.
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

    /// Bytes of weights in memory whatever else there is.
    pub(super) fn least_bytes(self, config: &ModelConfig) -> u64 {
        match self {
            WeightTiers::Resident => config.weight_bytes,
            WeightTiers::Given(bytes) => bytes,
            WeightTiers::Rest => resident_bytes(config),
        }
    }

    /// Bytes for experts in memory beside `pages`, where others stay in the files; `room` is what the least bytes leave.
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

/// Bytes that experts take when all of them lie in memory.
fn all_experts_bytes(config: &ModelConfig) -> u64 {
    config.streamable.iter().map(ExpertClass::bytes).sum()
}

/// Bytes of the weights that lie in memory in any case.
fn resident_bytes(config: &ModelConfig) -> u64 {
    // Both are bytes of files or both of memory, up to the padding of rows.
    let in_files = config.streamable.iter().map(ExpertClass::all_file_bytes);
    config.weight_bytes.saturating_sub(in_files.sum())
}

/// Bytes that pages may take of `room`, where experts take the rest.
pub(super) fn pages_room(options: &EngineOptions, room: u64) -> u64 {
    match options.model.context_tokens {
        Some(_) => room / PAGES_SHARE,
        None => room / UNASKED_PAGES_SHARE,
    }
}

/// Bytes that the experts in memory may take: `room` without `pages`, of which a share counts at most, and without padding.
fn rest_bytes(config: &ModelConfig, options: &EngineOptions, room: u64, pages: u64) -> u64 {
    // Norms that are stored in 16 bits and rows that are padded take a little more in memory than in files.
    let padding = resident_bytes(config) / PADDING_SHARE;
    let rest = room.saturating_sub(pages.min(pages_room(options, room)) + padding);
    rest.max(least_expert_cache_bytes(&config.streamable))
}

/// Longer logical batches than `batch_tokens`, the longest first: a context in one batch, in two, in four and so on.
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
    /// A plan with `budget_bytes` for experts, and less where they take less.
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

    /// Tokens a second of answers and of prompts at most, from a disk that gives so many bytes a second; `None` where nothing is read.
    pub fn rates(&self, bytes_per_s: f64) -> [Option<f64>; 2] {
        let rate = |tokens: usize, bytes: u64| (bytes > 0).then(|| tokens as f64 * bytes_per_s / bytes as f64);
        [
            rate(1, self.token_read_bytes),
            rate(self.batch_tokens, self.batch_read_bytes),
        ]
    }

    /// The least bytes of weights in memory with which a model runs.
    pub(super) fn least_weights_bytes(config: &ModelConfig) -> u64 {
        resident_bytes(config).saturating_add(least_expert_cache_bytes(&config.streamable))
    }

    /// True if every expert has a place in memory.
    pub fn holds_all(&self) -> bool {
        self.held == self.experts
    }
}

/// Bytes of experts in memory where `weights_bytes` of all weights are.
fn given_bytes(config: &ModelConfig, weights_bytes: u64) -> u64 {
    let given = weights_bytes.saturating_sub(resident_bytes(config));
    given.min(all_experts_bytes(config).saturating_add(least_expert_cache_bytes(&config.streamable)))
}
