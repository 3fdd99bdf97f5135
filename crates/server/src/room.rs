//! Room for many requests: how many tokens all of them may hold together.

use std::path::Path;

use riffle_engine::{EngineError, EngineOptions, MemoryPlan, plan};
use riffle_model::ModelInfo;
use serde::Serialize;

use crate::tokenising::TOKENISED_AT_ONCE;

/// Bytes that requests take at most beside what the plan of their engine has: `bodies_bytes` of bodies, and texts of a whole context that
/// are tokenised beside the one that the plan counts.
pub fn requests_bytes(plan: &MemoryPlan, bodies_bytes: u64) -> RequestsBytes {
    let others = TOKENISED_AT_ONCE as u64 - 1;
    RequestsBytes {
        bodies_bytes,
        tokenising_bytes: plan.process.prompt_bytes.saturating_mul(others),
    }
}

/// Memory that requests take at most beside the engine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RequestsBytes {
    /// Bytes of all request bodies.
    pub bodies_bytes: u64,
    /// Bytes of the texts that are tokenised beside the one that the engine's plan counts, while they are.
    pub tokenising_bytes: u64,
}

impl RequestsBytes {
    /// Sum of the parts.
    pub fn total_bytes(&self) -> u64 {
        self.bodies_bytes.saturating_add(self.tokenising_bytes)
    }
}

/// The options of an engine that serves `parallel` requests at a time, whose bodies take `bodies_bytes` together.
///
/// Without [`pool_tokens`](riffle_engine::CacheOptions::pool_tokens) requests get room for as many whole contexts as memory allows, one for each at
/// most. A context that nobody chose, and room for further ones, leave memory to the requests unless there is none for a single context
/// then. Memory is taken as pages are used, not before.
///
/// # Errors
/// As [`plan`].
pub fn engine_options(
    model: &Path,
    options: EngineOptions,
    parallel: usize,
    bodies_bytes: u64,
) -> Result<EngineOptions, EngineError> {
    let info = options.model.inspect(model)?;
    let options = options
        // Running requests, and as many idle ones that later requests go on from.
        .with_sequences(parallel.saturating_mul(2))
        .with_keeps_beginnings(true);
    let alone = plan(&info, &options)?;
    let beside = requests_bytes(&alone, bodies_bytes).total_bytes();
    let smaller = options
        .clone()
        .with_memory_budget_bytes(Some(alone.available_bytes.saturating_sub(beside)));
    let (planned, context) = match plan(&info, &smaller) {
        Ok(plan) if plan.fits() => {
            let context_tokens = Some(plan.context_tokens);
            let smaller = smaller.with_context_tokens(context_tokens);
            (smaller, plan.context_tokens)
        }
        _ => (options.clone(), alone.context_tokens),
    };
    let chosen = match options.cache.pool_tokens {
        Some(_) => None,
        None => widest(&info, &planned, context, parallel),
    };
    let chosen = chosen.unwrap_or(planned);
    // Experts that stay in the file get what requests leave, too.
    let weights_budget_bytes = match plan(&info, &chosen) {
        Ok(plan) if plan.experts.is_some() => Some(plan.weights_bytes),
        _ => options.machine.weights_budget_bytes,
    };
    Ok(chosen
        .with_weights_budget_bytes(weights_budget_bytes)
        .with_memory_budget_bytes(options.machine.memory_budget_bytes))
}

/// The options with room for as many contexts as fit.
fn widest(info: &ModelInfo, options: &EngineOptions, context: usize, parallel: usize) -> Option<EngineOptions> {
    (2..=parallel).rev().find_map(|contexts| {
        let wider = options
            .clone()
            .with_context_tokens(Some(context))
            .with_pool_tokens(Some(context.saturating_mul(contexts)));
        plan(info, &wider).ok().filter(MemoryPlan::fits).map(|_| wider)
    })
}
