//! Qwen3: Llama with a norm on every query and key head.

use super::{Family, llama, qwen2};
use crate::decoder::Decoder;
use crate::fields::Fields;
use crate::weights::Checkpoint;
use crate::{ModelConfig, ModelError};

pub(super) const FAMILY: Family = Family::new(&["Qwen3ForCausalLM"], "qwen3", configure, build);

fn configure(fields: &Fields, architecture: &str) -> Result<ModelConfig, ModelError> {
    qwen2::configure(&fields.with_default("head_dim", 128), architecture)
}

fn build(fields: &Fields, config: &ModelConfig, weights: &mut Checkpoint) -> Result<Decoder, ModelError> {
    let attention_bias = fields.flag("attention_bias", false)?;
    let style = llama::Style {
        input_bias: attention_bias,
        output_bias: attention_bias,
        head_norms: true,
        ..llama::Style::default()
    };
    llama::build_with(style, fields, config, weights)
}
