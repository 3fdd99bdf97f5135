//! Qwen3.5 and Qwen3-Next: three of four layers are Gated DeltaNet; the others are attention with partial rotation
//! and a gate on the result. Feed-forward parts are dense or mixtures of experts.

use std::sync::Arc;

use super::{Family, added_to_norms, gated_mlp, norm_plus};
use crate::blocks::{
    Activation, Attention, DeltaNetStorage, ExpertSettings, Experts, GatedDeltaNet, KeyValue, Mixer, Norm, Projection,
    Rotary, RotarySettings, WeightSum,
};
use crate::decoder::Decoder;
use crate::fields::Fields;
use crate::layer::{Layer, Opening, Rows, Step, feed_forward};
use crate::weights::Checkpoint;
use crate::{GatedDeltaNetShape, ModelConfig, ModelError, Predictor, StateShape};

pub(super) const FAMILY: Family = Family::new(&["Qwen3_5ForCausalLM"], "qwen3_5_text", configure, build)
    .with_predictor(build_predictor)
    .with_partial_rotation();

pub(super) const MOE: Family = Family::new(&["Qwen3_5MoeForCausalLM"], "qwen3_5_moe_text", configure, build)
    .with_predictor(build_predictor)
    .with_settings(&["num_experts"])
    .with_partial_rotation();

pub(super) const NEXT: Family = Family::new(&["Qwen3NextForCausalLM"], "qwen3_next", configure, build)
    .with_predictor(build_predictor)
    .with_settings(&["num_experts"])
    .with_partial_rotation();

/// Architectures with the experts of Qwen3-Next.
const HAS_NEXT_EXPERTS: [&str; 2] = ["Qwen3NextForCausalLM", "Qwen4ExpForCausalLM"];

/// Largest plausible head or kernel of a recurrent layer: memory grows with its square.
const LARGEST_HEAD: usize = 1 << 12;

pub(super) fn with_defaults(fields: &Fields, architecture: &str) -> Fields {
    let fields = match architecture {
        "Qwen3_5ForCausalLM" => fields.clone(),
        other => {
            let is_next = HAS_NEXT_EXPERTS.contains(&other);
            let fields = fields
                .with_default("num_experts", if is_next { 512 } else { 256 })
                .with_default("num_experts_per_tok", if is_next { 10 } else { 8 })
                .with_default("moe_intermediate_size", 512)
                .with_default("shared_expert_intermediate_size", 512)
                .with_default("norm_topk_prob", true);
            let width = fields.get("moe_intermediate_size").cloned().unwrap_or_default();
            // Models without dense layers may omit the width.
            fields.with_default("intermediate_size", width)
        }
    };
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
    let fields = with_defaults(fields, architecture);
    let mut config = ModelConfig::from_fields(&fields, architecture)?;
    config.rotary_dim = RotarySettings::from_fields(&fields, config.head_dim, config.max_position)?.dim;
    if Activation::from_fields(&fields, "hidden_act", "silu")? != Activation::Silu {
        return Err(fields.error("hidden_act", "must be silu in this architecture"));
    }
    let layers = recurrent_layers(&fields, config.layers)?;
    let shape = StateShape::GatedDeltaNet(recurrent_shape(&fields)?);
    config.states = layers.into_iter().map(|recurrent| recurrent.then_some(shape)).collect();
    config.gate_width = config.query_width();
    if config.attention_layers() == 0 {
        return Err(fields.error(
            "layer_types",
            "names no full_attention layer; such models are not supported",
        ));
    }
    if let Some(experts) = experts(&fields, architecture)? {
        experts.configure(&fields, &mut config)?;
    }
    Ok(config)
}

/// The experts of a model that is not dense. Only Qwen3-Next and Qwen4-Exp have a setting for dividing weights by their
/// sum; Qwen3.5 always divides.
pub(super) fn experts(fields: &Fields, architecture: &str) -> Result<Option<ExpertSettings>, ModelError> {
    match architecture {
        "Qwen3_5ForCausalLM" => Ok(None),
        other if HAS_NEXT_EXPERTS.contains(&other) => ExpertSettings::read(fields).map(Some),
        _ => Ok(Some(ExpertSettings::read(fields)?.with_sum(Some(WeightSum::PLAIN)))),
    }
}

