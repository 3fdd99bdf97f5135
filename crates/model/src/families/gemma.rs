//! Gemma 2 and 3: norms before and after each block, scaled embeddings, local and global layers. Gemma 2 soft-caps
//! its logits; Gemma 3 normalises heads instead and rotates them faster in local layers.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Family, added_to_norms, gated_mlp, norm_plus};
use crate::blocks::{Activation, Attention, KeyValue, Norm, Projection, Rotary, RotarySettings};
use crate::decoder::Decoder;
use crate::fields::Fields;
use crate::layer::{Layer, Rows, Step};
use crate::weights::Checkpoint;
use crate::{ModelConfig, ModelError};

pub(super) const GEMMA2: Family = Family::new(&["Gemma2ForCausalLM"], "gemma2", configure_gemma2, build_gemma2);

pub(super) const GEMMA3: Family = Family::new(&["Gemma3ForCausalLM"], "gemma3_text", configure_gemma3, build_gemma3)
    .with_settings(&["use_bidirectional_attention"]);

const ACTIVATION: &str = "gelu_pytorch_tanh";

fn with_defaults(fields: &Fields) -> Fields {
    fields
        .with_default("head_dim", 256)
        .with_default("tie_word_embeddings", true)
        .with_default("query_pre_attn_scalar", 256)
        .with_default("sliding_window", 4096)
}

/// Gemma 2's default caps; null disables one.
fn with_caps(fields: &Fields) -> Fields {
    fields
        .with_default("attn_logit_softcapping", 50.0)
        .with_default("final_logit_softcapping", 30.0)
}

fn configure_gemma2(fields: &Fields, architecture: &str) -> Result<ModelConfig, ModelError> {
    configure_both(&with_caps(fields), architecture)
}

fn configure_both(fields: &Fields, architecture: &str) -> Result<ModelConfig, ModelError> {
    let fields = with_defaults(fields);
    let mut config = ModelConfig::from_fields(&fields, architecture)?;
    config.attention_scale = (fields.positive("query_pre_attn_scalar")? as f32).sqrt().recip();
    config.soft_cap = fields
        .optional_positive("attn_logit_softcapping")?
        .map(|cap| cap as f32);
    config.rotary_dim = RotarySettings::from_fields(&fields, config.head_dim, config.max_position)?.dim;
    config.set_windows(&fields, |layer| layer % 2 == 0)?;
    config.host_only = Activation::from_fields(&fields, "hidden_activation", ACTIVATION)?.host_only();
    Ok(config)
}

fn configure_gemma3(fields: &Fields, architecture: &str) -> Result<ModelConfig, ModelError> {
    let mut config = configure_both(fields, architecture)?;
    let period = fields.optional_size("sliding_window_pattern")?.unwrap_or(6);
    config.set_windows(&with_defaults(fields), |layer| (layer + 1) % period != 0)?;
    config.is_bidirectional = fields.flag("use_bidirectional_attention", false)?;
    if config.is_bidirectional {
        // Files state the length of the bidirectional window. As in transformers, half of it lies on either side.
        let windows = config.windows.iter_mut().flatten();
        windows.for_each(|window| *window = *window / 2 + 1);
    }
    config.rotary_tables = 2;
    let [global, local] = gemma3_rotations(fields, &config)?;
    if global.dim != config.head_dim || local.dim != config.head_dim {
        return Err(fields.error("partial_rotary_factor", "must be 1 in this architecture"));
    }
    Ok(config)
}

/// The rotations of global and of local layers.
fn gemma3_rotations(fields: &Fields, config: &ModelConfig) -> Result<[RotarySettings; 2], ModelError> {
    let parameters = fields.object("rope_parameters")?;
    let of_kind = |kind: &str| parameters.as_ref().and_then(|parameters| parameters.get(kind));
    if let Some(parameters) = &parameters
        && of_kind("full_attention").or(of_kind("sliding_attention")).is_none()
        && let Some((name, _)) = parameters.values().iter().find(|(_, value)| !value.is_null())
    {
        let problem =
            format!("holds {name} for all layers, which this architecture does not read; write it for full_attention");
        return Err(fields.error("rope_parameters", problem));
    }
    let rotation = |kind: &str, older: Option<&Value>, theta: f64| -> Result<RotarySettings, ModelError> {
        let own = of_kind(kind).or(older).cloned().unwrap_or_default();
        let fields = Fields::new(fields.path(), json!({"rope_parameters": own, "rope_theta": theta}))?;
        RotarySettings::from_fields(&fields, config.head_dim, config.max_position)
    };
    let theta = fields.optional_positive("rope_theta")?.unwrap_or(1_000_000.0);
    let local_theta = fields.optional_positive("rope_local_base_freq")?.unwrap_or(10_000.0);
    Ok([
        rotation("full_attention", fields.get("rope_scaling"), theta)?,
        rotation("sliding_attention", None, local_theta)?,
    ])
}

