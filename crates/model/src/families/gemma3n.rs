//! The text model of Gemma 3n. It has several residual streams, an augmented residual, and sparse gates in some layers.
//! Each layer has an input by token, and some layers read earlier layers' keys.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Family, gemma, gemma4};
use crate::blocks::{
    Activation, AltUp, Attention, KeyValue, Laurel, LayerInput, LayerInputs, Mlp, Norm, Projection, Rotary,
    RotarySettings, StreamStep, Streams,
};
use crate::config::LARGEST_COUNT;
use crate::decoder::Decoder;
use crate::fields::Fields;
use crate::layer::{Layer, Rows, Step};
use crate::weights::Checkpoint;
use crate::{AttentionShape, ModelConfig, ModelError};

pub(super) const FAMILY: Family =
    Family::new(&["Gemma3nForCausalLM"], "gemma3n_text", configure, build).with_settings(&["final_logit_softcapping"]);

const ACTIVATION: &str = "gelu_pytorch_tanh";
const TABLE_ROWS: usize = 262_144;
/// Number of sparse layers if the settings list none, in models with more layers.
const SPARSE_LAYERS: usize = 10;
const SPARSITY: f64 = 0.95;
/// The deviations themselves, which GGUF files hold in place of shares.
const DEVIATIONS: &str = "activation_sparsity_deviations";

fn with_defaults(fields: &Fields) -> Result<Fields, ModelError> {
    let fields = fields
        .with_default("head_dim", 256)
        .with_default("tie_word_embeddings", true)
        .with_default("num_key_value_heads", 2)
        .with_default("sliding_window", 512)
        .with_default("num_kv_shared_layers", 15)
        .with_default("hidden_size_per_layer_input", 256)
        .with_default("vocab_size_per_layer_input", TABLE_ROWS)
        .with_default("altup_num_inputs", 4)
        .with_default("altup_active_idx", 0)
        .with_default("altup_correct_scale", true)
        .with_default("laurel_rank", 64)
        .with_default("final_logit_softcapping", 30.0)
        .with_default("intermediate_size", 16_384);
    let widest = inner_widths(&fields)?.into_iter().max().unwrap_or(1);
    Ok(fields.with("intermediate_size", widest))
}

/// The inner widths of the feed-forward parts: one for all, or one per layer.
fn inner_widths(fields: &Fields) -> Result<Vec<usize>, ModelError> {
    const SETTING: &str = "intermediate_size";
    let Some(Value::Array(listed)) = fields.get(SETTING) else {
        return Ok(vec![fields.size(SETTING)?]);
    };
    let widths: Option<Vec<usize>> = listed
        .iter()
        .map(|width| width.as_u64().and_then(|width| usize::try_from(width).ok()))
        .map(|width| width.filter(|width| *width > 0))
        .collect();
    let layers = fields.size("num_hidden_layers")?;
    match widths {
        Some(widths) if widths.len() == layers => Ok(widths),
        _ => Err(fields.error(
            SETTING,
            format!("must be a width or list one for each of {layers} layers"),
        )),
    }
}

fn configure(original: &Fields, architecture: &str) -> Result<ModelConfig, ModelError> {
    let fields = with_defaults(original)?;
    let mut config = ModelConfig::from_fields(&fields, architecture)?;
    config.attention_scale = 1.0;
    fields.size("sliding_window")?;
    config.set_windows(&fields, |layer| !(layer + 1).is_multiple_of(5))?;
    config.attention = shapes(&fields, &config)?;
    config.rotary_tables = 2;
    config.rotary_dim = rotations(&fields, &config)?
        .map(|settings| settings.dim)
        .into_iter()
        .fold(0, usize::max);
    config.layer_input_width = fields.size("hidden_size_per_layer_input")?.min(LARGEST_COUNT);
    config.streams = fields.size("altup_num_inputs")?.min(LARGEST_COUNT);
    let active = fields.optional_count("altup_active_idx")?.unwrap_or(0);
    if active >= config.streams {
        let problem = format!("{active} is not below altup_num_inputs {}", config.streams);
        return Err(fields.error("altup_active_idx", problem));
    }
    sparsities(&fields, config.layers)?;
    config.host_only = Some("several residual streams");
    Ok(config)
}

/// The attention of each layer: the last ones read the keys of the latest layer of their kind with its own.
fn shapes(fields: &Fields, config: &ModelConfig) -> Result<Vec<AttentionShape>, ModelError> {
    let shared = fields.optional_count("num_kv_shared_layers")?.unwrap_or(0);
    let own = config.layers.checked_sub(shared).filter(|own| *own > 0);
    let slides = |layer: usize| config.windows[layer].is_some();
    let shape = |layer: usize| {
        let own = own?;
        let shares = if layer < own {
            None
        } else {
            Some((0..own).rev().find(|owner| slides(*owner) == slides(layer))?)
        };
        Some(AttentionShape {
            heads: config.heads,
            kv_heads: config.kv_heads,
            key_width: config.head_dim,
            value_width: config.head_dim,
            shares,
            has_sinks: false,
            is_latent: false,
        })
    };
    let shapes: Option<Vec<AttentionShape>> = (0..config.layers).map(shape).collect();
    shapes.ok_or_else(|| {
        let problem = format!("{shared} leaves no layer of each kind with keys of its own");
        fields.error("num_kv_shared_layers", problem)
    })
}

