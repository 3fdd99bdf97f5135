//! Encoders: every token sees the whole text, and a norm's result replaces the residual stream.
//!
//! BERT computes x ← norm(x + attention(x)), x ← norm(x + mlp(x)) after a norm of embeddings. Each norm stands here
//! before the part that reads its result, and the last layer's is the final norm.

use serde_json::{Value, json};

use super::plan::Planned;
use super::position_families::with_positions;
use super::{Block, Inputs, LayerParts, NormedStream, Plan};
use crate::decoder::Decoder;
use crate::fields::Fields;
use crate::weights::Checkpoint;
use crate::{Dense, DenseActivation, ModelConfig, ModelError, ScoreHead};

/// Names of the tensors of BERT and its relatives. Classes with a head put `bert.` or `roberta.` before them.
pub(super) const BERT_NAMES: &[(&str, &str)] = &[
    ("bert.", ""),
    ("roberta.", ""),
    ("embeddings.word_embeddings.", "model.embed_tokens."),
    ("embeddings.", "model.embeddings."),
    ("encoder.layer.", "model.layers."),
    ("pooler.", "model.pooler."),
];

/// Tensors of heads that predict masked tokens, and stored positions.
const UNUSED: [&str; 4] = ["cls.", "lm_head.", "model.pooler.", "model.embeddings.position_ids"];

pub(super) fn bert(fields: &Fields) -> Planned {
    encoder(fields, 0)
}

/// RoBERTa and XLM-R: rows up to the padding token's row are unused.
pub(super) fn roberta(fields: &Fields) -> Planned {
    let padding = fields.optional_token_id("pad_token_id")?.unwrap_or(1);
    encoder(fields, padding as usize + 1)
}

fn encoder(fields: &Fields, unused_rows: usize) -> Planned {
    for (name, value) in [("is_decoder", false), ("add_cross_attention", false)] {
        if fields.flag(name, value)? != value {
            return Err(fields.error(name, format!("must be {value} in this architecture")));
        }
    }
    if let Some(kind) = fields
        .text("position_embedding_type")?
        .filter(|kind| *kind != "absolute")
    {
        let problem = format!("is {kind:?}, and only \"absolute\" is supported");
        return Err(fields.error("position_embedding_type", problem));
    }
    let rows = fields.size("max_position_embeddings")?;
    let Some(positions) = rows.checked_sub(unused_rows).filter(|positions| *positions > 0) else {
        let problem = format!("is {rows}, and the first {unused_rows} rows hold no position");
        return Err(fields.error("max_position_embeddings", problem));
    };
    let fields = fields
        .clone()
        .with("max_position_embeddings", positions)
        .with("num_key_value_heads", Value::Null)
        .with("tie_word_embeddings", true);
    let defaults = json!({"layer_norm_eps": 1e-12, "type_vocab_size": 2});
    let table = ("model.embeddings.position_embeddings.weight", unused_rows);
    let mut plan = with_positions(&fields, defaults, table)?;
    plan.epsilon = "layer_norm_eps";
    plan.activation = ("hidden_act", "gelu");
    plan.inputs = Inputs::Separate(["attention.self.query", "attention.self.key", "attention.self.value"]);
    plan.output = "attention.output.dense";
    plan.block = Block::Before(["norm_before_attention", "attention.output.LayerNorm"]);
    let layers = plan.fields.size("num_hidden_layers")?.min(crate::config::LARGEST_COUNT);
    plan.layers = vec![LayerParts::ATTENTION; layers];
    plan.normed_stream = Some(NormedStream::PLAIN);
    Ok(plan.ungated("intermediate.dense", "output.dense"))
}

/// Reads the sizes of an encoder.
pub(super) fn configure(plan: &Plan, architecture: &str) -> Result<ModelConfig, ModelError> {
    let mut config = super::configure(plan, architecture)?;
    config.is_bidirectional = true;
    Ok(config)
}

/// Loads the weights of an encoder. `has_pairs` is true if the tokens of a second text have a type of their own.
pub(super) fn build(
    plan: &Plan,
    config: &ModelConfig,
    weights: &mut Checkpoint,
    has_pairs: bool,
) -> Result<Decoder, ModelError> {
    weights.rename(|name| moved_norm(&named_as_now(name), config.layers));
    let mut decoder = super::build(plan, config, weights)?;
    let types = plan.fields.size("type_vocab_size")?;
    let types = weights.matrix(
        "model.embeddings.token_type_embeddings.weight",
        types,
        config.hidden_size,
    )?;
    decoder.positions = decoder.positions.map(|table| table.with_types(&types, has_pairs));
    decoder.score_head = score_head(config, weights)?;
    weights.forget(|name| UNUSED.iter().any(|beginning| name.starts_with(beginning)));
    Ok(decoder)
}

/// The head that scores a text by its first token's state: BERT's pooler and its classifier, or RoBERTa's head.
fn score_head(config: &ModelConfig, weights: &mut Checkpoint) -> Result<Option<ScoreHead>, ModelError> {
    let hidden = config.hidden_size;
    let [inner, outer] = if weights.info("classifier.out_proj.weight").is_some() {
        ["classifier.dense", "classifier.out_proj"]
    } else {
        ["model.pooler.dense", "classifier"]
    };
    let Some(outputs) = weights
        .info(&format!("{outer}.weight"))
        .and_then(|info| info.shape.first().copied())
    else {
        return Ok(None);
    };
    let inner = Dense::load(weights, inner, (hidden, hidden), true, DenseActivation::Tanh)?;
    let outer = Dense::load(weights, outer, (hidden, outputs), true, DenseActivation::Identity)?;
    Ok(Some(ScoreHead::of_first(vec![inner, outer])))
}

/// The current name of a tensor in files of the first programs.
fn named_as_now(name: &str) -> String {
    let renamed = name.replace(".LayerNorm.gamma", ".LayerNorm.weight");
    renamed.replace(".LayerNorm.beta", ".LayerNorm.bias")
}

/// The name of a norm by the part that reads its result, and any other name unchanged.
fn moved_norm(name: &str, layers: usize) -> String {
    const FIRST: &str = "model.embeddings.LayerNorm.";
    let before = |layer: usize, kind: &str| format!("model.layers.{layer}.norm_before_attention.{kind}");
    if let Some(kind) = name.strip_prefix(FIRST) {
        return before(0, kind);
    }
    let norm = name
        .strip_prefix("model.layers.")
        .and_then(|rest| rest.split_once(".output.LayerNorm."));
    match norm.and_then(|(layer, kind)| Some((layer.parse::<usize>().ok()?, kind))) {
        Some((layer, kind)) if layer + 1 == layers => format!("model.norm.{kind}"),
        Some((layer, kind)) => before(layer + 1, kind),
        None => name.to_owned(),
    }
}
