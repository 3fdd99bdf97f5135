//! Qwen4-Exp: the layers of Qwen3.5 with experts, joined by hyper-connections of several residual streams. Attention
//! reads the blocks of tokens that an indexer selects, and some recurrent layers add features of hashed n-grams.

use std::sync::Arc;

use super::ngrams::NgramSettings;
use super::qwen3_5::{self, Mixers};
use super::{Family, added_to_norms};
use crate::blocks::{
    Activation, BlockKeys, Experts, HyperConnection, Indexer, IndexerKeys, Mixer, NgramTable, Norm, Projection, Rotary,
    RotarySettings, StreamStep,
};
use crate::config::{IndexerShape, LARGEST_COUNT};
use crate::decoder::Decoder;
use crate::fields::Fields;
use crate::layer::{Layer, Rows, Step};
use crate::weights::Checkpoint;
use crate::{ModelConfig, ModelError, NgramShape, StateShape};

pub(super) const FAMILY: Family = Family::new(&["Qwen4ExpForCausalLM"], "qwen4_exp_text", configure, build)
    .with_settings(&["num_experts"])
    .with_partial_rotation();

fn with_defaults(fields: &Fields) -> Fields {
    let fields = fields
        .with_default("hc_count", 4)
        .with_default("hc_lowrank", 320)
        .with_default("ple_conv_kernel_size", 4)
        .with_default("ngram_size", 3)
        .with_default("heads_per_ngram", 8)
        .with_default("ngram_vocab_size_base", 20_000_000)
        .with_default("make_ngram_vocab_size_divisible_by", 128)
        .with_default("seed", 1234)
        // Unlike in Qwen3.5, heads rotate as a whole by default.
        .with_default("partial_rotary_factor", 1.0);
    qwen3_5::with_defaults(&fields, "Qwen4ExpForCausalLM")
}

fn configure(fields: &Fields, architecture: &str) -> Result<ModelConfig, ModelError> {
    let fields = with_defaults(fields);
    let mut config = ModelConfig::from_fields(&fields, architecture)?;
    let rotation = RotarySettings::from_fields(&fields, config.head_dim, config.max_position)?;
    if Rotary::new(&rotation).changes_at().is_some() {
        let problem = "must not depend on the length of the text: the keys of the indexer's blocks are kept";
        return Err(fields.error("rope_type", problem));
    }
    config.rotary_dim = rotation.dim;
    if Activation::from_fields(&fields, "hidden_act", "silu")? != Activation::Silu {
        return Err(fields.error("hidden_act", "must be silu in this architecture"));
    }
    opens_by_sigmoid(&fields)?;
    let kinds = Kinds::read(&fields, config.layers)?;
    if let Some(experts) = qwen3_5::experts(&fields, architecture)? {
        experts.configure(&fields, &mut config)?;
    }
    config.streams = count(&fields, "hc_count")?;
    if config.streams < 2 {
        return Err(fields.error("hc_count", "must be at least 2 in this architecture"));
    }
    let recurrent = StateShape::GatedDeltaNet(qwen3_5::recurrent_shape(&fields)?);
    let ngrams = kinds.has_ngrams().then(|| NgramSettings::read(&fields, &config));
    let ngrams = ngrams.transpose()?.map(|settings| StateShape::Ngrams(settings.shape));
    let indexer = indexer(&fields, rotation.dim)?;
    // A table of n-grams is a layer of its own, before the layer that names it.
    (config.states, config.indexers) = (Vec::new(), Vec::new());
    for kind in &kinds.0 {
        if kind.ngrams.is_some() {
            config.states.push(ngrams);
            config.indexers.push(None);
        }
        let chooser = config.states.len();
        config.states.push((!kind.attends).then_some(recurrent));
        config
            .indexers
            .push(kind.attends.then_some(IndexerShape { chooser, ..indexer }));
    }
    config.layers = config.states.len();
    config.gate_width = config.query_width();
    let rank = count(&fields, "hc_lowrank")?;
    config.attention_scratch = HyperConnection::scratch_width(config.streams, config.hidden_size, rank);
    config.host_only = Some("several residual streams");
    Ok(config)
}

/// One of the layers that config.json names.
struct Kind {
    attends: bool,
    /// Number of the layer's table of n-grams among all tables.
    ngrams: Option<usize>,
}

struct Kinds(Vec<Kind>);

