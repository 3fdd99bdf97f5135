//! Checks options against models with trained indexers.

use riffle_model::ModelConfig;

use crate::{EngineError, EngineOptions, SequenceOptions};

/// Refuses options that select or evict tokens if the model itself selects.
pub(crate) fn check_indexers(config: &ModelConfig, options: &EngineOptions) -> Result<(), EngineError> {
    if !has_indexers(config) {
        return Ok(());
    }
    if let Some(selection) = &options.model.token_selection {
        return Err(selection.refuse("the model's own indexer ranks every token in every layer"));
    }
    check_sequence(config, &options.sequence)
}

/// Checks the options of one sequence.
pub(crate) fn check_sequence(config: &ModelConfig, options: &SequenceOptions) -> Result<(), EngineError> {
    if !has_indexers(config) {
        return Ok(());
    }
    let refused = |name: &'static str, value: String, instead: &str| {
        let problem = format!("the model's own indexer chooses what its layers read: {instead}");
        Err(EngineError::option(name, value, problem))
    };
    for (name, rules) in [("prefill", &options.prefill), ("decode", &options.decode)] {
        if let Some(other) = rules.specs().find(|spec| spec.name() != "full") {
            return refused(name, other.to_string(), "use full");
        }
    }
    match (options.auto_target, options.window) {
        (Some(target), _) => refused("auto_target", target.to_string(), "leave it out"),
        (None, Some(window)) => refused("window_tokens", window.window_tokens.to_string(), "leave it out"),
        (None, None) => Ok(()),
    }
}

/// True if layers of a model read an indexer's selection.
pub(crate) fn has_indexers(config: &ModelConfig) -> bool {
    config.indexing_layers().next().is_some()
}
