//! What a fleet is made of, and what is asked of it.

use serde::Serialize;

/// What one worker does in a second, and what it holds: measured, then put in.
#[derive(Debug, Clone, Serialize)]
pub struct FleetRates {
    /// Tokens of prompts that a worker reads a second.
    pub prompt_tokens_per_s: f64,
    /// Tokens of answers that a worker writes a second, over all answers under way.
    pub answer_tokens_per_s: f64,
    /// Bytes of the KV cache for a token.
    pub bytes_per_token: f64,
    /// Tokens that a worker holds in memory.
    pub worker_tokens: usize,
    /// Bytes a second between a worker and the store.
    pub link_bytes_per_s: f64,
    /// Bytes a second of the store for all workers together.
    pub store_bytes_per_s: f64,
    /// Price of a worker for an hour.
    pub worker_hour: f64,
}

impl Default for FleetRates {
    /// Qwen2.5-Coder-1.5B Q4_K_M on two cores under AVX2, behind 2,048 tokens (docs/results/models.md), with an f16 cache; 1 Gbit/s to a
    /// store with 10 Gbit/s, and the price of two cloud cores.
    fn default() -> Self {
        Self {
            prompt_tokens_per_s: 105.0,
            answer_tokens_per_s: 26.5,
            bytes_per_token: 28_672.0,
            worker_tokens: 262_144,
            link_bytes_per_s: 125e6,
            store_bytes_per_s: 1250e6,
            worker_hour: 0.08,
        }
    }
}

/// Requests about documents that are asked for by Zipf's law.
#[derive(Debug, Clone, Serialize)]
pub struct FleetOptions {
    /// Sizes of fleets.
    pub workers: Vec<usize>,
    /// Documents.
    pub documents: usize,
    /// Document number n is asked for in proportion to n to the power of minus this.
    pub zipf: f64,
    /// Tokens of a document.
    pub document_tokens: usize,
    /// Tokens of a question.
    pub question_tokens: usize,
    /// Tokens of an answer.
    pub answer_tokens: usize,
    /// Requests for each worker of a fleet.
    pub requests_per_worker: usize,
    /// Requests that arrive in an hour for each worker of a fleet.
    pub arrivals_per_hour: f64,
    /// What a worker does.
    pub rates: FleetRates,
    /// Seed of arrivals and choices.
    pub seed: u64,
}

impl Default for FleetOptions {
    fn default() -> Self {
        Self {
            workers: vec![1, 10, 100, 1000],
            documents: 2000,
            zipf: 1.0,
            document_tokens: 16_384,
            question_tokens: 64,
            answer_tokens: 128,
            requests_per_worker: 400,
            arrivals_per_hour: 20.0,
            rates: FleetRates::default(),
            seed: 1,
        }
    }
}

/// Who decides which worker answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RouterPolicy {
    /// One worker after the other.
    RoundRobin,
    /// The worker with the least work ahead.
    LeastLoaded,
    /// The worker that the document's hash names, whatever it has to do.
    PrefixHash,
    /// The worker that would have read the prompt first, given what it holds and what is ahead of it.
    PrefixAware,
}

impl RouterPolicy {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::RoundRobin, Self::LeastLoaded, Self::PrefixHash, Self::PrefixAware];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round-robin",
            Self::LeastLoaded => "least-loaded",
            Self::PrefixHash => "prefix-hash",
            Self::PrefixAware => "prefix-aware",
        }
    }
}
