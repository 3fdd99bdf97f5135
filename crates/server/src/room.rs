//! Number of tokens that all requests may hold together.

use std::path::Path;

use riffle_engine::{EngineError, EngineOptions, MemoryPlan, plan};
use riffle_model::ModelInfo;
use serde::Serialize;

use crate::tokenising::TOKENISED_AT_ONCE;

/// Maximum number of bytes of requests beyond the plan of their engine: `bodies_bytes` of bodies, and texts of a whole
/// context that are tokenised in addition to the plan's one.
pub fn requests_bytes(plan: &MemoryPlan, bodies_bytes: u64) -> RequestsBytes {
    let others = TOKENISED_AT_ONCE as u64 - 1;
    RequestsBytes {
        bodies_bytes,
        tokenising_bytes: plan.process.prompt_bytes.saturating_mul(others),
    }
}

/// Maximum memory of requests beyond the engine's plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RequestsBytes {
    /// Bytes of all request bodies.
    pub bodies_bytes: u64,
    /// Bytes of the tokenisation of texts, in addition to the text in the engine's plan.
    pub tokenising_bytes: u64,
}

impl RequestsBytes {
    /// Sum of the parts.
    pub fn total_bytes(&self) -> u64 {
        self.bodies_bytes.saturating_add(self.tokenising_bytes)
    }
}

/// The options of an engine that serves `parallel` requests at a time, with `bodies_bytes` for all their bodies.
///
/// Without [`pool_tokens`](riffle_engine::CacheOptions::pool_tokens) requests get as many whole contexts as fit in
/// memory, at most one each. The default context and further contexts leave memory for requests, unless a single
/// context then would not fit. Memory is taken as pages are used.
///
/// # Errors
/// As [`plan`].
pub fn engine_options(
    model: &Path,
    options: EngineOptions,
    parallel: usize,
    bodies_bytes: u64,
) -> Result<EngineOptions, EngineError> {
    let alone = OneContext::new(model, options, parallel, bodies_bytes)?;
    let contexts = most_contexts(&[&alone], parallel);
    Ok(alone.options(contexts))
}

/// A model with memory for the context of one request.
pub(crate) struct OneContext {
    pub(crate) info: ModelInfo,
    options: EngineOptions,
    context_tokens: usize,
    /// The given budget. [`Self::options`] has it without the memory of requests.
    memory_budget_bytes: Option<u64>,
}

impl OneContext {
    /// Plans a model that serves `parallel` requests at a time, from its headers.
    ///
    /// # Errors
    /// As [`plan`].
    pub(crate) fn new(
        model: &Path,
        options: EngineOptions,
        parallel: usize,
        bodies_bytes: u64,
    ) -> Result<Self, EngineError> {
        let info = options.model.inspect(model)?;
        let memory_budget_bytes = options.machine.memory_budget_bytes;
        let options = options
            // Running requests, and as many idle ones that later requests may continue.
            .with_sequences(parallel.saturating_mul(2))
            .with_keeps_beginnings(true);
        let alone = plan(&info, &options)?;
        let beside = requests_bytes(&alone, bodies_bytes).total_bytes();
        let smaller = options
            .clone()
            .with_memory_budget_bytes(Some(alone.available_bytes.saturating_sub(beside)));
        let (options, context_tokens) = match plan(&info, &smaller) {
            Ok(plan) if plan.fits() => {
                let context_tokens = Some(plan.context_tokens);
                let smaller = smaller.with_context_tokens(context_tokens);
                (smaller, plan.context_tokens)
            }
            _ => (options.clone(), alone.context_tokens),
        };
        Ok(Self {
            info,
            options,
            context_tokens,
            memory_budget_bytes,
        })
    }

    /// The plan for `contexts` whole contexts.
    fn plan(&self, contexts: usize) -> Result<MemoryPlan, EngineError> {
        plan(&self.info, &self.with_contexts(contexts))
    }

    fn with_contexts(&self, contexts: usize) -> EngineOptions {
        let options = self.options.clone();
        match options.cache.pool_tokens {
            None if contexts > 1 => options
                .with_context_tokens(Some(self.context_tokens))
                .with_pool_tokens(Some(self.context_tokens.saturating_mul(contexts))),
            _ => options,
        }
    }

    /// The engine's options for `contexts` whole contexts.
    pub(crate) fn options(&self, contexts: usize) -> EngineOptions {
        let options = self.with_contexts(contexts);
        // Experts in the file get the rest of the requests' memory.
        let weights_budget_bytes = match plan(&self.info, &options) {
            Ok(plan) if plan.experts.is_some() => Some(plan.weights_bytes),
            _ => options.machine.weights_budget_bytes,
        };
        options
            .with_weights_budget_bytes(weights_budget_bytes)
            .with_memory_budget_bytes(self.memory_budget_bytes)
    }
}

/// Maximum number of whole contexts, from one to `most`, that every model can have while all models are in memory.
pub(crate) fn most_contexts(models: &[&OneContext], most: usize) -> usize {
    let fit = |contexts: usize| {
        let plans = models.iter().map(|model| model.plan(contexts));
        let Ok(plans) = plans.collect::<Result<Vec<_>, _>>() else {
            return false;
        };
        let available = plans.iter().map(|plan| plan.available_bytes).min();
        let together = plans.iter().map(|plan| plan.total_bytes).fold(0, u64::saturating_add);
        plans.iter().all(MemoryPlan::fits) && available.is_none_or(|available| together <= available)
    };
    let is_chosen = |model: &&OneContext| model.options.cache.pool_tokens.is_some();
    if models.iter().any(is_chosen) {
        return 1;
    }
    (2..=most).rev().find(|contexts| fit(*contexts)).unwrap_or(1)
}
