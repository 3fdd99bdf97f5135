//! StarCoder2: layer norms with biases, biases on all projections, a feed-forward block without a gate, a sliding
//! window.

use std::sync::Arc;

use riffle_model::family::{Checkpoint, Fields, RotarySettings, feed_forward};
use riffle_model::{
    Activation, Attention, Decoder, Family, KeyValue, Layer, Mlp, ModelConfig, ModelError, Norm, Projection, Rotary,
    Rows, Step,
};

// ANCHOR: family
/// The family for the engine's options.
pub static FAMILIES: [Family; 1] = [Family::new(&["Starcoder2ForCausalLM"], "starcoder2", configure, build)];

const ACTIVATION: &str = "gelu_pytorch_tanh";

/// The sizes.
fn configure(fields: &Fields, architecture: &str) -> Result<ModelConfig, ModelError> {
    let fields = fields.with_default("tie_word_embeddings", true);
    let mut config = ModelConfig::from_fields(&fields, architecture)?;
    config.norm_epsilon = fields.optional_positive("norm_epsilon")?.unwrap_or(1e-5) as f32;
    config.rotary_dim = RotarySettings::from_fields(&fields, config.head_dim, config.max_position)?.dim;
    config.set_windows(&fields, |_| true)?;
    Activation::from_fields(&fields, "hidden_act", ACTIVATION)?;
    Ok(config)
}
// ANCHOR_END: family

/// The weights, and what happens to a row in each layer.
fn build(fields: &Fields, config: &ModelConfig, weights: &mut Checkpoint) -> Result<Decoder, ModelError> {
    let rotary = RotarySettings::from_fields(fields, config.head_dim, config.max_position)?;
    let rotary = Arc::new(Rotary::new(&rotary));
    let activation = Activation::from_fields(fields, "hidden_act", ACTIVATION)?;
    let biased = fields.flag("use_bias", true)?;
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let (queries, kv) = (config.query_width(), config.kv_width());
    let final_norm = norm(config, weights, "model.norm")?;
    let mut decoder = Decoder::new(config, weights, final_norm)?;
    for layer in 0..config.layers {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let before_attention = Arc::new(norm(config, weights, &name("input_layernorm"))?);
        let before_mlp = norm(config, weights, &name("post_attention_layernorm"))?;
        let mut load = |part, outputs, inputs| Projection::load(weights, &name(part), outputs, inputs, biased);
        let attention = Attention {
            norm: before_attention,
            shape: config.attention_of(layer),
            query: load("self_attn.q_proj", queries, hidden)?,
            latent_query: None,
            query_norm: None,
            key_value: Some(KeyValue {
                key: load("self_attn.k_proj", kv, hidden)?,
                value: Some(load("self_attn.v_proj", kv, hidden)?),
                value_norm: None,
                key_norm: None,
            }),
            indexer: None,
            sinks: None,
            rotary: Arc::clone(&rotary),
            rotary_table: 0,
        };
        let mut steps = vec![
            Step::Project {
                projection: load("self_attn.o_proj", hidden, queries)?,
                from: Rows::Attended,
                to: Rows::Branch,
            },
            Step::Add(Rows::Branch),
        ];
        let mlp = Mlp::Plain {
            up: load("mlp.c_fc", inner, hidden)?,
            down: load("mlp.c_proj", hidden, inner)?,
            activation,
        };
        steps.extend(feed_forward(before_mlp, mlp));
        decoder.layers.push(Layer {
            attention: Some(attention),
            steps,
        });
    }
    Ok(decoder)
}

fn norm(config: &ModelConfig, weights: &mut Checkpoint, name: &str) -> Result<Norm, ModelError> {
    Ok(Norm::Layer {
        weight: weights.vector(&format!("{name}.weight"), config.hidden_size)?,
        bias: weights.vector(&format!("{name}.bias"), config.hidden_size)?,
        epsilon: config.norm_epsilon,
    })
}
