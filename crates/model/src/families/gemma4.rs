//! Gemma 4: layers with and without a window and with different heads; the last ones read earlier layers' keys; keys
//! may serve as values; a per-layer input by token; a factor on each layer's result.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Family, gemma};
use crate::blocks::{
    Activation, Attention, ExpertSettings, Experts, KeyValue, LayerInput, LayerInputs, Mlp, Norm, Projection, Rotary,
    RotarySettings, SharedExpert, WeightSum,
};
use crate::decoder::Decoder;
use crate::fields::Fields;
use crate::layer::{Layer, Rows, Step};
use crate::weights::Checkpoint;
use crate::{AttentionShape, ModelConfig, ModelError};

pub(super) const FAMILY: Family = Family::new(
    &["Gemma4ForCausalLM", "Gemma4UnifiedForCausalLM"],
    "gemma4_text",
    configure,
    build,
)
.with_settings(&["final_logit_softcapping", "use_bidirectional_attention", "num_experts"]);

const ACTIVATION: &str = "gelu_pytorch_tanh";

/// The settings that a file may list for a single layer.
const OF_A_LAYER: [&str; 2] = ["head_dim", "num_key_value_heads"];

/// Kinds of layers, indexed by rotation.
const KINDS: [&str; 2] = ["full_attention", "sliding_attention"];

fn with_defaults(fields: &Fields) -> Result<Fields, ModelError> {
    let is_unified = fields.text("model_type")? == Some("gemma4_unified_text")
        || fields
            .texts("architectures")?
            .iter()
            .any(|name| name.contains("Unified"));
    let (window, input_width) = if is_unified { (1024, 0) } else { (512, 256) };
    let rotations = json!({
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
    });
    let fields = fields
        .with_default("head_dim", 256)
        .with_default("tie_word_embeddings", true)
        .with_default("num_key_value_heads", 4)
        .with_default("sliding_window", window)
        .with_default("hidden_size_per_layer_input", input_width);
    Ok(match fields.get("rope_parameters") {
        Some(_) => fields,
        None => fields.with("rope_parameters", rotations),
    })
}

fn configure(fields: &Fields, architecture: &str) -> Result<ModelConfig, ModelError> {
    let fields = with_defaults(fields)?;
    match fields.get("use_bidirectional_attention") {
        // Only pictures are read in both directions.
        None | Some(Value::Bool(false)) => {}
        Some(Value::String(kind)) if kind == "vision" => {}
        Some(_) => {
            let problem = "must be \"vision\" or null: a text is read forwards";
            return Err(fields.error("use_bidirectional_attention", problem));
        }
    }
    let mut config = ModelConfig::from_fields(&fields, architecture)?;
    config.attention_scale = 1.0;
    fields.size("sliding_window")?;
    config.set_windows(&fields, |layer| !(layer + 1).is_multiple_of(6))?;
    config.attention = shapes(&fields, &config)?;
    config.rotary_tables = 2;
    config.rotary_dim = rotations(&fields, &config)?
        .map(|settings| settings.dim)
        .into_iter()
        .fold(0, usize::max);
    config.layer_input_width = fields.optional_count("hidden_size_per_layer_input")?.unwrap_or(0);
    if config.layer_input_width > 0 {
        let rows = fields.optional_size("vocab_size_per_layer_input")?.unwrap_or(262_144);
        if rows < config.vocab_size {
            let problem = format!("{rows} must be at least vocab_size {}", config.vocab_size);
            return Err(fields.error("vocab_size_per_layer_input", problem));
        }
        config.host_only = Some("inputs of single layers");
    }
    if is_wide(&fields)? && config.attention.iter().any(|shape| shape.shares.is_some()) {
        config.intermediate_size = config.intermediate_size.saturating_mul(2);
    }
    let activation = Activation::from_fields(&fields, "hidden_activation", ACTIVATION)?;
    config.host_only = config.host_only.or(activation.host_only());
    if let Some(experts) = expert_settings(&fields, &config)? {
        experts.configure(&fields, &mut config)?;
    }
    Ok(config)
}

/// The settings of experts, which all layers have beside the feed-forward block, or none.
fn expert_settings(fields: &Fields, config: &ModelConfig) -> Result<Option<ExpertSettings>, ModelError> {
    if !fields.flag("enable_moe_block", false)? {
        return Ok(None);
    }
    let mut experts = ExpertSettings::read(fields)?.with_sum(Some(WeightSum::PLAIN));
    experts.router_epsilon = Some(config.norm_epsilon);
    experts.activation = Activation::from_fields(fields, "hidden_activation", ACTIVATION)?;
    Ok(Some(experts))
}

