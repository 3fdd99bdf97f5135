//! What verified rows and drafted tokens cost beside a pass over one token, from stored constants.
//!
//! A pass over one token reads the weights, the keys and values that the policies name, and what of these lies on the disk. A further row of
//! the pass reads the disk no second time; it costs computing. A token of a draft costs a pass that reads less.

use riffle_policy::{Phase, PolicyRules, dense_below};

use crate::Sequence;
use crate::draft::gain::Costs;

/// Nanoseconds of one thread for each byte of the weights in a pass over one token (measured: SmolLM2-135M in Q4_1, AVX2).
const WEIGHT_BYTE_NS: f64 = 0.075;
/// Nanoseconds for each byte that a page on the disk has.
const DISK_BYTE_NS: f64 = 1.0;
/// What a further row computes, as a share of a pass that reads nothing from the disk (measured: 0.35 to 0.45 for 4 to 16 rows, AVX2).
const ROW_SHARE: f64 = 0.4;

/// The costs at the end of the sequence; with the policies of the model's own drafts, those of their tokens.
pub(super) fn costs(sequence: &Sequence, own: Option<&PolicyRules>) -> Costs {
    let engine = &sequence.engine;
    let weights_ns = engine.plan().weights_bytes as f64 * WEIGHT_BYTE_NS;
    let disk_ns = match sequence.cache.tiers().has_farther() {
        true => sequence.usage().bytes_by_tier.disk as f64 * DISK_BYTE_NS,
        false => 0.0,
    };
    let pass = |rules| {
        let (share, attention_ns) = attention(sequence, rules);
        (weights_ns + attention_ns, share * disk_ns)
    };
    let (computed, loaded) = pass(&sequence.options.decode);
    let one = computed + loaded;
    let drafted = own.map_or(0.0, |rules| {
        let (computed, loaded) = pass(rules);
        (computed + loaded) / one
    });
    Costs {
        row: ROW_SHARE * computed / one,
        drafted,
    }
}

/// The share of the keys that a token reads under these policies, and the nanoseconds of its attention.
fn attention(sequence: &Sequence, rules: &PolicyRules) -> (f64, f64) {
    let engine = &sequence.engine;
    let (shape, cost) = (engine.resolved().policy, &engine.options().cost);
    let tokens = sequence.tokens().len() + 1;
    let key_ns = shape.head_dim as f64 * cost.decode_ns;
    let (mut share, mut attention_ns, mut heads) = (0.0, 0.0, 0.0);
    for (_, layer) in sequence.whole_layers() {
        for kv_head in 0..shape.kv_heads {
            let spec = rules.policy(layer, kv_head);
            let of_all = match tokens < dense_below(spec, Phase::Decode, &shape, cost) {
                true => 1.0,
                false => cost.relative_cost(spec, Phase::Decode, &shape, tokens, None),
            };
            share += of_all.min(1.0);
            attention_ns += of_all * tokens as f64 * key_ns;
            heads += 1.0;
        }
    }
    (if heads > 0.0 { share / heads } else { 1.0 }, attention_ns)
}
