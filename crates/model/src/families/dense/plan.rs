//! The differences of a dense family from Llama.

use serde_json::Value;

use super::super::indexer::IndexerPlan;
use super::super::latent::LatentAttention;
use super::{LayerParts, MixerPlan, NormedStream};
use crate::blocks::{ExpertSettings, QueryGrowth};
use crate::fields::Fields;
use crate::layer::Opening;
use crate::{AttentionShape, ModelConfig, ModelError};

/// A plan built from settings.
pub(super) type Planned = Result<Plan, ModelError>;

/// A dense decoder as data; the default is Llama.
pub(in crate::families) struct Plan {
    /// The settings, with the family's defaults.
    pub(super) fields: Fields,
    pub(super) norm: NormKind,
    /// The setting with the norms' epsilon.
    pub(super) epsilon: &'static str,
    pub(super) block: Block,
    pub(super) final_norm: &'static str,
    pub(super) head_norms: HeadNorms,
    pub(super) inputs: Inputs,
    /// Queries, keys and values have biases.
    pub(super) input_bias: bool,
    pub(super) output: &'static str,
    pub(super) output_bias: bool,
    pub(super) mlp: MlpNames,
    pub(super) mlp_bias: bool,
    /// The setting with the activation, and the default activation.
    pub(super) activation: (&'static str, &'static str),
    /// True if the two dimensions of a rotated pair are adjacent.
    pub(super) interleaved: bool,
    pub(super) positions: Positions,
    /// The rotation settings of layers with a window, if they differ.
    pub(super) local_rotation: Option<Fields>,
    /// Decides which layers have a window if `layer_types` does not list them; `None` for families without windows.
    pub(super) slides: Option<fn(usize) -> bool>,
    pub(super) attention_scale: Option<f64>,
    pub(super) soft_cap: Option<f64>,
    pub(super) embedding_scale: f64,
    /// Factor on a layer's contributions to the residual stream.
    pub(super) residual_scale: f64,
    pub(super) logit_scale: f64,
    pub(super) logit_cap: Option<f64>,
    pub(super) head_bias: bool,
    /// The mixtures of experts in feed-forward parts.
    pub(super) experts: Option<ExpertSettings>,
    /// The norm of a mixture's result, before it is added.
    pub(super) expert_norm: Option<&'static str>,
    /// The tensor of the attention sinks, one logit per query head.
    pub(super) sinks: Option<&'static str>,
    /// Embeddings pass the norm of the family.
    pub(super) has_embedding_norm: bool,
    /// The tensor of learned positions, and the number of unused rows before the first position.
    pub(super) position_table: Option<(&'static str, usize)>,
    /// Parts of tensor names in some files, and the family's names for them.
    pub(super) part_renames: &'static [(&'static str, &'static str)],
    /// True if matrices are stored transposed.
    pub(super) stores_turned: bool,
    /// True if pairs rotate by the negative angle.
    pub(super) turns_back: bool,
    /// Growth of queries with the logarithm of their position: in layers without positions, if there are such layers.
    pub(super) query_growth: Option<QueryGrowth>,
    /// The attention of all layers, if it is latent.
    pub(super) latent: Option<LatentAttention>,
    /// The selection of the tokens that latent attention reads.
    pub(super) indexer: Option<IndexerPlan>,
    /// The parts of each layer; empty if every layer has attention and a feed-forward part.
    pub(super) layers: Vec<LayerParts>,
    /// The mixers of layers with a state.
    pub(super) mixer: MixerPlan,
    /// Factors of layers in which a norm's result replaces the residual stream.
    pub(super) normed_stream: Option<NormedStream>,
    /// A gate on the attention result.
    pub(super) gate: Option<AttentionGate>,
    /// The heads of each layer, if they differ.
    pub(super) shapes: Vec<AttentionShape>,
    /// Factors on single projections.
    pub(super) factors: Factors,
}

/// The norms of a family.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum NormKind {
    /// Root mean square.
    Rms,
    /// Root mean square, multiplied by 1 + weight.
    RmsPlusOne,
    /// Mean and variance.
    Layer,
    /// Mean and variance, multiplied by 1 + weight.
    LayerPlusOne,
    /// Mean and variance, without a bias.
    Unbiased,
    /// Mean and variance, without weights.
    Bare,
    /// Root mean square, without weights.
    BareRms,
}