/// True if the feed-forward part is twice as wide in layers that read other layers' keys.
fn is_wide(fields: &Fields) -> Result<bool, ModelError> {
    fields.flag("use_double_wide_mlp", false)
}

/// The attention of each layer.
fn shapes(fields: &Fields, config: &ModelConfig) -> Result<Vec<AttentionShape>, ModelError> {
    let shared = fields.optional_count("num_kv_shared_layers")?.unwrap_or(0);
    let Some(own) = config.layers.checked_sub(shared).filter(|own| *own > 0) else {
        let problem = format!("{shared} leaves none of {} layers with keys of its own", config.layers);
        return Err(fields.error("num_kv_shared_layers", problem));
    };
    let slides = |layer: usize| config.windows[layer].is_some();
    let mut shapes = Vec::with_capacity(config.layers);
    for layer in 0..config.layers {
        let (width, kv_heads) = heads_of(fields, config, layer)?;
        let owner = (0..own).rev().find(|owner| slides(*owner) == slides(layer));
        if layer >= own && owner.is_none() {
            let problem = format!("{shared} makes layer {layer} read keys, and no layer of its type has its own");
            return Err(fields.error("num_kv_shared_layers", problem));
        }
        shapes.push(AttentionShape {
            heads: config.heads,
            kv_heads,
            key_width: width,
            value_width: width,
            shares: owner.filter(|_| layer >= own),
            has_sinks: false,
            is_latent: false,
        });
    }
    Ok(shapes)
}

/// The width of a layer's heads and the number of its KV heads.
fn heads_of(fields: &Fields, config: &ModelConfig, layer: usize) -> Result<(usize, usize), ModelError> {
    let (mut width, mut kv_heads) = (config.head_dim, config.kv_heads);
    if let Some(listed) = fields.object("per_layer_config")? {
        if let Some(own) = listed.object(&layer.to_string())? {
            if let Some(name) = own.values().keys().find(|name| !OF_A_LAYER.contains(&name.as_str())) {
                return Err(own.error(name, "is not supported for a layer alone"));
            }
            width = own.optional_size("head_dim")?.unwrap_or(width);
            kv_heads = own.optional_size("num_key_value_heads")?.unwrap_or(kv_heads);
        }
    } else if config.windows[layer].is_none() {
        width = fields.optional_size("global_head_dim")?.unwrap_or(512);
        if takes_keys_for_values(fields)? {
            kv_heads = fields.optional_size("num_global_key_value_heads")?.unwrap_or(kv_heads);
        }
    }
    if !width.is_multiple_of(2) || width > crate::config::LARGEST_COUNT {
        let problem = format!("{width} of layer {layer} must be an even number of plausible size");
        return Err(fields.error("global_head_dim", problem));
    }
    Ok((width, kv_heads))
}

/// True if layers without a window use projected keys as values.
fn takes_keys_for_values(fields: &Fields) -> Result<bool, ModelError> {
    fields.flag("attention_k_eq_v", false)
}

/// The rotations of layers without and with a window.
fn rotations(fields: &Fields, config: &ModelConfig) -> Result<[RotarySettings; 2], ModelError> {
    let parameters = fields.object("rope_parameters")?;
    let rotation = |kind: usize| -> Result<RotarySettings, ModelError> {
        let of_kind = |layer: &usize| usize::from(config.windows[*layer].is_some()) == kind;
        let mut widths = (0..config.layers)
            .filter(of_kind)
            .map(|layer| config.attention[layer].key_width);
        let width = widths.next().unwrap_or(config.head_dim);
        if widths.any(|other| other != width) {
            let problem = format!("must give all layers of {} heads of one width", KINDS[kind]);
            return Err(fields.error("per_layer_config", problem));
        }
        let own = parameters.as_ref().and_then(|parameters| parameters.get(KINDS[kind]));
        let Some(own) = own else {
            let problem = format!("holds no parameters of {}", KINDS[kind]);
            return Err(fields.error("rope_parameters", problem));
        };
        let own = Fields::new(fields.path(), json!({"rope_parameters": own}))?;
        RotarySettings::from_fields(&own, width, config.max_position)
    };
    Ok([rotation(0)?, rotation(1)?])
}

