//! Qwen2 and Qwen2.5: Llama with biases on queries, keys and values, and optional sliding windows in late layers.

use super::{Family, llama};
use crate::decoder::Decoder;
use crate::fields::Fields;
use crate::weights::Checkpoint;
use crate::{ModelConfig, ModelError};

pub(super) const FAMILY: Family = Family::new(&["Qwen2ForCausalLM"], "qwen2", configure, build);

/// Reads the settings that Qwen2 and Qwen3 share.
pub(super) fn configure(fields: &Fields, architecture: &str) -> Result<ModelConfig, ModelError> {
    let mut config = llama::configure(fields, architecture)?;
    if fields.flag("use_sliding_window", false)? {
        let first = fields.optional_count("max_window_layers")?.unwrap_or(28);
        config.set_windows(&fields.with_default("sliding_window", 4096), |layer| layer >= first)?;
    }
    Ok(config)
}

fn build(fields: &Fields, config: &ModelConfig, weights: &mut Checkpoint) -> Result<Decoder, ModelError> {
    let style = llama::Style {
        input_bias: true,
        ..llama::Style::default()
    };
    llama::build_with(style, fields, config, weights)
}
