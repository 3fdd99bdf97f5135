//! Llama: RMS norms before attention and feed-forward, rotary positions, grouped queries, SwiGLU.
//!
//! Several families differ from it only by a [`Style`] and are built here.

use std::sync::Arc;

use super::Family;
use crate::blocks::{Activation, Attention, Mlp, Norm, Projection, Rotary, RotarySettings};
use crate::decoder::{Decoder, DecoderLayer};
use crate::fields::Fields;
use crate::weights::Checkpoint;
use crate::workspace::Pass;
use crate::{ModelConfig, ModelError};

pub(super) const FAMILY: Family = Family {
    architectures: &["LlamaForCausalLM"],
    model_type: "llama",
    configure,
    build,
};

/// How a relative of Llama differs from it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Style {
    /// Queries, keys and values have biases.
    pub(super) input_bias: bool,
    /// The attention's output projection has a bias.
    pub(super) output_bias: bool,
    /// The feed-forward projections have biases.
    pub(super) mlp_bias: bool,
    /// Every query and key head is normalised.
    pub(super) head_norms: bool,
    /// Queries, keys and values are one tensor; gate and up are another.
    pub(super) fused: bool,
}

/// Reads what Llama and its relatives share.
pub(super) fn configure(fields: &Fields, architecture: &str) -> Result<ModelConfig, ModelError> {
    let mut config = ModelConfig::from_fields(fields, architecture)?;
    config.rotary_dim = RotarySettings::from_fields(fields, config.head_dim, config.max_position)?.dim;
    Activation::from_fields(fields, "hidden_act")?;
    Ok(config)
}

fn build(fields: &Fields, config: &ModelConfig, weights: &mut Checkpoint) -> Result<Decoder, ModelError> {
    let attention_bias = fields.flag("attention_bias", false)?;
    let style = Style {
        input_bias: attention_bias,
        output_bias: attention_bias,
        mlp_bias: fields.flag("mlp_bias", false)?,
        ..Style::default()
    };
    build_with(style, fields, config, weights)
}

/// Builds Llama or a relative.
pub(super) fn build_with(
    style: Style,
    fields: &Fields,
    config: &ModelConfig,
    weights: &mut Checkpoint,
) -> Result<Decoder, ModelError> {
    let rotary = RotarySettings::from_fields(fields, config.head_dim, config.max_position)?;
    let rotary = Arc::new(Rotary::new(&rotary));
    let activation = Activation::from_fields(fields, "hidden_act")?;
    let final_norm = norm(config, weights, "model.norm", config.hidden_size)?;
    let mut decoder = Decoder::new(config, weights, final_norm)?;
    for layer in 0..config.layers {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        decoder.layers.push(Box::new(Layer {
            attention_norm: norm(config, weights, &name("input_layernorm"), config.hidden_size)?,
            attention: attention(style, config, weights, &name("self_attn"))?,
            mlp_norm: norm(config, weights, &name("post_attention_layernorm"), config.hidden_size)?,
            mlp: mlp(style, config, weights, &name("mlp"), activation)?,
            rotary: Arc::clone(&rotary),
        }));
    }
    Ok(decoder)
}

fn norm(config: &ModelConfig, weights: &mut Checkpoint, name: &str, width: usize) -> Result<Norm, ModelError> {
    Ok(Norm::Rms {
        weight: weights.vector(&format!("{name}.weight"), width)?,
        epsilon: config.norm_epsilon,
    })
}

fn attention(
    style: Style,
    config: &ModelConfig,
    weights: &mut Checkpoint,
    name: &str,
) -> Result<Attention, ModelError> {
    let (hidden, queries, kv) = (config.hidden_size, config.query_width(), config.kv_width());
    let part = |part: &str| format!("{name}.{part}");
    let [query, key, value] = if style.fused {
        Projection::load_parts(
            weights,
            &part("qkv_proj"),
            1,
            [queries, kv, kv],
            hidden,
            style.input_bias,
        )?
    } else {
        let mut load = |name, outputs| Projection::load(weights, &part(name), outputs, hidden, style.input_bias);
        [load("q_proj", queries)?, load("k_proj", kv)?, load("v_proj", kv)?]
    };
    let mut head_norm = |name| match style.head_norms {
        true => norm(config, weights, &part(name), config.head_dim).map(Some),
        false => Ok(None),
    };
    Ok(Attention {
        query,
        key,
        value,
        query_norm: head_norm("q_norm")?,
        key_norm: head_norm("k_norm")?,
        output: Projection::load(weights, &part("o_proj"), hidden, queries, style.output_bias)?,
        gate: None,
    })
}

fn mlp(
    style: Style,
    config: &ModelConfig,
    weights: &mut Checkpoint,
    name: &str,
    activation: Activation,
) -> Result<Mlp, ModelError> {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let part = |part: &str| format!("{name}.{part}");
    let [gate, up] = if style.fused {
        Projection::load_parts(
            weights,
            &part("gate_up_proj"),
            1,
            [inner, inner],
            hidden,
            style.mlp_bias,
        )?
    } else {
        let mut load = |name| Projection::load(weights, &part(name), inner, hidden, style.mlp_bias);
        [load("gate_proj")?, load("up_proj")?]
    };
    Ok(Mlp::Gated {
        gate,
        up,
        down: Projection::load(weights, &part("down_proj"), hidden, inner, style.mlp_bias)?,
        activation,
    })
}

struct Layer {
    attention_norm: Norm,
    attention: Attention,
    mlp_norm: Norm,
    mlp: Mlp,
    rotary: Arc<Rotary>,
}

impl DecoderLayer for Layer {
    fn forward(&self, config: &ModelConfig, pass: &mut Pass<'_>, hidden: &mut [f32]) -> Result<(), ModelError> {
        self.attention
            .attend(pass, config, &self.attention_norm, (0, &self.rotary), hidden)?;
        pass.for_row_blocks(hidden, |rows| {
            self.attention.output.apply(rows.attended, rows.branch);
            rows.add_branch();
            self.mlp_norm.apply(rows.hidden, rows.normed);
            self.mlp.apply(rows.normed, rows.inner, rows.inner_gate, rows.branch);
            rows.add_branch();
        });
        Ok(())
    }

    fn rotary(&self) -> Option<&Rotary> {
        Some(&self.rotary)
    }

    fn bytes(&self) -> u64 {
        self.attention_norm.bytes() + self.attention.bytes() + self.mlp_norm.bytes() + self.mlp.bytes()
    }
}