fn build(fields: &Fields, config: &ModelConfig, weights: &mut Checkpoint) -> Result<Decoder, ModelError> {
    let fields = with_defaults(fields)?;
    let parts = Parts {
        rotations: rotations(&fields, config)?.map(|settings| Arc::new(Rotary::new(&settings))),
        activation: Activation::from_fields(&fields, "hidden_activation", ACTIVATION)?,
        is_biased: fields.flag("attention_bias", false)?,
        takes_keys_for_values: takes_keys_for_values(&fields)?,
        is_wide: is_wide(&fields)?,
        experts: expert_settings(&fields, config)?,
    };
    forget_keys_of_shared_layers(config, weights);
    let final_norm = norm(config, weights, "model.norm", config.hidden_size)?;
    let mut decoder = Decoder::new(config, weights, final_norm)?;
    if config.layer_input_width > 0 {
        decoder.layer_inputs = Some(layer_inputs(&fields, config, weights)?);
    }
    for layer in 0..config.layers {
        let attention = parts.attention(config, weights, layer)?;
        decoder.layers.push(Layer {
            attention: Some(attention),
            steps: parts.steps(config, weights, layer)?,
        });
    }
    decoder.embedding_scale = Some((config.hidden_size as f32).sqrt());
    decoder.logit_cap = fields
        .optional_positive("final_logit_softcapping")?
        .map(|cap| cap as f32);
    Ok(decoder)
}

/// Marks keys and values of layers that read other layers' keys as unused.
pub(super) fn forget_keys_of_shared_layers(config: &ModelConfig, weights: &mut Checkpoint) {
    let shared = (0..config.layers).filter(|layer| config.attention[*layer].shares.is_some());
    let beginnings: Vec<String> = shared.map(|layer| format!("model.layers.{layer}.self_attn.")).collect();
    weights.forget(|name| {
        let part = beginnings
            .iter()
            .find_map(|beginning| name.strip_prefix(beginning.as_str()));
        part.is_some_and(|part| {
            ["k_proj.", "v_proj.", "k_norm."]
                .iter()
                .any(|key| part.starts_with(key))
        })
    });
}

fn norm(config: &ModelConfig, weights: &mut Checkpoint, name: &str, width: usize) -> Result<Norm, ModelError> {
    Ok(Norm::Rms {
        weight: weights.vector(&format!("{name}.weight"), width)?,
        epsilon: config.norm_epsilon,
    })
}

/// The inputs of all layers. The factor on the projection is applied to its norm's epsilon.
fn layer_inputs(fields: &Fields, config: &ModelConfig, weights: &mut Checkpoint) -> Result<LayerInputs, ModelError> {
    let (hidden, width) = (config.hidden_size, config.layer_input_width);
    let rows = fields.optional_size("vocab_size_per_layer_input")?.unwrap_or(262_144);
    let all = width * config.layers;
    Ok(LayerInputs {
        table: weights.matrix("model.embed_tokens_per_layer.weight", rows, all)?,
        table_scale: (width as f32).sqrt(),
        projection: Projection::load(weights, "model.per_layer_model_projection", all, hidden, false)?,
        norm: Norm::Rms {
            weight: weights.vector("model.per_layer_projection_norm.weight", width)?,
            epsilon: config.norm_epsilon * hidden as f32,
        },
        scale: std::f32::consts::FRAC_1_SQRT_2,
    })
}

/// Settings that all layers share.
struct Parts {
    /// Rotations of layers without and with a window.
    rotations: [Arc<Rotary>; 2],
    activation: Activation,
    is_biased: bool,
    takes_keys_for_values: bool,
    is_wide: bool,
    experts: Option<ExpertSettings>,
}

