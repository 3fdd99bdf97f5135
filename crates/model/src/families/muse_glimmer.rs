//! Muse Glimmer: layers with a window and positions, and layers with neither; norms before and after each block, a
//! gate on attention's result, normalised embeddings, weightless head norms, soft-capped logits.

use std::sync::Arc;

use serde_json::Value;

use super::{Family, added_to_norms, gated_mlp, gemma};
use crate::blocks::{Activation, Attention, KeyValue, Norm, Projection, Rotary, RotarySettings};
use crate::decoder::Decoder;
use crate::fields::Fields;
use crate::layer::{Layer, Opening, Step};
use crate::weights::Checkpoint;
use crate::{ModelConfig, ModelError};

pub(super) const FAMILY: Family = Family::new(&["MuseGlimmerForCausalLM"], "muse_glimmer_text", configure, build)
    .with_settings(&["final_logit_softcapping"]);

/// Layers per group. The last of a group has neither a window nor positions; groups are counted from the last layer.
const GROUP: usize = 4;

fn with_defaults(fields: &Fields) -> Fields {
    fields
        .with_default("head_dim", 128)
        .with_default("num_key_value_heads", 2)
        .with_default("rms_norm_eps", 1e-5)
        .with_default("sliding_window", 2048)
        .with_default("final_logit_softcapping", 20.0)
        .with_default("qk_scale_factor", 3.87)
        .with_default("output_multiplier", 0.196_116_135_138_184_04)
        .with_default("post_norm_eps", 1e-8)
}

fn configure(fields: &Fields, architecture: &str) -> Result<ModelConfig, ModelError> {
    let fields = with_defaults(fields);
    let mut config = ModelConfig::from_fields(&fields, architecture)?;
    config.rotary_dim = RotarySettings::from_fields(&fields, config.head_dim, config.max_position)?.dim;
    if config.rotary_dim != config.head_dim {
        return Err(fields.error("partial_rotary_factor", "must be 1 in this architecture"));
    }
    let layers = config.layers;
    config.set_windows(&fields, |layer| !is_last_of_group(layer, layers))?;
    config.rotary_tables = 2;
    config.gate_width = config.query_width();
    config.host_only = Some("norm of embeddings");
    positions(&fields, &config)?;
    Activation::from_fields(&fields, "hidden_activation", "silu")?;
    Ok(config)
}

fn is_last_of_group(layer: usize, layers: usize) -> bool {
    (layers - 1 - layer).is_multiple_of(GROUP)
}

/// For each layer, true if its keys have positions.
fn positions(fields: &Fields, config: &ModelConfig) -> Result<Vec<bool>, ModelError> {
    match fields.get("layer_rope_theta") {
        None => Ok((0..config.layers)
            .map(|layer| !is_last_of_group(layer, config.layers))
            .collect()),
        Some(Value::Array(bases)) if bases.len() == config.layers => {
            Ok(bases.iter().map(|base| base.as_f64() != Some(0.0)).collect())
        }
        Some(_) => {
            let problem = format!("must list a number for each of {} layers", config.layers);
            Err(fields.error("layer_rope_theta", problem))
        }
    }
}

fn build(fields: &Fields, config: &ModelConfig, weights: &mut Checkpoint) -> Result<Decoder, ModelError> {
    let fields = with_defaults(fields);
    let (hidden, width) = (config.hidden_size, config.head_dim);
    let settings = RotarySettings::from_fields(&fields, width, config.max_position)?;
    let parts = Parts {
        added_to_norms: added_to_norms(&fields)?,
        rotations: [Arc::new(Rotary::new(&settings)), Arc::new(Rotary::still(width))],
        activation: Activation::from_fields(&fields, "hidden_activation", "silu")?,
        is_biased: fields.flag("attention_bias", false)?,
        query_factor: fields.positive("qk_scale_factor")? as f32,
        after_epsilon: fields.positive("post_norm_eps")? as f32,
    };
    let logit_scale = fields.positive("output_multiplier")? as f32;
    let mut weight = weights.vector("model.norm.weight", hidden)?;
    weight.iter_mut().for_each(|weight| *weight *= logit_scale);
    let mut decoder = Decoder::new(config, weights, rms(weight, config.norm_epsilon))?;
    decoder.embedding_norm = Some(rms(vec![1.0; hidden], config.norm_epsilon));
    decoder.logit_cap = fields
        .optional_positive("final_logit_softcapping")?
        .map(|cap| cap as f32);
    for (layer, has_positions) in positions(&fields, config)?.into_iter().enumerate() {
        let layer = parts.layer(config, weights, layer, has_positions)?;
        decoder.layers.push(layer);
    }
    Ok(decoder)
}

