//! Phi-3 and Phi-4: Llama with fused projections, LongRoPE, and a sliding window in some sizes.

use super::{Family, llama};
use crate::decoder::Decoder;
use crate::fields::Fields;
use crate::weights::Checkpoint;
use crate::{ModelConfig, ModelError};

pub(super) const FAMILY: Family = Family::new(&["Phi3ForCausalLM"], "phi3", configure, build);

fn with_defaults(fields: &Fields) -> Fields {
    fields
        .with_default("rms_norm_eps", 1e-5)
        .with_default("original_max_position_embeddings", 4096)
}

fn configure(fields: &Fields, architecture: &str) -> Result<ModelConfig, ModelError> {
    let fields = with_defaults(fields);
    let mut config = llama::configure(&fields, architecture)?;
    if fields.get("sliding_window").is_some() {
        config.set_windows(&fields, |_| true)?;
    }
    Ok(config)
}

fn build(fields: &Fields, config: &ModelConfig, weights: &mut Checkpoint) -> Result<Decoder, ModelError> {
    let style = llama::Style {
        fused: true,
        ..llama::Style::default()
    };
    llama::build_with(style, &with_defaults(fields), config, weights)
}