/// The norms of a layer, by name.
#[derive(Clone, Copy)]
pub(super) enum Block {
    /// x + f(norm(x)): norms before attention and before the feed-forward part.
    Before([&'static str; 2]),
    /// x + norm(f(x)): norms after attention and after the feed-forward part.
    After([&'static str; 2]),
    /// x + norm(f(norm(x))): norms before and after attention, and before and after the feed-forward part.
    Both([&'static str; 4]),
    /// x + f(norm(x)): a layer is one part with one norm.
    One(&'static str),
    /// x + attention(norm(x)) + mlp(norm(x)): one norm, or one for each.
    Parallel(&'static str, Option<&'static str>),
}

/// Norms of query and key heads, by name.
#[derive(Clone, Copy)]
pub(super) enum HeadNorms {
    None,
    /// Root mean squares without weights.
    Bare,
    /// As `Bare`, only in layers with positions.
    BareWherePositioned,
    /// The same weights for every head.
    Each([&'static str; 2]),
    /// The same weights for every head, mean and variance, with a bias.
    EachLayer([&'static str; 2]),
    /// One norm over all heads.
    All([&'static str; 2]),
    /// Separate weights for each head, in one tensor.
    Own([&'static str; 2]),
    /// Separate weights for each head, in separate tensors.
    OwnTensors([&'static str; 2]),
    /// The same weights for every head, after the rotation.
    Rotated([&'static str; 2]),
}

/// The tensors of queries, keys and values.
#[derive(Clone, Copy)]
pub(super) enum Inputs {
    Separate([&'static str; 3]),
    /// All queries, all keys, all values.
    Stacked(&'static str),
    /// Grouped by KV head: its queries, its key, its value.
    ByHead(&'static str),
}

/// The tensor of a gate on the attention result.
#[derive(Clone, Copy)]
pub(super) struct AttentionGate {
    pub(super) name: &'static str,
    /// True for a gate per value of the result; false for one per head.
    pub(super) is_wide: bool,
    pub(super) opening: Opening,
}

impl AttentionGate {
    /// Values of the gate.
    pub(super) fn width(self, shape: &AttentionShape) -> usize {
        if self.is_wide {
            shape.attended_width()
        } else {
            shape.heads
        }
    }
}

/// The tensors of the feed-forward part.
#[derive(Clone, Copy)]
pub(super) struct MlpNames {
    pub(super) gate: Gate,
    pub(super) up: &'static str,
    pub(super) down: &'static str,
}

/// The location of the feed-forward part's gate.
#[derive(Clone, Copy)]
pub(super) enum Gate {
    None,
    Tensor(&'static str),
    /// Stacked above the rows of `up`.
    Stacked,
}

/// Factors on the outputs of projections, including biases except those of queries, keys and values.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Factors {
    pub(super) query: f64,
    pub(super) key: f64,
    /// The scale of the key bias.
    pub(super) key_bias: f64,
    pub(super) value: f64,
    /// The scale of the value bias.
    pub(super) value_bias: f64,
    pub(super) attended: f64,
    pub(super) gate: f64,
    pub(super) down: f64,
}

impl Factors {
    pub(super) const NONE: Factors = Factors {
        query: 1.0,
        key: 1.0,
        key_bias: 1.0,
        value: 1.0,
        value_bias: 1.0,
        attended: 1.0,
        gate: 1.0,
        down: 1.0,
    };
}

/// Layers whose keys have positions.
pub(super) enum Positions {
    InAllLayers,
    /// The layers with a window.
    InWindows,
    /// True or false for each layer.
    Listed(Vec<bool>),
}

impl Positions {
    /// True if the keys of a layer do not carry positions.
    pub(super) fn lack(&self, config: &ModelConfig, layer: usize) -> bool {
        match self {
            Positions::InAllLayers => false,
            Positions::InWindows => !config.windows.get(layer).is_some_and(Option::is_some),
            Positions::Listed(layers) => !layers.get(layer).copied().unwrap_or(true),
        }
    }
}

impl Plan {
    /// Llama with the family's defaults, a JSON object.
    pub(super) fn new(fields: &Fields, defaults: Value) -> Plan {
        let defaults = defaults.as_object().cloned().unwrap_or_default();
        let fields = defaults.iter().fold(fields.clone(), |fields, (name, value)| {
            fields.with_default(name, value.clone())
        });
        Plan {
            fields,
            norm: NormKind::Rms,
            epsilon: "rms_norm_eps",
            block: Block::Before(["input_layernorm", "post_attention_layernorm"]),
            final_norm: "model.norm",
            head_norms: HeadNorms::None,
            inputs: Inputs::Separate(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
            input_bias: false,
            output: "self_attn.o_proj",
            output_bias: false,
            mlp: MlpNames {
                gate: Gate::Tensor("mlp.gate_proj"),
                up: "mlp.up_proj",
                down: "mlp.down_proj",
            },
            mlp_bias: false,
            activation: ("hidden_act", "silu"),
            interleaved: false,
            positions: Positions::InAllLayers,
            local_rotation: None,
            slides: None,
            attention_scale: None,
            soft_cap: None,
            embedding_scale: 1.0,
            residual_scale: 1.0,
            logit_scale: 1.0,
            logit_cap: None,
            head_bias: false,
            experts: None,
            expert_norm: None,
            sinks: None,
            has_embedding_norm: false,
            position_table: None,
            part_renames: &[],
            stores_turned: false,
            turns_back: false,
            query_growth: None,
            latent: None,
            indexer: None,
            layers: Vec::new(),
            mixer: MixerPlan::None,
            normed_stream: None,
            gate: None,
            shapes: Vec::new(),
            factors: Factors::NONE,
        }
    }

    /// Reads the setting `name`, which enables all biases of attention.
    pub(super) fn attention_bias(mut self, name: &str, default: bool) -> Result<Plan, ModelError> {
        self.input_bias = self.fields.flag(name, default)?;
        self.output_bias = self.input_bias;
        Ok(self)
    }

    /// Reads the setting `name`, which enables the biases of the feed-forward part.
    pub(super) fn mlp_bias(mut self, name: &str, default: bool) -> Result<Plan, ModelError> {
        self.mlp_bias = self.fields.flag(name, default)?;
        Ok(self)
    }

    /// A feed-forward part without a gate.
    pub(super) fn ungated(mut self, up: &'static str, down: &'static str) -> Plan {
        self.mlp = MlpNames {
            gate: Gate::None,
            up,
            down,
        };
        self
    }

    /// The factors of Granite, which divides logits.
    pub(super) fn multipliers(mut self) -> Result<Plan, ModelError> {
        let factor = |name: &str| self.fields.optional_positive(name);
        self.attention_scale = factor("attention_multiplier")?;
        self.embedding_scale = factor("embedding_multiplier")?.unwrap_or(1.0);
        self.residual_scale = factor("residual_multiplier")?.unwrap_or(1.0);
        self.logit_scale = factor("logits_scaling")?.unwrap_or(1.0).recip();
        Ok(self)
    }

    /// The factors of MiniCPM, which follow from the width and the number of layers.
    pub(super) fn scales_of_width_and_depth(mut self) -> Result<Plan, ModelError> {
        let factor = |name: &str| self.fields.optional_positive(name);
        let (hidden, layers) = (self.fields.size("hidden_size")?, self.fields.size("num_hidden_layers")?);
        self.embedding_scale = factor("scale_emb")?.unwrap_or(1.0);
        self.residual_scale = factor("scale_depth")?.map_or(1.0, |depth| depth / (layers as f64).sqrt());
        self.logit_scale = factor("dim_model_base")?.map_or(1.0, |base| base / hidden as f64);
        Ok(self)
    }

    /// Dimensions of a head that a rotation reads.
    pub(super) fn rotated_width(&self, config: &ModelConfig) -> usize {
        self.latent.map_or(config.head_dim, |latent| latent.rotated)
    }

    /// The part that no device computes, if there is one.
    pub(super) fn host_only(&self, config: &ModelConfig) -> Option<&'static str> {
        let by_head = match self.head_norms {
            HeadNorms::All(_) => Some("norm over all heads"),
            HeadNorms::Own(_) | HeadNorms::OwnTensors(_) => Some("norms of single heads"),
            HeadNorms::Rotated(_) => Some("norm after the rotation"),
            HeadNorms::None
            | HeadNorms::Bare
            | HeadNorms::BareWherePositioned
            | HeadNorms::Each(_)
            | HeadNorms::EachLayer(_) => None,
        };
        let after = matches!(self.block, Block::After(_)).then_some("layers without a norm before them");
        let growth = self.query_growth.map(|_| "queries that grow with their position");
        let indexer = self.indexer.as_ref().map(|_| "indexer of tokens");
        let latent = self.latent.map(|_| "latent attention");
        let factors = (self.factors != Factors::NONE).then_some("factors on projections");
        let gate = self.gate.map(|_| "gate of heads");
        let embedding = self.has_embedding_norm.then_some("norm of embeddings");
        let positions = self.position_table.map(|_| "embeddings of positions");
        let stream = self.normed_stream.map(|_| "norms in place of the residual stream");
        let delta = matches!(self.mixer, MixerPlan::GatedDeltaNet { .. }).then_some("Gated DeltaNet of this family");
        let parts = [
            by_head, after, growth, indexer, latent, factors, gate, embedding, delta, positions, stream,
        ];
        config.host_only.or(parts.into_iter().flatten().next())
    }
}