/// For each layer, true if it is recurrent.
fn recurrent_layers(fields: &Fields, layers: usize) -> Result<Vec<bool>, ModelError> {
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
    (0..layers).map(is_recurrent).collect()
}

pub(super) fn recurrent_shape(fields: &Fields) -> Result<GatedDeltaNetShape, ModelError> {
    let size = |name: &str| -> Result<usize, ModelError> {
        match fields.size(name)? {
            size if size <= LARGEST_HEAD => Ok(size),
            size => Err(fields.error(name, format!("{size} is not plausible, {LARGEST_HEAD} is the limit"))),
        }
    };
    let shape = GatedDeltaNetShape {
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
    let mixers = Mixers::new(fields, config)?;
    let final_norm = mixers.norm(weights, "model.norm", config.hidden_size)?;
    let mut decoder = Decoder::new(config, weights, final_norm)?;
    for layer in 0..config.layers {
        let is_sparse = mixers.experts.as_ref().is_some_and(|experts| experts.is_sparse(layer));
        let state = config.state_of(layer);
        let layer = mixers.layer(weights, &format!("model.layers.{layer}"), state, is_sparse)?;
        decoder.layers.push(layer);
    }
    Ok(decoder)
}

/// An attention layer with a part that joins its inputs, and a final norm.
fn build_predictor(fields: &Fields, config: &ModelConfig, weights: &mut Checkpoint) -> Result<Predictor, ModelError> {
    let (mixers, hidden) = (Mixers::new(fields, config)?, config.hidden_size);
    // A file may omit this norm if it equals the model's own.
    let final_norm = match weights.info("mtp.norm.weight") {
        Some(_) => "mtp.norm",
        None => "model.norm",
    };
    Ok(Predictor {
        embedding_norm: mixers.norm(weights, "mtp.pre_fc_norm_embedding", hidden)?,
        hidden_norm: mixers.norm(weights, "mtp.pre_fc_norm_hidden", hidden)?,
        join: Projection::load(weights, "mtp.fc", hidden, 2 * hidden, false)?,
        layer: mixers.layer(weights, "mtp.layers.0", None, mixers.experts.is_some())?,
        final_norm: mixers.norm(weights, final_norm, hidden)?,
    })
}

/// Loads the mixers of layers from their storage layout.
pub(super) struct Mixers<'a> {
    config: &'a ModelConfig,
    rotary: Arc<Rotary>,
    biased: bool,
    storage: DeltaNetStorage,
    added_to_norms: f32,
    experts: Option<ExpertSettings>,
}

impl<'a> Mixers<'a> {
    pub(super) fn new(fields: &Fields, config: &'a ModelConfig) -> Result<Self, ModelError> {
        let fields = with_defaults(fields, &config.architecture);
        let rotary = RotarySettings::from_fields(&fields, config.head_dim, config.max_position)?;
        Ok(Self {
            config,
            rotary: Arc::new(Rotary::new(&rotary)),
            biased: fields.flag("attention_bias", false)?,
            storage: DeltaNetStorage {
                heads_tiled: fields.flag("value_heads_tiled", false)?,
                decay_rates: fields.flag("decay_rates_stored", false)?,
                is_apart: false,
            },
            added_to_norms: added_to_norms(&fields)?,
            experts: experts(&fields, &config.architecture)?,
        })
    }