impl Parts {
    fn attention(&self, config: &ModelConfig, weights: &mut Checkpoint, layer: usize) -> Result<Attention, ModelError> {
        let (shape, hidden) = (config.attention_of(layer), config.hidden_size);
        let name = |part: &str| format!("model.layers.{layer}.self_attn.{part}");
        let before = norm(
            config,
            weights,
            &format!("model.layers.{layer}.input_layernorm"),
            hidden,
        )?;
        let slides = config.windows[layer].is_some();
        let query = Projection::load(weights, &name("q_proj"), shape.query_width(), hidden, self.is_biased)?;
        let query_norm = Some(norm(config, weights, &name("q_norm"), shape.key_width)?);
        let key_value = match shape.shares {
            Some(_) => None,
            None => {
                let mut load = |part, outputs| Projection::load(weights, &name(part), outputs, hidden, self.is_biased);
                let key = load("k_proj", shape.keys_width())?;
                let value = if self.takes_keys_for_values && !slides {
                    None
                } else {
                    Some(load("v_proj", shape.values_width())?)
                };
                Some(KeyValue {
                    key,
                    value,
                    value_norm: Some(Norm::Rms {
                        weight: vec![1.0; shape.value_width],
                        epsilon: config.norm_epsilon,
                    }),
                    key_norm: Some(norm(config, weights, &name("k_norm"), shape.key_width)?),
                })
            }
        };
        let rotary_table = usize::from(slides);
        Ok(Attention {
            norm: Arc::new(before),
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
    fn steps(&self, config: &ModelConfig, weights: &mut Checkpoint, layer: usize) -> Result<Vec<Step>, ModelError> {
        let (shape, hidden) = (config.attention_of(layer), config.hidden_size);
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let mut wide_norm = |part: &str| norm(config, weights, &name(part), hidden).map(Arc::new);
        let after_attention = wide_norm("post_attention_layernorm")?;
        let before_feed = match &self.experts {
            // The block beside experts has a separate norm.
            Some(_) => "pre_feedforward_layernorm_2",
            None => "pre_feedforward_layernorm",
        };
        let before_feed = wide_norm(before_feed)?;
        let after_mlp = wide_norm("post_feedforward_layernorm")?;
        let attended = shape.attended_width();
        let output = Projection::load(weights, &name("self_attn.o_proj"), hidden, attended, self.is_biased)?;
        let mlp = self.mlp(config, weights, layer)?;
        let feed = match &self.experts {
            None => Step::FeedForward(mlp),
            Some(settings) => {
                let mut own_norm = |part: &str| norm(config, weights, &name(part), hidden);
                let before_block = own_norm("pre_feedforward_layernorm")?;
                let after_block = own_norm("post_feedforward_layernorm_1")?;
                let after_experts = own_norm("post_feedforward_layernorm_2")?;
                let prefix = format!("model.layers.{layer}");
                let mut experts = Experts::load(weights, &prefix, hidden, settings)?;
                experts.after = Some(after_experts);
                experts.shared = Some(SharedExpert {
                    before: Some(before_block),
                    mlp,
                    gate: None,
                    after: Some(after_block),
                });
                Step::Experts(Box::new(experts))
            }
        };
        let mut steps = gemma::steps(output, feed, [after_attention, before_feed, after_mlp]);
        if config.layer_input_width > 0 {
            let width = config.layer_input_width;
            let mut load = |part, outputs, inputs| Projection::load(weights, &name(part), outputs, inputs, false);
            steps.push(Step::LayerInput(LayerInput {
                layer,
                gate: load("per_layer_input_gate", width, hidden)?,
                activation: self.activation,
                projection: load("per_layer_projection", hidden, width)?,
            }));
            let after = norm(config, weights, &name("post_per_layer_input_norm"), hidden)?;
            steps.extend([
                Step::Normalise {
                    norm: Arc::new(after),
                    from: Rows::Branch,
                    to: Rows::Normed,
                },
                Step::Add(Rows::Normed),
            ]);
        }
        // GGUF files name the factor like a weight. Without it the factor is 1.
        let stored = ["layer_scalar", "layer_scalar.weight"].map(name);
        if let Some(stored) = stored.iter().find(|stored| weights.info(stored).is_some()) {
            steps.push(Step::Scale(weights.vector(stored, 1)?[0]));
        }
        Ok(steps)
    }

    fn mlp(&self, config: &ModelConfig, weights: &mut Checkpoint, layer: usize) -> Result<Mlp, ModelError> {
        let shares = |layer: usize| config.attention_of(layer).shares.is_some();
        // The configured width is the widest layer's.
        let has_wide = self.is_wide && (0..config.layers).any(shares);
        let inner = if has_wide && !shares(layer) {
            config.intermediate_size / 2
        } else {
            config.intermediate_size
        };
        let hidden = config.hidden_size;
        let mut load = |part: &str, outputs, inputs| {
            Projection::load(
                weights,
                &format!("model.layers.{layer}.mlp.{part}"),
                outputs,
                inputs,
                false,
            )
        };
        Ok(Mlp::Gated {
            gate: load("gate_proj", inner, hidden)?,
            up: load("up_proj", inner, hidden)?,
            down: load("down_proj", hidden, inner)?,
            activation: self.activation,
        })
    }
}
