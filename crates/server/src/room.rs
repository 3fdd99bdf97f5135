//! Room for many requests: how many tokens all of them may hold together.

use std::path::Path;

use riffle_engine::{EngineError, EngineOptions, MemoryPlan, plan};
use riffle_model::{ModelInfo, inspect_with};

/// The options of an engine that serves `parallel` requests at a time.
///
/// Without [`pool_tokens`](EngineOptions::pool_tokens) requests get room for as many whole contexts as memory allows, one for each at
/// most. Memory is taken as pages are used, not before.
///
/// # Errors
/// As [`plan`].
pub fn engine_options(model: &Path, options: EngineOptions, parallel: usize) -> Result<EngineOptions, EngineError> {
    let info = inspect_with(model, &options.load_options())?;
    let options = EngineOptions {
        // Running requests, and as many idle ones that later requests go on from.
        sequences: parallel.saturating_mul(2),
        keeps_beginnings: true,
        ..options
    };
    if options.pool_tokens.is_some() {
        return Ok(options);
    }
    let context = plan(&info, &options)?.context_tokens;
    Ok(widest(&info, &options, context, parallel).unwrap_or(options))
}

/// The options with room for as many contexts as fit.
fn widest(info: &ModelInfo, options: &EngineOptions, context: usize, parallel: usize) -> Option<EngineOptions> {
    (2..=parallel).rev().find_map(|contexts| {
        let wider = EngineOptions {
            context_tokens: Some(context),
            pool_tokens: Some(context.saturating_mul(contexts)),
            ..options.clone()
        };
        plan(info, &wider).ok().filter(MemoryPlan::fits).map(|_| wider)
    })
}