    /// The layer with the name prefix `name`, recurrent or with attention.
    fn layer(
        &self,
        weights: &mut Checkpoint,
        prefix: &str,
        state: Option<StateShape>,
        is_sparse: bool,
    ) -> Result<Layer, ModelError> {
        let (config, name) = (self.config, |part: &str| format!("{prefix}.{part}"));
        let mixer_norm = Arc::new(self.norm(weights, &name("input_layernorm"), config.hidden_size)?);
        let (attention, mut steps) = match state {
            Some(StateShape::GatedDeltaNet(shape)) => {
                (None, self.recurrent(weights, &name("linear_attn"), &shape, mixer_norm)?)
            }
            _ => {
                let (attention, steps) = self.attention(weights, &name("self_attn"), mixer_norm)?;
                (Some(attention), steps)
            }
        };
        steps.push(Step::Add(Rows::Branch));
        let mlp_norm = self.norm(weights, &name("post_attention_layernorm"), config.hidden_size)?;
        match self.experts.as_ref().filter(|_| is_sparse) {
            Some(experts) => {
                let experts = Experts::load(weights, prefix, config.hidden_size, experts)?;
                let normalise = Step::Normalise {
                    norm: Arc::new(mlp_norm),
                    from: Rows::Hidden,
                    to: Rows::Normed,
                };
                steps.extend([normalise, Step::Experts(Box::new(experts)), Step::Add(Rows::Branch)]);
            }
            None => {
                let mlp = gated_mlp(config, weights, &name("mlp"), Activation::Silu)?;
                steps.extend(feed_forward(mlp_norm, mlp));
            }
        }
        Ok(Layer { attention, steps })
    }

    pub(super) fn norm(&self, weights: &mut Checkpoint, name: &str, width: usize) -> Result<Norm, ModelError> {
        norm_plus(self.added_to_norms, self.config, weights, name, width)
    }

    pub(super) fn recurrent(
        &self,
        weights: &mut Checkpoint,
        name: &str,
        shape: &GatedDeltaNetShape,
        norm: Arc<Norm>,
    ) -> Result<Vec<Step>, ModelError> {
        let (hidden, epsilon) = (self.config.hidden_size, self.config.norm_epsilon);
        let mixer = GatedDeltaNet::load(weights, name, shape, hidden, epsilon, self.storage)?;
        let normalise = Step::Normalise {
            norm,
            from: Rows::Hidden,
            to: Rows::Normed,
        };
        Ok(vec![normalise, Step::Recur(Mixer::GatedDeltaNet(Box::new(mixer)))])
    }

    /// Attention, and the steps on its result.
    pub(super) fn attention(
        &self,
        weights: &mut Checkpoint,
        name: &str,
        norm: Arc<Norm>,
    ) -> Result<(Attention, Vec<Step>), ModelError> {
        let (config, biased) = (self.config, self.biased);
        let (hidden, queries, kv) = (config.hidden_size, config.query_width(), config.kv_width());
        let name = |part: &str| format!("{name}.{part}");
        let query_norm = Some(self.norm(weights, &name("q_norm"), config.head_dim)?);
        let key_norm = Some(self.norm(weights, &name("k_norm"), config.head_dim)?);
        // Each head's query rows are followed by its gate rows.
        let head_rows = [config.head_dim; 2];
        let [query, gate] = Projection::load_parts(weights, &name("q_proj"), config.heads, head_rows, hidden, biased)?;
        let mut load = |part: &str, outputs, inputs| Projection::load(weights, &name(part), outputs, inputs, biased);
        let attention = Attention {
            norm: Arc::clone(&norm),
            shape: config.attention_of(0),
            query,
            latent_query: None,
            indexer: None,
            query_norm,
            key_value: Some(KeyValue {
                key: load("k_proj", kv, hidden)?,
                value: Some(load("v_proj", kv, hidden)?),
                value_norm: None,
                key_norm,
            }),
            sinks: None,
            rotary: Arc::clone(&self.rotary),
            rotary_table: 0,
        };
        let output = Step::Project {
            projection: load("o_proj", hidden, queries)?,
            from: Rows::Attended,
            to: Rows::Branch,
        };
        Ok((
            attention,
            vec![
                Step::OpenGate {
                    norm,
                    gate,
                    opening: Opening::Sigmoid,
                },
                output,
            ],
        ))
    }
}
