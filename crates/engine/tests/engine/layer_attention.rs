//! The attention of one layer without a model.

use riffle_attention::Format;
use riffle_engine::LayerAttention;
use riffle_kv::{CacheShape, KvCache, LayerShape, LayerShapes};
use riffle_policy::{Phase, PolicySpec};

const HEAD_DIM: usize = 16;
const HELD: usize = 40;
const ROWS: usize = 5;

fn values(length: usize, seed: usize) -> Vec<f32> {
    (0..length)
        .map(|i| ((i * 37 + seed * 11) % 64) as f32 / 32.0 - 1.0)
        .collect()
}

/// Softmax attention of one head over the first `tokens` keys.
fn attended(query: &[f32], keys: &[f32], values: &[f32], tokens: usize) -> Vec<f64> {
    let dot = |key: &[f32]| -> f64 { query.iter().zip(key).map(|(q, k)| f64::from(q * k)).sum() };
    let weights = keys.chunks_exact(HEAD_DIM).take(tokens);
    let weights: Vec<f64> = weights.map(|key| (dot(key) / (HEAD_DIM as f64).sqrt()).exp()).collect();
    let mut sum = [0.0; HEAD_DIM];
    for (weight, value) in weights.iter().zip(values.chunks_exact(HEAD_DIM)) {
        sum.iter_mut()
            .zip(value)
            .for_each(|(sum, x)| *sum += weight * f64::from(*x));
    }
    let total: f64 = weights.iter().sum();
    sum.iter().map(|sum| sum / total).collect()
}

#[test]
fn a_chunk_reads_what_the_cache_holds_and_itself_and_again_after_going_back() {
    let shape = CacheShape {
        layers: LayerShapes::alike(2, LayerShape::new(1, HEAD_DIM)),
        page_tokens: 16,
        key_format: Format::F32,
        value_format: Format::F32,
    };
    let mut cache = KvCache::new(shape, None).unwrap();
    let (keys, made) = (values((HELD + ROWS) * HEAD_DIM, 1), values((HELD + ROWS) * HEAD_DIM, 2));
    let held = HELD * HEAD_DIM;
    cache.append(1, &keys[..held], &made[..held]).unwrap();
    let mut attention = LayerAttention::new(cache, 2, &PolicySpec::full(), Phase::Prefill, ROWS).unwrap();
    let queries = values(ROWS * 2 * HEAD_DIM, 3);
    let (new_keys, new_values) = (keys[held..].to_vec(), made[held..].to_vec());
    let chunk = attention.chunk(ROWS, queries.clone(), new_keys, new_values).unwrap();
    attention.attend(1, &chunk).unwrap();
    let output = attention.output(&chunk).unwrap();
    for (place, (query, found)) in queries
        .chunks_exact(HEAD_DIM)
        .zip(output.chunks_exact(HEAD_DIM))
        .enumerate()
    {
        let expected = attended(query, &keys, &made, HELD + place / 2 + 1);
        for (found, expected) in found.iter().zip(&expected) {
            assert!(
                (f64::from(*found) - expected).abs() < 1e-5,
                "row {place}: {found} {expected}"
            );
        }
    }
    let pairs = attention.pairs();
    assert_eq!((pairs.read, pairs.causal), (5 * 40 + 15, 5 * 40 + 15));
    attention.truncate(HELD);
    attention.attend(1, &chunk).unwrap();
    assert_eq!(attention.output(&chunk).unwrap(), output);
    assert_eq!(attention.pairs().read, 2 * pairs.read);
}