fn build_gemma2(fields: &Fields, config: &ModelConfig, weights: &mut Checkpoint) -> Result<Decoder, ModelError> {
    let rotary = RotarySettings::from_fields(fields, config.head_dim, config.max_position)?;
    let rotary = Arc::new(Rotary::new(&rotary));
    let mut decoder = build(fields, config, weights, false, |_| (0, Arc::clone(&rotary)))?;
    decoder.logit_cap = with_caps(fields)
        .optional_positive("final_logit_softcapping")?
        .map(|cap| cap as f32);
    Ok(decoder)
}

fn build_gemma3(fields: &Fields, config: &ModelConfig, weights: &mut Checkpoint) -> Result<Decoder, ModelError> {
    let rotations = gemma3_rotations(fields, config)?.map(|settings| Arc::new(Rotary::new(&settings)));
    let mut decoder = build(fields, config, weights, true, |layer| {
        let table = usize::from(config.windows[layer].is_some());
        (table, Arc::clone(&rotations[table]))
    })?;
    decoder.logit_cap = fields
        .optional_positive("final_logit_softcapping")?
        .map(|cap| cap as f32);
    Ok(decoder)
}

fn build(
    fields: &Fields,
    config: &ModelConfig,
    weights: &mut Checkpoint,
    head_norms: bool,
    rotary: impl Fn(usize) -> (usize, Arc<Rotary>),
) -> Result<Decoder, ModelError> {
    let activation = Activation::from_fields(fields, "hidden_activation", ACTIVATION)?;
    let biased = fields.flag("attention_bias", false)?;
    let (hidden, queries, kv) = (config.hidden_size, config.query_width(), config.kv_width());
    let added = added_to_norms(fields)?;
    let norm = |weights: &mut Checkpoint, name: &str, width| norm_plus(added, config, weights, name, width);
    let final_norm = norm(weights, "model.norm", hidden)?;
    let mut decoder = Decoder::new(config, weights, final_norm)?;
    for layer in 0..config.layers {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let mut head_norm = |part: &str| {
            if head_norms {
                norm(weights, &name(part), config.head_dim).map(Some)
            } else {
                Ok(None)
            }
        };
        let (query_norm, key_norm) = (head_norm("self_attn.q_norm")?, head_norm("self_attn.k_norm")?);
        let mut wide_norm = |part: &str| norm(weights, &name(part), hidden).map(Arc::new);
        let before_attention = wide_norm("input_layernorm")?;
        let after_attention = wide_norm("post_attention_layernorm")?;
        let before_mlp = wide_norm("pre_feedforward_layernorm")?;
        let after_mlp = wide_norm("post_feedforward_layernorm")?;
        let mut load = |part: &str, outputs, inputs| Projection::load(weights, &name(part), outputs, inputs, biased);
        let (rotary_table, rotary) = rotary(layer);
        let attention = Attention {
            norm: before_attention,
            shape: config.attention_of(layer),
            query: load("self_attn.q_proj", queries, hidden)?,
            latent_query: None,
            indexer: None,
            query_norm,
            key_value: Some(KeyValue {
                key: load("self_attn.k_proj", kv, hidden)?,
                value: Some(load("self_attn.v_proj", kv, hidden)?),
                value_norm: None,
                key_norm,
            }),
            sinks: None,
            rotary,
            rotary_table,
        };
        let output = load("self_attn.o_proj", hidden, queries)?;
        let mlp = gated_mlp(config, weights, &name("mlp"), activation)?;
        decoder.layers.push(Layer {
            attention: Some(attention),
            steps: steps(output, Step::FeedForward(mlp), [after_attention, before_mlp, after_mlp]),
        });
    }
    decoder.embedding_scale = Some((hidden as f32).sqrt());
    Ok(decoder)
}

/// A layer's steps after attention, with its norms: after attention, before the feed-forward part, and after it.
pub(super) fn steps(output: Projection, feed: Step, norms: [Arc<Norm>; 3]) -> Vec<Step> {
    let [after_attention, before_mlp, after_mlp] = norms;
    let normalise = |norm, from, to| Step::Normalise { norm, from, to };
    vec![
        Step::Project {
            projection: output,
            from: Rows::Attended,
            to: Rows::Normed,
        },
        normalise(after_attention, Rows::Normed, Rows::Branch),
        Step::Add(Rows::Branch),
        normalise(before_mlp, Rows::Hidden, Rows::Normed),
        feed,
        normalise(after_mlp, Rows::Branch, Rows::Normed),
        Step::Add(Rows::Normed),
    ]
}