impl Kinds {
    fn read(fields: &Fields, layers: usize) -> Result<Kinds, ModelError> {
        let types = fields.texts("layer_types")?;
        if !types.is_empty() && types.len() != layers {
            let problem = format!("lists {} layers, the model has {layers}", types.len());
            return Err(fields.error("layer_types", problem));
        }
        let interval = fields.size("full_attention_interval")?;
        let tables = layers_with_ngrams(fields, layers)?;
        let kind = |layer: usize| -> Result<Kind, ModelError> {
            let attends = match types.get(layer).map(String::as_str) {
                None => (layer + 1).is_multiple_of(interval),
                Some("linear_attention") => false,
                Some("indexed_attention" | "full_attention") => true,
                Some(other) => {
                    let problem =
                        format!("{other:?} is not supported; supported are indexed_attention, linear_attention");
                    return Err(fields.error("layer_types", problem));
                }
            };
            let ngrams = tables.iter().position(|table| *table == layer);
            if attends && ngrams.is_some() {
                let problem = format!("names layer {}, which is not recurrent", layer + 1);
                return Err(fields.error("ple_layer_ids", problem));
            }
            Ok(Kind { attends, ngrams })
        };
        let kinds = Kinds((0..layers).map(kind).collect::<Result<_, _>>()?);
        if kinds.0.iter().all(|kind| !kind.attends) {
            let problem = "names no indexed_attention layer; such models are not supported";
            return Err(fields.error("layer_types", problem));
        }
        Ok(kinds)
    }

    fn has_ngrams(&self) -> bool {
        self.0.iter().any(|kind| kind.ngrams.is_some())
    }
}

/// The layers, counted from zero, that have a table of n-grams; ascending.
fn layers_with_ngrams(fields: &Fields, layers: usize) -> Result<Vec<usize>, ModelError> {
    const SETTING: &str = "ple_layer_ids";
    let Some(listed) = fields.get(SETTING) else {
        return Ok(Vec::new());
    };
    let number = |value: &serde_json::Value| value.as_u64().and_then(|number| usize::try_from(number).ok());
    let numbers: Option<Vec<usize>> = listed.as_array().and_then(|listed| listed.iter().map(number).collect());
    let mut numbers = numbers
        .filter(|numbers| numbers.iter().all(|number| (1..=layers).contains(number)))
        .ok_or_else(|| fields.error(SETTING, format!("must list numbers of layers from 1 to {layers}")))?;
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers.into_iter().map(|number| number - 1).collect())
}

/// A plausible number above zero.
pub(super) fn count(fields: &Fields, name: &str) -> Result<usize, ModelError> {
    match fields.size(name)? {
        size if size <= LARGEST_COUNT => Ok(size),
        size => Err(fields.error(name, format!("{size} is not plausible, {LARGEST_COUNT} is the limit"))),
    }
}

/// True if the gates of recurrent layers open by a sigmoid, and not by SiLU.
fn opens_by_sigmoid(fields: &Fields) -> Result<bool, ModelError> {
    match fields.text("output_gate_type")? {
        None | Some("silu") => Ok(false),
        Some("sigmoid") => Ok(true),
        Some(other) => {
            let problem = format!("{other:?} is not supported; supported are sigmoid, silu");
            Err(fields.error("output_gate_type", problem))
        }
    }
}

/// The indexer of every attention layer; `rotated` elements of its queries and keys carry positions.
fn indexer(fields: &Fields, rotated: usize) -> Result<IndexerShape, ModelError> {
    let (width, block) = (
        count(fields, "indexer_head_dim")?,
        count(fields, "indexer_compress_ratio")?,
    );
    let tokens = fields.size("indexer_budget")?;
    if fields.size("indexer_kv_heads")? != 1 {
        return Err(fields.error("indexer_kv_heads", "must be 1 in this architecture"));
    }
    if !tokens.is_multiple_of(block) {
        let problem = format!("{tokens} is not a multiple of indexer_compress_ratio {block}");
        return Err(fields.error("indexer_budget", problem));
    }
    if rotated > width {
        let problem = format!("{width} is less than the {rotated} elements that carry positions");
        return Err(fields.error("indexer_head_dim", problem));
    }
    Ok(IndexerShape {
        heads: count(fields, "indexer_n_heads")?,
        width,
        tokens,
        block,
        chooser: 0,
    })
}

