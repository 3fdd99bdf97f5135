//! Phi-1, Phi-1.5 and Phi-2: parallel attention and feed-forward with one layer norm, partial rotation, biases.

use std::sync::Arc;

use super::Family;
use crate::blocks::{Activation, Attention, KeyValue, Mlp, Norm, Projection, Rotary, RotarySettings};
use crate::decoder::Decoder;
use crate::fields::Fields;
use crate::layer::{Layer, Rows, Step};
use crate::weights::Checkpoint;
use crate::{ModelConfig, ModelError};

pub(super) const FAMILY: Family = Family::new(&["PhiForCausalLM"], "phi", configure, build).with_partial_rotation();

const ACTIVATION: &str = "gelu_new";

fn with_defaults(fields: &Fields) -> Fields {
    fields.with_default("partial_rotary_factor", 0.5)
}

fn configure(fields: &Fields, architecture: &str) -> Result<ModelConfig, ModelError> {
    let fields = with_defaults(fields);
    let mut config = ModelConfig::from_fields(&fields, architecture)?;
    config.norm_epsilon = fields.optional_epsilon("layer_norm_eps")?.unwrap_or(1e-5) as f32;
    config.rotary_dim = RotarySettings::from_fields(&fields, config.head_dim, config.max_position)?.dim;
    config.host_only = Activation::from_fields(&fields, "hidden_act", ACTIVATION)?.host_only();
    Ok(config)
}

fn build(fields: &Fields, config: &ModelConfig, weights: &mut Checkpoint) -> Result<Decoder, ModelError> {
    let fields = with_defaults(fields);
    let rotary = RotarySettings::from_fields(&fields, config.head_dim, config.max_position)?;
    let rotary = Arc::new(Rotary::new(&rotary));
    let activation = Activation::from_fields(&fields, "hidden_act", ACTIVATION)?;
    let head_norms = fields.flag("qk_layernorm", false)?;
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let queries = config.query_width();
    let final_norm = norm(config, weights, "model.final_layernorm", hidden)?;
    let mut decoder = Decoder::new(config, weights, final_norm)?;
    for layer in 0..config.layers {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let mut head_norm = |part: &str| {
            let norm = head_norms.then(|| norm(config, weights, &name(part), config.head_dim));
            norm.transpose()
        };
        let (query_norm, key_norm) = (head_norm("self_attn.q_layernorm")?, head_norm("self_attn.k_layernorm")?);
        let norm = Arc::new(norm(config, weights, &name("input_layernorm"), hidden)?);
        let [query, key, value] = attention_inputs(config, weights, &name("self_attn"))?;
        let mut load = |part: &str, outputs, inputs| Projection::load(weights, &name(part), outputs, inputs, true);
        let attention = Attention {
            norm: Arc::clone(&norm),
            shape: config.attention_of(layer),
            query,
            latent_query: None,
            indexer: None,
            query_norm,
            key_value: Some(KeyValue {
                key,
                value: Some(value),
                value_norm: None,
                key_norm,
            }),
            sinks: None,
            rotary: Arc::clone(&rotary),
            rotary_table: 0,
        };
        let output = load("self_attn.dense", hidden, queries)?;
        let mlp = Mlp::Plain {
            up: load("mlp.fc1", inner, hidden)?,
            down: load("mlp.fc2", hidden, inner)?,
            activation,
        };
        // Both branches read the layer's input.
        let normalise = Step::Normalise {
            norm,
            from: Rows::Hidden,
            to: Rows::Normed,
        };
        let output = Step::Project {
            projection: output,
            from: Rows::Attended,
            to: Rows::Branch,
        };
        let add = || Step::Add(Rows::Branch);
        decoder.layers.push(Layer {
            attention: Some(attention),
            steps: vec![normalise, output, add(), Step::FeedForward(mlp), add()],
        });
    }
    decoder.head_bias = Some(weights.vector("lm_head.bias", config.vocab_size)?);
    Ok(decoder)
}

fn norm(config: &ModelConfig, weights: &mut Checkpoint, name: &str, width: usize) -> Result<Norm, ModelError> {
    Ok(Norm::Layer {
        weight: weights.vector(&format!("{name}.weight"), width)?,
        bias: weights.vector(&format!("{name}.bias"), width)?,
        epsilon: config.norm_epsilon,
    })
}

/// The projections to queries, keys and values; older GGUF files stack them.
fn attention_inputs(config: &ModelConfig, weights: &mut Checkpoint, name: &str) -> Result<[Projection; 3], ModelError> {
    let (hidden, queries, kv) = (config.hidden_size, config.query_width(), config.kv_width());
    let fused = format!("{name}.qkv_proj");
    if weights.info(&format!("{fused}.weight")).is_some() {
        return Projection::load_parts(weights, &fused, 1, [queries, kv, kv], hidden, true);
    }
    let mut load = |part: &str, outputs| Projection::load(weights, &format!("{name}.{part}"), outputs, hidden, true);
    Ok([load("q_proj", queries)?, load("k_proj", kv)?, load("v_proj", kv)?])
}
