//! What verified rows and drafted tokens cost beside a pass over one token, from stored constants.
//!
//! A pass over one token reads the weights, the keys and values that the policies name, and what of these lies on the disk. A further row of
//! the pass reads none of them a second time, but computes. A token of a draft costs a pass that reads less. Sequences that go through the
//! layers together share the weights.

use riffle_policy::{Phase, PolicyRules, dense_below};

use super::MOST_TOKENS;
use super::gain::Costs;
use crate::Sequence;

/// Nanoseconds of one thread for each byte of the weights in a pass over one token (SmolLM2-135M in Q4_1 with AVX2).
const WEIGHT_BYTE_NS: f64 = 0.075;
/// Nanoseconds for each byte of a page on the disk.
const DISK_BYTE_NS: f64 = 1.0;
/// Time of linear layers by rows of the pass, beside one row (as above; other rows are on the line through the last two).
const LINEAR_ROWS: [f64; 8] = [1.0, 1.85, 2.65, 2.65, 3.2, 3.6, 4.0, 4.35];
/// Time of attention by rows (as above, 4,096 and 7,000 tokens).
const ATTENTION_ROWS: [f64; 8] = [1.0, 1.2, 1.8, 2.25, 2.7, 3.1, 3.5, 3.9];

/// The costs at the end of a sequence, one of `together` in a pass; with the policies of the model's own drafts, those of their tokens.
pub(super) fn costs(sequence: &Sequence, own: Option<&PolicyRules>, together: usize) -> Costs {
    let weights_ns = sequence.engine.plan().weights_bytes as f64 * WEIGHT_BYTE_NS;
    let shared_ns = weights_ns * by_rows(&LINEAR_ROWS, together) / together as f64;
    let disk_ns = match sequence.cache.tiers().has_farther() {
        true => sequence.usage().bytes_by_tier.disk as f64 * DISK_BYTE_NS,
        false => 0.0,
    };
    let (share, attention_ns) = attention(sequence, &sequence.options.decode);
    let one = shared_ns + attention_ns + share * disk_ns;
    let more_ns = |rows: usize| {
        let linear = by_rows(&LINEAR_ROWS, together + rows) - by_rows(&LINEAR_ROWS, together);
        weights_ns * linear + attention_ns * (by_rows(&ATTENTION_ROWS, 1 + rows) - 1.0)
    };
    let mut verified = [1.0; MOST_TOKENS + 1];
    for (rows, cost) in verified.iter_mut().enumerate() {
        *cost += more_ns(rows) / one;
    }
    let drafted = own.map_or(0.0, |rules| {
        let (share, attention_ns) = attention(sequence, rules);
        (shared_ns + attention_ns + share * disk_ns) / one
    });
    Costs { verified, drafted }
}

fn by_rows(table: &[f64; 8], rows: usize) -> f64 {
    match table.get(rows - 1) {
        Some(time) => *time,
        None => table[7] + (rows - 8) as f64 * (table[7] - table[6]),
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