fn build(fields: &Fields, config: &ModelConfig, weights: &mut Checkpoint) -> Result<Decoder, ModelError> {
    let fields = with_defaults(fields);
    let layers = fields.size("num_hidden_layers")?;
    let kinds = Kinds::read(&fields, layers)?;
    let parts = Parts {
        mixers: Mixers::new(&fields, config)?,
        added_to_norms: added_to_norms(&fields)?,
        opens_by_sigmoid: opens_by_sigmoid(&fields)?,
        rank: count(&fields, "hc_lowrank")?,
        fields: &fields,
        config,
    };
    // The mean of the streams is the result, without a norm.
    let width = config.hidden_size;
    let mut decoder = Decoder::new(config, weights, Norm::Identity { width })?;
    decoder.streams = vec![StreamStep::Repeat];
    for (number, kind) in kinds.0.iter().enumerate() {
        let name = |part: &str| format!("model.layers.{number}.{part}");
        if let Some(table) = kind.ngrams {
            let steps = vec![Step::Recur(parts.ngrams(weights, &name("ple"), table)?)];
            decoder.layers.push(Layer { attention: None, steps });
        }
        let own = Arc::new(parts.connection(weights, &name("attn_hyper_connection"), true)?);
        let index = decoder.layers.len();
        // Attention projects before the steps of its layer, so the layer before it mixes its input.
        let mix = StreamStep::Mix(Arc::clone(&own));
        let mut steps = Vec::new();
        match decoder.layers.last_mut() {
            Some(before) if kind.attends => before.steps.push(Step::Streams(mix)),
            None if kind.attends => decoder.streams.push(mix),
            _ => steps.push(Step::Streams(mix)),
        }
        let (attention, more) = match config.state_of(index) {
            Some(state) => (None, parts.recurrent(weights, &name("linear_attn"), state)?),
            None => {
                let (mut attention, steps) = parts.mixers.attention(weights, &name("self_attn"), parts.identity())?;
                attention.indexer = parts.indexer(weights, &name("self_attn.indexer"), index)?;
                (Some(attention), steps)
            }
        };
        steps.extend(more);
        steps.push(Step::Streams(StreamStep::Inject(own)));
        steps.extend(parts.feed_forward(weights, &format!("model.layers.{number}"))?);
        decoder.layers.push(Layer { attention, steps });
    }
    if let Some(last) = decoder.layers.last_mut() {
        let end = parts.connection(weights, "model.hyper_connection_mixer", false)?;
        last.steps.push(Step::Streams(StreamStep::Mix(Arc::new(end))));
    }
    Ok(decoder)
}

/// Settings that all layers share.
struct Parts<'a> {
    fields: &'a Fields,
    config: &'a ModelConfig,
    mixers: Mixers<'a>,
    added_to_norms: f32,
    opens_by_sigmoid: bool,
    /// Rank of the gates of connections.
    rank: usize,
}