fn rms(weight: Vec<f32>, epsilon: f32) -> Norm {
    Norm::Rms { weight, epsilon }
}

/// Settings that all layers share.
struct Parts {
    /// The term added to norm weights. GGUF files include it, and store the factor on queries as a norm's weights.
    added_to_norms: f32,
    /// Rotations of layers with and without positions.
    rotations: [Arc<Rotary>; 2],
    activation: Activation,
    is_biased: bool,
    query_factor: f32,
    /// Epsilon of norms after a block.
    after_epsilon: f32,
}

impl Parts {
    fn layer(
        &self,
        config: &ModelConfig,
        weights: &mut Checkpoint,
        layer: usize,
        has_positions: bool,
    ) -> Result<Layer, ModelError> {
        let (hidden, queries) = (config.hidden_size, config.query_width());
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let mut norm = |part: &str, epsilon| -> Result<Arc<Norm>, ModelError> {
            let mut weight = weights.vector(&name(&format!("{part}.weight")), hidden)?;
            weight.iter_mut().for_each(|weight| *weight += self.added_to_norms);
            Ok(Arc::new(rms(weight, epsilon)))
        };
        let before_attention = norm("input_layernorm", config.norm_epsilon)?;
        let after_attention = norm("post_attention_layernorm", self.after_epsilon)?;
        let before_mlp = norm("pre_feedforward_layernorm", config.norm_epsilon)?;
        let after_mlp = norm("post_feedforward_layernorm", self.after_epsilon)?;
        let attention = self.attention(config, weights, layer, Arc::clone(&before_attention), has_positions)?;
        let gate = Projection::load(weights, &name("self_attn.gate_proj"), queries, hidden, false)?;
        let output = Projection::load(weights, &name("self_attn.o_proj"), hidden, queries, self.is_biased)?;
        let mlp = gated_mlp(config, weights, &name("mlp"), self.activation)?;
        let mut steps = vec![Step::OpenGate {
            norm: before_attention,
            gate,
            opening: Opening::Sigmoid,
        }];
        steps.extend(gemma::steps(
            output,
            Step::FeedForward(mlp),
            [after_attention, before_mlp, after_mlp],
        ));
        Ok(Layer {
            attention: Some(attention),
            steps,
        })
    }

    fn attention(
        &self,
        config: &ModelConfig,
        weights: &mut Checkpoint,
        layer: usize,
        norm: Arc<Norm>,
        has_positions: bool,
    ) -> Result<Attention, ModelError> {
        let (hidden, queries, kv) = (config.hidden_size, config.query_width(), config.kv_width());
        let name = |part: &str| format!("model.layers.{layer}.self_attn.{part}");
        let mut head_norm = |part: &str, factor: f32| -> Result<Norm, ModelError> {
            let weight = if self.added_to_norms == 0.0 {
                weights.vector(&name(&format!("{part}.weight")), config.head_dim)?
            } else {
                vec![factor; config.head_dim]
            };
            Ok(rms(weight, config.norm_epsilon))
        };
        let (query_norm, key_norm) = (head_norm("q_norm", self.query_factor)?, head_norm("k_norm", 1.0)?);
        let mut load = |part: &str, outputs| Projection::load(weights, &name(part), outputs, hidden, self.is_biased);
        let rotary_table = usize::from(!has_positions);
        Ok(Attention {
            norm,
            shape: config.attention_of(layer),
            query: load("q_proj", queries)?,
            latent_query: None,
            indexer: None,
            query_norm: Some(query_norm),
            key_value: Some(KeyValue {
                key: load("k_proj", kv)?,
                value: Some(load("v_proj", kv)?),
                value_norm: None,
                key_norm: Some(key_norm),
            }),
            sinks: None,
            rotary: Arc::clone(&self.rotations[rotary_table]),
            rotary_table,
        })
    }
}
