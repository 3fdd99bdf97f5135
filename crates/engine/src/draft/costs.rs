//! The costs of verified rows and drafted tokens relative to a pass over one token, from stored constants.
//!
//! A pass over one token reads the weights and the keys and values in the policies' selections, some of them from the
//! disk. Each additional row computes without reading anything again, except experts that no earlier row chose. A
//! drafted token costs a pass that reads fewer keys. Sequences in one batch share the reads of the weights.

use riffle_attention::Format;
use riffle_policy::{Phase, PolicyRules, dense_below};

use super::gain::Costs;
use crate::draft_spec::MOST_TOKENS;
use crate::{Engine, Sequence};

/// Nanoseconds of one thread per byte of the weights in a pass over one token (SmolLM2-135M in Q4_1 with AVX2).
const WEIGHT_BYTE_NS: f64 = 0.075;
/// Nanoseconds of all threads for distributing a layer's work, and for each additional row (two threads).
const LAYER_NS: f64 = 50_000.0;
const LAYER_ROW_NS: f64 = 10_000.0;
/// Nanoseconds per byte of a page on the disk.
const DISK_BYTE_NS: f64 = 1.0;
/// Nanoseconds of one thread per byte of keys and values that attention reads; and per element of a key in products
/// with the query of one row and head, and of a weighted value (f16 with AVX2, 8,192 and 32,768 tokens).
const KEY_BYTE_NS: f64 = 0.08;
const ELEMENT_NS: f64 = 0.06;
/// Time of computing the mass of a row's keys and choosing among them, relative to the row's attention (AVX-512,
/// 16,384 and 32,768 tokens).
const LOOK: f64 = 1.5;
/// Time of linear layers of [`TABLE_WEIGHT_BYTES`] by rows of the pass, relative to one row: with AVX-512
/// (Qwen2.5-Coder-1.5B in Q4_K), and with other instructions (SmolLM2-135M in Q4_1 with AVX2). For more rows, the
/// line through the last two points applies.
const LINEAR_ROWS_AVX512: [f64; 8] = [1.0, 1.05, 1.1, 1.15, 1.25, 1.4, 1.55, 1.7];
const LINEAR_ROWS: [f64; 8] = [1.0, 1.05, 1.55, 2.05, 2.45, 2.8, 3.15, 3.45];
/// Bytes of a four-bit weight with its share of a scale.
const TABLE_WEIGHT_BYTES: f64 = 0.6;