impl Parts<'_> {
    /// The input of blocks is already normalised.
    fn identity(&self) -> Arc<Norm> {
        let width = self.config.hidden_size;
        Arc::new(Norm::Identity { width })
    }

    /// A norm for each stream.
    fn norms(&self, weights: &mut Checkpoint, name: &str) -> Result<Vec<Norm>, ModelError> {
        let (width, epsilon) = (self.config.hidden_size, self.config.norm_epsilon);
        let mut all = weights.values(&format!("{name}.weight"), self.config.streams * width)?;
        all.iter_mut().for_each(|weight| *weight += self.added_to_norms);
        let norm = |weight: &[f32]| Norm::Rms {
            weight: weight.to_vec(),
            epsilon,
        };
        Ok(all.chunks_exact(width).map(norm).collect())
    }

    fn connection(&self, weights: &mut Checkpoint, name: &str, injects: bool) -> Result<HyperConnection, ModelError> {
        let (streams, rank) = (self.config.streams, self.rank);
        let all = streams * self.config.hidden_size;
        let norms = self.norms(weights, &format!("{name}.hc_norm"))?;
        let mut load =
            |part: &str, outputs, inputs| Projection::load(weights, &format!("{name}.{part}"), outputs, inputs, false);
        Ok(HyperConnection {
            norms,
            down: load("input_mix_weight_down", rank, all)?,
            up: load("input_mix_weight_up", all, rank)?,
            inject: injects.then(|| load("block_inject_weight", streams, all)).transpose()?,
        })
    }

    fn recurrent(&self, weights: &mut Checkpoint, name: &str, state: StateShape) -> Result<Vec<Step>, ModelError> {
        let StateShape::GatedDeltaNet(shape) = state else {
            return Ok(Vec::new());
        };
        let steps = self.mixers.recurrent(weights, name, &shape, self.identity())?;
        let with_gates = |step: Step| match step {
            Step::Recur(Mixer::GatedDeltaNet(mixer)) if self.opens_by_sigmoid => {
                Step::Recur(Mixer::GatedDeltaNet(Box::new(mixer.with_sigmoid_gates())))
            }
            step => step,
        };
        Ok(steps.into_iter().map(with_gates).collect())
    }

    /// The steps of experts, from their connection's input to its output.
    fn feed_forward(&self, weights: &mut Checkpoint, prefix: &str) -> Result<Vec<Step>, ModelError> {
        let connection = self.connection(weights, &format!("{prefix}.mlp_hyper_connection"), true)?;
        let connection = Arc::new(connection);
        let mut steps = vec![
            Step::Streams(StreamStep::Mix(Arc::clone(&connection))),
            Step::Normalise {
                norm: self.identity(),
                from: Rows::Hidden,
                to: Rows::Normed,
            },
        ];
        if let Some(experts) = qwen3_5::experts(self.fields, &self.config.architecture)? {
            let experts = Experts::load(weights, prefix, self.config.hidden_size, &experts)?;
            steps.push(Step::Experts(Box::new(experts)));
        }
        steps.push(Step::Streams(StreamStep::Inject(connection)));
        Ok(steps)
    }

    fn indexer(&self, weights: &mut Checkpoint, name: &str, layer: usize) -> Result<Option<Box<Indexer>>, ModelError> {
        let Some(shape) = self.config.indexer_of(layer) else {
            return Ok(None);
        };
        let (hidden, width) = (self.config.hidden_size, shape.width);
        let queries = shape.heads * width;
        let rotation = RotarySettings::from_fields(self.fields, self.config.head_dim, self.config.max_position)?;
        let rows = [(0..queries).collect(), (queries..queries + width).collect()];
        let name = |part: &str| format!("{name}.{part}");
        let fused = name("index_qk_proj.weight");
        // GGUF files hold the two projections apart.
        let [query, key] = if weights.info(&fused).is_some() {
            Projection::load_rows(weights, &fused, queries + width, hidden, rows)?
        } else {
            let mut load = |part: &str, outputs| Projection::load(weights, &name(part), outputs, hidden, false);
            [load("index_q_proj", queries)?, load("index_k_proj", width)?]
        };
        Ok(Some(Box::new(Indexer {
            shape,
            query,
            query_norm: Some(self.mixers.norm(weights, &name("q_layernorm"), width)?),
            key,
            keys: IndexerKeys::Blocks(BlockKeys {
                norm: self.mixers.norm(weights, &name("k_layernorm"), width)?,
                rotary: Arc::new(Rotary::new(&rotation)),
            }),
            weights: None,
        })))
    }

    fn ngrams(&self, weights: &mut Checkpoint, name: &str, number: usize) -> Result<Mixer, ModelError> {
        let settings = NgramSettings::read(self.fields, self.config)?;
        let NgramShape { channels, inputs, .. } = settings.shape;
        let part = |part: &str| format!("{name}.{part}");
        let hashes = settings.hashes(self.fields, weights, &part("ple_embedding"), number)?;
        let table = settings.table(self.fields, weights, &part("ple_embedding"), &hashes)?;
        let norms = [
            self.norms(weights, &part("norm_key"))?,
            self.norms(weights, &part("norm_query"))?,
            self.norms(weights, &part("norm_conv"))?,
        ];
        let taps = weights.values(&part("conv1d.weight"), channels * settings.kernel)?;
        let mut load = |name: &str, outputs| Projection::load(weights, &part(name), outputs, inputs, false);
        let projections = [
            load("key_proj", channels)?,
            load("value_proj", self.config.hidden_size)?,
        ];
        let table = NgramTable::new(&settings.shape, (hashes, table), projections, norms, taps);
        Ok(Mixer::Ngrams(Box::new(table)))
    }
}
