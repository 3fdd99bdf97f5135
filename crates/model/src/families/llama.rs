//! Llama: RMS norms before attention and feed-forward, rotary positions, grouped queries, SwiGLU.
//!
//! Several families differ from it only by a [`Style`] and are built here too.

use std::sync::Arc;

use super::Family;
use crate::blocks::{Activation, Attention, KeyValue, Mlp, Norm, Projection, Rotary, RotarySettings};
use crate::decoder::Decoder;
use crate::fields::Fields;
use crate::layer::{Layer, Rows, Step, feed_forward};
use crate::weights::Checkpoint;
use crate::{ModelConfig, ModelError};

pub(super) const FAMILY: Family = Family::new(&["LlamaForCausalLM"], "llama", configure, build);

/// Differences of a related family from Llama.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct Style {
    /// Queries, keys and values have biases.
    pub input_bias: bool,
    /// The attention's output projection has a bias.
    pub output_bias: bool,
    /// The feed-forward projections have biases.
    pub mlp_bias: bool,
    /// Every query and key head is normalised.
    pub head_norms: bool,
    /// True if queries, keys and values are one tensor, and gate and up another.
    pub fused: bool,
}

impl Style {
    /// Sets whether queries, keys and values have biases.
    pub fn with_input_bias(mut self, biased: bool) -> Self {
        self.input_bias = biased;
        self
    }

    /// Sets whether the attention's output projection has a bias.
    pub fn with_output_bias(mut self, biased: bool) -> Self {
        self.output_bias = biased;
        self
    }

    /// Sets whether the feed-forward projections have biases.
    pub fn with_mlp_bias(mut self, biased: bool) -> Self {
        self.mlp_bias = biased;
        self
    }

    /// Sets whether every query and key head has a norm.
    pub fn with_head_norms(mut self, normed: bool) -> Self {
        self.head_norms = normed;
        self
    }

    /// Sets whether queries, keys and values are one tensor, and gate and up another.
    pub fn with_fused(mut self, fused: bool) -> Self {
        self.fused = fused;
        self
    }
}

/// Reads the settings that Llama and related families share: sizes, rotation, activation.
///
/// # Errors
/// [`ModelError::Config`] names the missing, invalid or unsupported setting.
pub fn configure(fields: &Fields, architecture: &str) -> Result<ModelConfig, ModelError> {
    let mut config = ModelConfig::from_fields(fields, architecture)?;
    config.rotary_dim = RotarySettings::from_fields(fields, config.head_dim, config.max_position)?.dim;
    config.host_only = Activation::from_fields(fields, "hidden_act", "silu")?.host_only();
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

/// Builds Llama or a related family from tensors with Llama's names.
///
/// # Errors
/// A tensor that is missing, has another shape or an unsupported format.
pub fn build_with(
    style: Style,
    fields: &Fields,
    config: &ModelConfig,
    weights: &mut Checkpoint,
) -> Result<Decoder, ModelError> {
    let rotary = RotarySettings::from_fields(fields, config.head_dim, config.max_position)?;
    let rotary = Arc::new(Rotary::new(&rotary));
    let activation = Activation::from_fields(fields, "hidden_act", "silu")?;
    let final_norm = norm(config, weights, "model.norm", config.hidden_size)?;
    let mut decoder = Decoder::new(config, weights, final_norm)?;
    for layer in 0..config.layers {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let attention_norm = norm(config, weights, &name("input_layernorm"), config.hidden_size)?;
        let (attention, output) = attention(style, config, weights, &name("self_attn"), attention_norm, &rotary)?;
        let mlp_norm = norm(config, weights, &name("post_attention_layernorm"), config.hidden_size)?;
        let mlp = mlp(style, config, weights, &name("mlp"), activation)?;
        let mut steps = vec![
            Step::Project {
                projection: output,
                from: Rows::Attended,
                to: Rows::Branch,
            },
            Step::Add(Rows::Branch),
        ];
        steps.extend(feed_forward(mlp_norm, mlp));
        decoder.layers.push(Layer {
            attention: Some(attention),
            steps,
        });
    }
    Ok(decoder)
}

fn norm(config: &ModelConfig, weights: &mut Checkpoint, name: &str, width: usize) -> Result<Norm, ModelError> {
    Ok(Norm::Rms {
        weight: weights.vector(&format!("{name}.weight"), width)?,
        epsilon: config.norm_epsilon,
    })
}

/// The attention and the projection of its result.
fn attention(
    style: Style,
    config: &ModelConfig,
    weights: &mut Checkpoint,
    name: &str,
    before: Norm,
    rotary: &Arc<Rotary>,
) -> Result<(Attention, Projection), ModelError> {
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
    let mut head_norm = |name| {
        if style.head_norms {
            norm(config, weights, &part(name), config.head_dim).map(Some)
        } else {
            Ok(None)
        }
    };
    let attention = Attention {
        norm: Arc::new(before),
        shape: config.attention_of(0),
        query,
        latent_query: None,
        indexer: None,
        query_norm: head_norm("q_norm")?,
        key_value: Some(KeyValue {
            key,
            value: Some(value),
            value_norm: None,
            key_norm: head_norm("k_norm")?,
        }),
        sinks: None,
        rotary: Arc::clone(rotary),
        rotary_table: 0,
    };
    let output = Projection::load(weights, &part("o_proj"), hidden, queries, style.output_bias)?;
    Ok((attention, output))
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