/// The source of a draft's tokens, for their costs.
pub(super) enum Drafts<'a> {
    /// The text, which costs nothing.
    Text,
    /// The model itself under these policies.
    Own(&'a PolicyRules),
    /// A small model.
    Model(&'a Engine),
    /// The layer in the model's files that predicts further tokens.
    Predictor,
}

/// The costs of drafts at the end of a sequence, one of `together` in a pass.
pub(super) fn costs(sequence: &Sequence, drafts: &Drafts<'_>, together: usize) -> Costs {
    let engine = &**sequence.engine();
    let tokens = sequence.tokens().len() + 1;
    let disk_ns = if sequence.attention().cache.tiers().has_farther() {
        sequence.usage().bytes_by_tier.disk as f64 * DISK_BYTE_NS
    } else {
        0.0
    };
    let shared_ns = shared_ns(engine, together);
    let of_answer = Attention::estimate(engine, tokens, &sequence.options().decode);
    let one = shared_ns + of_answer.ns(1) + of_answer.share * disk_ns;
    let layers = engine.model().config().layers as f64;
    let more_ns = |rows: usize| {
        let linear_ns = weights_ns(engine, together + rows) - weights_ns(engine, together);
        layers * LAYER_ROW_NS * rows as f64 + linear_ns + of_answer.ns(1 + rows) - of_answer.ns(1)
    };
    // A policy that learns from the verification reads the keys of a row a second time.
    let look_ns = match drafts {
        Drafts::Own(rules) if !rules.follows_from_keys() => (of_answer.ns(1) + of_answer.share * disk_ns) * LOOK,
        _ => 0.0,
    };
    let mut verified = [1.0; MOST_TOKENS + 1];
    for (rows, cost) in verified.iter_mut().enumerate() {
        let look_ns = if rows > 0 { look_ns } else { 0.0 };
        *cost += (more_ns(rows) + look_ns) / one;
    }
    let drafted_ns = match drafts {
        Drafts::Text => 0.0,
        Drafts::Own(rules) => {
            let of_draft = Attention::estimate(engine, tokens, rules);
            shared_ns + of_draft.ns(1) + of_draft.share * disk_ns
        }
        Drafts::Model(small) => {
            let of_draft = Attention::estimate(small, tokens, &small.options().sequence.decode);
            self::shared_ns(small, together) + of_draft.ns(1)
        }
        Drafts::Predictor => predictor_ns(engine, tokens, together),
    };
    Costs {
        verified,
        drafted: drafted_ns / one,
    }
}

/// Nanoseconds per sequence of a pass over one token of each of `together` sequences, without attention.
fn shared_ns(engine: &Engine, together: usize) -> f64 {
    let layers_ns = engine.model().config().layers as f64 * LAYER_NS;
    (layers_ns + weights_ns(engine, together)) / together as f64
}

/// Nanoseconds of the weights of a pass over `rows` rows, without the layer that predicts further tokens.
fn weights_ns(engine: &Engine, rows: usize) -> f64 {
    let (plan, config) = (engine.plan(), engine.model().config());
    let (bytes, missing) = match &plan.experts {
        Some(experts) => (
            experts.resident_bytes,
            experts.token_read_bytes as f64 / experts.token_bytes.max(1) as f64,
        ),
        None => (plan.weights_bytes.saturating_sub(config.expert_bytes), 0.0),
    };
    let dense_ns = bytes.saturating_sub(config.predictor_bytes) as f64 * WEIGHT_BYTE_NS * by_rows(engine, rows);
    let Some(shape) = config.experts.filter(|_| config.expert_bytes > 0) else {
        return dense_ns;
    };
    let chosen = chosen_share(shape.used as f64 / shape.experts.max(1) as f64, rows);
    let rows_of_one = (rows * shape.used) as f64 / (chosen * shape.experts as f64);
    let linear = by_rows(engine, (rows_of_one.round() as usize).max(1));
    let expert_bytes = config.expert_bytes as f64 * chosen;
    dense_ns + expert_bytes * (WEIGHT_BYTE_NS * linear + missing * DISK_BYTE_NS)
}

/// The share of a layer's experts that `rows` rows choose together, if each chooses a share `one`.
fn chosen_share(one: f64, rows: usize) -> f64 {
    1.0 - (1.0 - one).powi(i32::try_from(rows).unwrap_or(i32::MAX))
}

/// Nanoseconds of a draft token by the predicting layer, after `tokens` tokens, one of `together`. The time covers the
/// weights of the layer and of the head, and attention to all rows of the layer. Of the embedding the layer reads one
/// row.
fn predictor_ns(engine: &Engine, tokens: usize, together: usize) -> f64 {
    let config = engine.model().config();
    let head_bytes = engine.compute().host().map_or(0, |model| model.head().bytes());
    let weights_ns = (config.predictor_bytes + head_bytes as u64) as f64 * WEIGHT_BYTE_NS;
    let row_bytes = 2 * config.kv_heads * Format::F16.plane_bytes(1, config.head_dim);
    let attention = Attention {
        share: 1.0,
        read_ns: (tokens * row_bytes) as f64 * KEY_BYTE_NS,
        row_ns: (tokens * config.query_width()) as f64 * ELEMENT_NS,
        reads_row_by_row: false,
    };
    (LAYER_NS + weights_ns * by_rows(engine, together)) / together as f64 + attention.ns(1)
}

/// Time of the linear layers of a pass of `rows` rows, relative to one row. The arithmetic per row is about the same
/// for larger weights, which take longer to read.
fn by_rows(engine: &Engine, rows: usize) -> f64 {
    let table = match riffle_attention::ceiling::instructions() {
        "avx512" => &LINEAR_ROWS_AVX512,
        _ => &LINEAR_ROWS,
    };
    let time = match table.get(rows - 1) {
        Some(time) => *time,
        None => table[7] + (rows - 8) as f64 * (table[7] - table[6]),
    };
    let format = engine.model().config().weight_format;
    let weight_bytes = format.block_bytes() as f64 / format.block_weights() as f64;
    1.0 + (time - 1.0) * (TABLE_WEIGHT_BYTES / weight_bytes).min(1.0)
}

/// The attention of a token under some policies.
struct Attention {
    /// Share of the keys that the token reads, over all layers and heads.
    share: f64,
    /// Nanoseconds of reading the keys and values, once for all rows.
    read_ns: f64,
    /// Nanoseconds of the arithmetic per row.
    row_ns: f64,
    /// True if each row reads separately, because a policy learns from it before the next row selects.
    reads_row_by_row: bool,
}

impl Attention {
    /// The estimate for a token at the end of a sequence of `tokens` tokens.
    fn estimate(engine: &Engine, tokens: usize, rules: &PolicyRules) -> Self {
        let options = engine.options();
        let (resolved, cost) = (&engine.resolved, &options.machine.cost);
        let (mut keys, mut heads, mut read_bytes, mut elements) = (0.0, 0.0, 0.0, 0.0);
        for (_, layer) in engine.whole_layers() {
            let (shape, of_cache) = (&resolved.policy[layer], resolved.cache.layer(layer));
            let key_bytes = options.cache.key_format.plane_bytes(1, of_cache.key_width)
                + options.cache.value_format.plane_bytes(1, of_cache.held_value_width());
            for kv_head in 0..shape.kv_heads {
                let spec = rules.policy(layer, kv_head);
                let of_all = if tokens < dense_below(spec, Phase::Decode, shape, cost) {
                    1.0
                } else {
                    cost.relative_cost(spec, Phase::Decode, shape, tokens, None)
                };
                let of_head = of_all.min(1.0) * tokens as f64;
                keys += of_head;
                heads += 1.0;
                read_bytes += of_head * key_bytes as f64;
                elements += of_head * (shape.group * shape.head_dim) as f64;
            }
        }
        Self {
            share: if heads > 0.0 { keys / heads / tokens as f64 } else { 1.0 },
            read_ns: read_bytes * KEY_BYTE_NS,
            row_ns: elements * ELEMENT_NS,
            reads_row_by_row: !rules.follows_from_keys(),
        }
    }

    /// Nanoseconds for `rows` rows. Reads overlap with the arithmetic, so the longer of the two counts.
    fn ns(&self, rows: usize) -> f64 {
        let readings = if self.reads_row_by_row { rows } else { 1 };
        (readings as f64 * self.read_ns).max(rows as f64 * self.row_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EngineOptions;

    #[test]
    fn further_rows_choose_further_experts_until_all_are_chosen() {
        let one = 8.0 / 128.0;
        assert!((chosen_share(one, 1) - one).abs() < 1e-12);
        assert!((chosen_share(one, 2) - 0.121).abs() < 1e-3);
        assert!(chosen_share(one, 3) - chosen_share(one, 2) < chosen_share(one, 2) - chosen_share(one, 1));
        assert!((chosen_share(one, 10_000) - 1.0).abs() < 1e-9);
        assert_eq!(chosen_share(1.0, 1), 1.0);
    }

    #[test]
    fn further_rows_of_a_mixture_pay_for_further_experts_and_more_where_these_are_read() {
        let folder = tempfile::tempdir().unwrap();
        riffle_testing::write_mixture(folder.path());
        let load = |budget: Option<u64>| {
            let options = EngineOptions::default().with_context_tokens(Some(512));
            Engine::load(folder.path(), options.with_weights_budget_bytes(budget)).unwrap()
        };
        let resident = load(None);
        let some = resident.model().config().weight_bytes * 2 / 3;
        let streamed = load(Some(some));
        assert!(streamed.plan().experts.is_some());
        let further = |engine: &Engine| weights_ns(engine, 4) - weights_ns(engine, 1);
        // A dense model of the same size reads nothing more for additional rows.
        let dense = weights_ns(&resident, 1) * (by_rows(&resident, 4) - 1.0);
        assert!(further(&resident) > 1.5 * dense, "{} and {dense}", further(&resident));
        assert!(further(&streamed) > 1.5 * further(&resident), "{}", further(&streamed));
    }
}