/// The rotations of layers without and with a window.
fn rotations(fields: &Fields, config: &ModelConfig) -> Result<[RotarySettings; 2], ModelError> {
    let parameters = fields.object("rope_parameters")?;
    let rotation = |kind: &str, older: &str, theta: f64| -> Result<RotarySettings, ModelError> {
        let own = match &parameters {
            Some(parameters) => parameters.object(kind)?.map(|own| own.values()),
            None => None,
        };
        let mut own = own.unwrap_or_default();
        let older = fields.optional_positive(older)?.unwrap_or(theta);
        own.entry("rope_theta").or_insert(json!(older));
        let own = Fields::new(fields.path(), json!({"rope_parameters": own}))?;
        RotarySettings::from_fields(&own, config.head_dim, config.max_position)
    };
    Ok([
        rotation("full_attention", "rope_theta", 1_000_000.0)?,
        rotation("sliding_attention", "rope_local_base_freq", 10_000.0)?,
    ])
}

/// For each layer, the number of standard deviations above the mean at which gates open; `None` without sparsity.
fn sparsities(fields: &Fields, layers: usize) -> Result<Vec<Option<f32>>, ModelError> {
    const SETTING: &str = "activation_sparsity_pattern";
    if let Some(Value::Array(listed)) = fields.get(DEVIATIONS) {
        if listed.len() != layers {
            let problem = format!("lists {} layers, the model has {layers}", listed.len());
            return Err(fields.error(DEVIATIONS, problem));
        }
        let deviations = |value: &Value| value.as_f64().map(|deviations| deviations as f32);
        return Ok(listed.iter().map(deviations).collect());
    }
    let shares: Vec<f64> = match fields.get(SETTING) {
        None if layers > SPARSE_LAYERS => {
            let share = |layer| if layer < SPARSE_LAYERS { SPARSITY } else { 0.0 };
            (0..layers).map(share).collect()
        }
        None => vec![0.0; layers],
        Some(listed) => {
            let shares = listed
                .as_array()
                .map(|listed| listed.iter().map(Value::as_f64).collect());
            shares.flatten().unwrap_or_default()
        }
    };
    let is_share = |share: &f64| (0.0..1.0).contains(share);
    if shares.len() != layers || !shares.iter().all(is_share) {
        let problem = format!("must list a share from 0 to below 1 for each of {layers} layers");
        return Err(fields.error(SETTING, problem));
    }
    let deviations = |share: f64| (share > 0.0).then(|| normal_quantile(share) as f32);
    Ok(shares.into_iter().map(deviations).collect())
}

/// The quantile of a standard normal distribution.
fn normal_quantile(share: f64) -> f64 {
    /// Beyond this deviation, the remaining share is below double precision.
    const FAR: f64 = 8.3;
    let below = |x: f64| {
        let (mut term, mut sum, mut odd) = (x, x, 1.0);
        while term.abs() > f64::EPSILON * sum.abs() {
            odd += 2.0;
            term *= x * x / odd;
            sum += term;
        }
        0.5 + sum * (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt()
    };
    let (mut low, mut high) = (-FAR, FAR);
    for _ in 0..64 {
        let middle = (low + high) / 2.0;
        if below(middle) < share {
            low = middle
        } else {
            high = middle
        }
    }
    (low + high) / 2.0
}

fn build(original: &Fields, config: &ModelConfig, weights: &mut Checkpoint) -> Result<Decoder, ModelError> {
    let fields = with_defaults(original)?;
    let mut widths = inner_widths(&original.with_default("intermediate_size", 16_384))?;
    widths.resize(config.layers, widths[0]);
    let parts = Parts {
        fields: &fields,
        config,
        rotations: rotations(&fields, config)?.map(|settings| Arc::new(Rotary::new(&settings))),
        activation: Activation::from_fields(&fields, "hidden_activation", ACTIVATION)?,
        is_biased: fields.flag("attention_bias", false)?,
        widths,
        sparsities: sparsities(&fields, config.layers)?,
    };
    gemma4::forget_keys_of_shared_layers(config, weights);
    let final_norm = parts.norm(weights, "model.norm", config.hidden_size)?;
    let mut decoder = Decoder::new(config, weights, final_norm)?;
    decoder.layer_inputs = Some(parts.layer_inputs(weights)?);
    let alt_ups: Vec<Arc<AltUp>> = (0..config.layers)
        .map(|layer| parts.alt_up(weights, layer).map(Arc::new))
        .collect::<Result<_, _>>()?;
    let streams = Arc::new(parts.streams(weights, Arc::clone(&alt_ups[0]))?);
    for layer in 0..config.layers {
        let behind = match alt_ups.get(layer + 1) {
            Some(next) => StreamStep::Predict(Arc::clone(next)),
            None => StreamStep::Join(Arc::clone(&streams)),
        };
        let attention = Some(parts.attention(weights, layer)?);
        let steps = parts.steps(
            weights,
            layer,
            [StreamStep::Correct(Arc::clone(&alt_ups[layer])), behind],
        )?;
        decoder.layers.push(Layer { attention, steps });
    }
    decoder.streams = vec![StreamStep::Begin(streams)];
    decoder.embedding_scale = Some((config.hidden_size as f32).sqrt());
    let cap = fields.optional_positive("final_logit_softcapping")?;
    decoder.logit_cap = cap.map(|cap| cap as f32);
    Ok(decoder)
}

/// Settings that all layers share.
struct Parts<'a> {
    fields: &'a Fields,
    config: &'a ModelConfig,
    /// Rotations of layers without and with a window.
    rotations: [Arc<Rotary>; 2],
    activation: Activation,
    is_biased: bool,
    widths: Vec<usize>,
    sparsities: Vec<Option<f32>>,
}

