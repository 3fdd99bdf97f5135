//! Qwen3.5: three of four layers are Gated DeltaNet, the others attention with partial rotation and a gate on the result.

use std::sync::Arc;

use super::Family;
use crate::blocks::{
    Activation, Attention, DeltaNetStorage, GatedDeltaNet, Mlp, Norm, Projection, Rotary, RotarySettings,
};
use crate::decoder::Decoder;
use crate::fields::Fields;
use crate::layer::{Layer, Rows, Step, feed_forward};
use crate::weights::Checkpoint;
use crate::{ModelConfig, ModelError, RecurrentShape};

pub(super) const FAMILY: Family = Family {
    architectures: &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
    model_type: "qwen3_5_text",
    configure,
    build,
};

/// Largest head or kernel of a recurrent layer that is taken seriously: a memory grows with the square of it.
const LARGEST_HEAD: usize = 1 << 12;

fn with_defaults(fields: &Fields) -> Fields {
    fields
        .with_default("head_dim", 256)
        .with_default("partial_rotary_factor", 0.25)
        .with_default("full_attention_interval", 4)
        .with_default("linear_conv_kernel_dim", 4)
        .with_default("linear_key_head_dim", 128)
        .with_default("linear_value_head_dim", 128)
        .with_default("linear_num_key_heads", 16)
        .with_default("linear_num_value_heads", 32)
}

fn configure(fields: &Fields, architecture: &str) -> Result<ModelConfig, ModelError> {
    let fields = with_defaults(fields);
    let mut config = ModelConfig::from_fields(&fields, architecture)?;
    config.rotary_dim = RotarySettings::from_fields(&fields, config.head_dim, config.max_position)?.dim;
    if Activation::from_fields(&fields, "hidden_act", "silu")? != Activation::Silu {
        return Err(fields.error("hidden_act", "must be silu in this architecture"));
    }
    let shape = recurrent_shape(&fields, config.layers)?;
    config.mixer_width = GatedDeltaNet::scratch_width(&shape).max(config.query_width());
    config.recurrent = shape.layers.contains(&true).then_some(shape);
    if config.attention_layers() == 0 {
        return Err(fields.error(
            "layer_types",
            "names no full_attention layer; such models are not supported",
        ));
    }
    Ok(config)
}

fn recurrent_shape(fields: &Fields, layers: usize) -> Result<RecurrentShape, ModelError> {
    let types = fields.texts("layer_types")?;
    if !types.is_empty() && types.len() != layers {
        let problem = format!("lists {} layers, the model has {layers}", types.len());
        return Err(fields.error("layer_types", problem));
    }
    let interval = fields.size("full_attention_interval")?;
    let is_recurrent = |layer: usize| match types.get(layer).map(String::as_str) {
        None => Ok(!(layer + 1).is_multiple_of(interval)),
        Some("linear_attention") => Ok(true),
        Some("full_attention") => Ok(false),
        Some(other) => {
            let problem = format!("{other:?} is not supported; supported are full_attention, linear_attention");
            Err(fields.error("layer_types", problem))
        }
    };
    let size = |name: &str| -> Result<usize, ModelError> {
        match fields.size(name)? {
            size if size <= LARGEST_HEAD => Ok(size),
            size => Err(fields.error(name, format!("{size} is not plausible, {LARGEST_HEAD} is the limit"))),
        }
    };
    let shape = RecurrentShape {
        layers: (0..layers).map(is_recurrent).collect::<Result<_, _>>()?,
        key_heads: size("linear_num_key_heads")?,
        value_heads: size("linear_num_value_heads")?,
        key_dim: size("linear_key_head_dim")?,
        value_dim: size("linear_value_head_dim")?,
        kernel: size("linear_conv_kernel_dim")?,
    };
    if !shape.value_heads.is_multiple_of(shape.key_heads) {
        let problem = format!(
            "{} value heads are not a multiple of the {} key heads",
            shape.value_heads, shape.key_heads
        );
        return Err(fields.error("linear_num_value_heads", problem));
    }
    Ok(shape)
}

