//! Phi-3 and Phi-4: Llama with fused projections, LongRoPE, and a sliding window in some sizes.

use super::{Family, llama};
use crate::decoder::Decoder;
use crate::fields::Fields;
use crate::weights::Checkpoint;
use crate::{ModelConfig, ModelError};

pub(super) const FAMILY: Family = Family::new(&["Phi3ForCausalLM"], "phi3", configure, build).with_partial_rotation();

fn with_defaults(fields: &Fields) -> Fields {
    fields
        .with_default("rms_norm_eps", 1e-5)
        .with_default("original_max_position_embeddings", 4096)
}

/// In this class the original length is beside the rotation, 4096 by default, and takes precedence over one inside.
pub(super) fn settle_original_length(fields: Fields) -> Result<Fields, ModelError> {
    const LENGTH: &str = "original_max_position_embeddings";
    let mut fields = fields.with_default(LENGTH, 4096);
    let Some(length) = fields.get(LENGTH).cloned() else {
        return Ok(fields);
    };
    for name in ["rope_parameters", "rope_scaling"] {
        if let Some(inner) = fields.object(name)?
            && inner.get(LENGTH).is_some()
        {
            let mut rotation = inner.values();
            rotation.insert(LENGTH.to_owned(), length.clone());
            fields = fields.with(name, rotation);
        }
    }
    Ok(fields)
}

fn configure(fields: &Fields, architecture: &str) -> Result<ModelConfig, ModelError> {
    let fields = with_defaults(fields);
    let mut config = llama::configure(&fields, architecture)?;
    config.set_window(&fields)?;
    Ok(config)
}

fn build(fields: &Fields, config: &ModelConfig, weights: &mut Checkpoint) -> Result<Decoder, ModelError> {
    let style = llama::Style {
        fused: true,
        ..llama::Style::default()
    };
    llama::build_with(style, &with_defaults(fields), config, weights)
}