impl Parts<'_> {
    fn norm(&self, weights: &mut Checkpoint, name: &str, width: usize) -> Result<Norm, ModelError> {
        Ok(Norm::Rms {
            weight: weights.vector(&format!("{name}.weight"), width)?,
            epsilon: self.config.norm_epsilon,
        })
    }

    /// The inputs of all layers. The factor on the projection is applied to its norm's epsilon.
    fn layer_inputs(&self, weights: &mut Checkpoint) -> Result<LayerInputs, ModelError> {
        let (hidden, width) = (self.config.hidden_size, self.config.layer_input_width);
        let rows = self.fields.size("vocab_size_per_layer_input")?;
        let all = width * self.config.layers;
        Ok(LayerInputs {
            table: weights.matrix("model.embed_tokens_per_layer.weight", rows, all)?,
            table_scale: (width as f32).sqrt(),
            projection: Projection::load(weights, "model.per_layer_model_projection", all, hidden, false)?,
            norm: Norm::Rms {
                weight: weights.vector("model.per_layer_projection_norm.weight", width)?,
                epsilon: self.config.norm_epsilon * hidden as f32,
            },
            scale: std::f32::consts::FRAC_1_SQRT_2,
        })
    }

    fn streams(&self, weights: &mut Checkpoint, first: Arc<AltUp>) -> Result<Streams, ModelError> {
        let hidden = self.config.hidden_size;
        let mut load = |part: &str| -> Result<Vec<Projection>, ModelError> {
            let others = self.config.streams - 1;
            // GGUF files hold the matrices of all streams in one tensor.
            let all = format!("model.{part}.weight");
            if weights.info(&all).is_some() {
                let [matrices] = weights.head_matrices(&all, others, [hidden], hidden)?;
                let projections = matrices.into_iter().map(|matrix| Projection::of_parts(matrix, None));
                return Ok(projections.collect());
            }
            let numbers = 0..others;
            let names = numbers.map(|number| format!("model.{part}.{number}"));
            names
                .map(|name| Projection::load(weights, &name, hidden, hidden, false))
                .collect()
        };
        Ok(Streams {
            begin: load("altup_projections")?,
            end: load("altup_unembed_projections")?,
            first,
        })
    }

    fn alt_up(&self, weights: &mut Checkpoint, layer: usize) -> Result<AltUp, ModelError> {
        let (hidden, streams) = (self.config.hidden_size, self.config.streams);
        let name = |part: &str| format!("model.layers.{layer}.altup.{part}");
        let mut router_norm = self.norm(weights, &name("router_norm"), hidden)?;
        if let Norm::Rms { weight, .. } = &mut router_norm {
            weight.iter_mut().for_each(|weight| *weight /= hidden as f32);
        }
        let scale = weights.vector(&name("correct_output_scale"), hidden)?;
        let is_scaled = self.fields.flag("altup_correct_scale", true)?;
        Ok(AltUp {
            active: self.fields.optional_count("altup_active_idx")?.unwrap_or(0),
            router_norm,
            router: Projection::load(weights, &name("modality_router"), streams, hidden, false)?,
            prediction: weights.array(&name("prediction_coefs.weight"), &[streams * streams, streams])?,
            correction: weights.array(&name("correction_coefs.weight"), &[streams, streams])?,
            output_scale: is_scaled.then_some(scale),
        })
    }

    fn attention(&self, weights: &mut Checkpoint, layer: usize) -> Result<Attention, ModelError> {
        let (shape, hidden) = (self.config.attention_of(layer), self.config.hidden_size);
        let name = |part: &str| format!("model.layers.{layer}.self_attn.{part}");
        let norm = self.norm(weights, &format!("model.layers.{layer}.input_layernorm"), hidden)?;
        let query_norm = Some(self.norm(weights, &name("q_norm"), shape.key_width)?);
        let mut load = |part, outputs| Projection::load(weights, &name(part), outputs, hidden, self.is_biased);
        let query = load("q_proj", shape.query_width())?;
        let key_value = match shape.shares {
            Some(_) => None,
            None => Some(KeyValue {
                key: load("k_proj", shape.keys_width())?,
                value: Some(load("v_proj", shape.values_width())?),
                value_norm: Some(Norm::Rms {
                    weight: vec![1.0; shape.value_width],
                    epsilon: self.config.norm_epsilon,
                }),
                key_norm: Some(self.norm(weights, &name("k_norm"), shape.key_width)?),
            }),
        };
        let rotary_table = usize::from(self.config.windows[layer].is_some());
        Ok(Attention {
            norm: Arc::new(norm),
            shape,
            query,
            latent_query: None,
            indexer: None,
            query_norm,
            key_value,
            sinks: None,
            rotary: Arc::clone(&self.rotations[rotary_table]),
            rotary_table,
        })
    }

    /// A layer's steps after attention.
    fn steps(
        &self,
        weights: &mut Checkpoint,
        layer: usize,
        [correct, behind]: [StreamStep; 2],
    ) -> Result<Vec<Step>, ModelError> {
        let (hidden, width) = (self.config.hidden_size, self.config.layer_input_width);
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let mut norm = |part: &str| self.norm(weights, &name(part), hidden);
        let before = Arc::new(norm("input_layernorm")?);
        let around = [
            Arc::new(norm("post_attention_layernorm")?),
            Arc::new(norm("pre_feedforward_layernorm")?),
            Arc::new(norm("post_feedforward_layernorm")?),
        ];
        let laurel_norm = norm("laurel.post_laurel_norm")?;
        let after_input = Arc::new(norm("post_per_layer_input_norm")?);
        let rank = self.fields.size("laurel_rank")?;
        if rank > self.config.intermediate_size {
            return Err(self.fields.error("laurel_rank", "must be at most intermediate_size"));
        }
        let attended = self.config.attention_of(layer).attended_width();
        let output = Projection::load(weights, &name("self_attn.o_proj"), hidden, attended, self.is_biased)?;
        let feed = Step::FeedForward(self.mlp(weights, layer)?);
        let mut load = |part, outputs, inputs| Projection::load(weights, &name(part), outputs, inputs, false);
        let normalise = |norm, from, to| Step::Normalise { norm, from, to };
        let mut steps = vec![
            normalise(before, Rows::Hidden, Rows::Normed),
            Step::Laurel(Laurel {
                left: load("laurel.linear_left", rank, hidden)?,
                right: load("laurel.linear_right", hidden, rank)?,
                norm: laurel_norm,
            }),
            Step::Add(Rows::Branch),
        ];
        let mut block = gemma::steps(output, feed, around);
        let feed_forward = block.split_off(3);
        steps.extend(block);
        steps.push(Step::Scale(std::f32::consts::FRAC_1_SQRT_2));
        steps.extend(feed_forward);
        let input = LayerInput {
            layer,
            gate: load("per_layer_input_gate", width, hidden)?,
            activation: self.activation,
            projection: load("per_layer_projection", hidden, width)?,
        };
        steps.extend([
            Step::Streams(correct),
            Step::LayerInput(input),
            normalise(after_input, Rows::Branch, Rows::Normed),
            Step::Streams(StreamStep::Spread),
            Step::Streams(behind),
        ]);
        Ok(steps)
    }

    fn mlp(&self, weights: &mut Checkpoint, layer: usize) -> Result<Mlp, ModelError> {
        let (hidden, inner, activation) = (self.config.hidden_size, self.widths[layer], self.activation);
        let name = |part: &str| format!("model.layers.{layer}.mlp.{part}");
        let mut load = |part, outputs, inputs| Projection::load(weights, &name(part), outputs, inputs, false);
        let (gate, up) = (load("gate_proj", inner, hidden)?, load("up_proj", inner, hidden)?);
        let down = load("down_proj", hidden, inner)?;
        Ok(match self.sparsities[layer] {
            Some(deviations) => Mlp::Sparse {
                gate,
                up,
                down,
                activation,
                deviations,
            },
            None => Mlp::Gated {
                gate,
                up,
                down,
                activation,
            },
        })
    }
}