fn build(fields: &Fields, config: &ModelConfig, weights: &mut Checkpoint) -> Result<Decoder, ModelError> {
    let fields = with_defaults(fields);
    let rotary = RotarySettings::from_fields(&fields, config.head_dim, config.max_position)?;
    let rotary = Arc::new(Rotary::new(&rotary));
    let biased = fields.flag("attention_bias", false)?;
    let storage = DeltaNetStorage {
        heads_tiled: fields.flag("value_heads_tiled", false)?,
        decay_rates: fields.flag("decay_rates_stored", false)?,
    };
    // Norms multiply by 1 + weight; GGUF files have the one added already.
    let one = match fields.flag("norms_include_one", false)? {
        true => 0.0,
        false => 1.0,
    };
    let norm = |weights: &mut Checkpoint, name: &str, width| -> Result<Norm, ModelError> {
        let mut weight = weights.vector(&format!("{name}.weight"), width)?;
        weight.iter_mut().for_each(|weight| *weight += one);
        Ok(Norm::Rms {
            weight,
            epsilon: config.norm_epsilon,
        })
    };
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let (queries, kv) = (config.query_width(), config.kv_width());
    let final_norm = norm(weights, "model.norm", hidden)?;
    let mut decoder = Decoder::new(config, weights, final_norm)?;
    for layer in 0..config.layers {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let mixer_norm = Arc::new(norm(weights, &name("input_layernorm"), hidden)?);
        let (attention, mut steps) = match config.recurrent.as_ref().filter(|shape| shape.is_recurrent(layer)) {
            Some(shape) => {
                let name = name("linear_attn");
                let epsilon = config.norm_epsilon;
                let mixer = GatedDeltaNet::load(weights, &name, shape, hidden, epsilon, storage)?;
                let normalise = Step::Normalise {
                    norm: mixer_norm,
                    from: Rows::Hidden,
                    to: Rows::Normed,
                };
                (None, vec![normalise, Step::Recur(Box::new(mixer))])
            }
            None => {
                let query_norm = Some(norm(weights, &name("self_attn.q_norm"), config.head_dim)?);
                let key_norm = Some(norm(weights, &name("self_attn.k_norm"), config.head_dim)?);
                // Each head's query rows are followed by its gate's.
                let head_rows = [config.head_dim; 2];
                let [query, gate] = Projection::load_parts(
                    weights,
                    &name("self_attn.q_proj"),
                    config.heads,
                    head_rows,
                    hidden,
                    biased,
                )?;
                let mut load =
                    |part: &str, outputs, inputs| Projection::load(weights, &name(part), outputs, inputs, biased);
                let attention = Attention {
                    norm: Arc::clone(&mixer_norm),
                    query,
                    key: load("self_attn.k_proj", kv, hidden)?,
                    value: load("self_attn.v_proj", kv, hidden)?,
                    query_norm,
                    key_norm,
                    rotary: Arc::clone(&rotary),
                    rotary_table: 0,
                };
                let output = Step::Project {
                    projection: load("self_attn.o_proj", hidden, queries)?,
                    from: Rows::Attended,
                    to: Rows::Branch,
                };
                let open = Step::OpenGate { norm: mixer_norm, gate };
                (Some(attention), vec![open, output])
            }
        };
        steps.push(Step::Add(Rows::Branch));
        let mlp_norm = norm(weights, &name("post_attention_layernorm"), hidden)?;
        let mut load = |part: &str, outputs, inputs| Projection::load(weights, &name(part), outputs, inputs, false);
        let mlp = Mlp::Gated {
            gate: load("mlp.gate_proj", inner, hidden)?,
            up: load("mlp.up_proj", inner, hidden)?,
            down: load("mlp.down_proj", hidden, inner)?,
            activation: Activation::Silu,
        };
        steps.extend(feed_forward(mlp_norm, mlp));
        decoder.layers.push(Layer { attention, steps });
    }
    Ok(decoder)
}
