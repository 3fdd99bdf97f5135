//! Random queries and a random cache of one layer.

use riffle_attention::Format;
use riffle_engine::EngineError;
use riffle_kv::{CacheShape, KvCache, LayerShape, LayerShapes};

use super::{KeyKind, PolicyRateOptions};
use crate::EvalError;
use crate::noise::noise;

/// Values of variance 1.
fn unit(length: usize, seed: u64) -> Vec<f32> {
    let mut values = noise(length, seed);
    values.iter_mut().for_each(|value| *value *= 3.0f32.sqrt());
    values
}

/// Direction that peaked keys and queries share. It is added to every query and to one key in 64; it is zero for
/// random keys.
fn direction(options: &PolicyRateOptions) -> Vec<f32> {
    let size = match options.keys {
        KeyKind::Random => 0.0,
        // The square of the size, times √head_dim, is added to the logits: a factor of e⁸ in weight.
        KeyKind::Peaked => (8.0 / (options.head_dim as f32).sqrt()).sqrt(),
    };
    let mut values = noise(options.head_dim, 11);
    values.iter_mut().for_each(|value| *value = size * value.signum());
    values
}

/// Queries of a chunk, `[rows, heads, head_dim]`.
pub(super) fn queries(options: &PolicyRateOptions, rows: usize) -> Vec<f32> {
    let mut queries = unit(rows * options.heads * options.head_dim, 7);
    let direction = direction(options);
    for query in queries.chunks_exact_mut(options.head_dim) {
        query.iter_mut().zip(&direction).for_each(|(q, d)| *q += d);
    }
    queries
}

/// A cache of one layer.
pub(super) fn shape(options: &PolicyRateOptions, formats: (Format, Format)) -> CacheShape {
    CacheShape {
        layers: LayerShapes::alike(1, LayerShape::new(options.kv_heads, options.head_dim)),
        page_tokens: riffle_kv::DEFAULT_PAGE_TOKENS,
        key_format: formats.0,
        value_format: formats.1,
    }
}

/// Tokens that a cache is filled with at a time.
pub(super) const FILL_TOKENS: usize = 4096;

/// A cache that holds the context.
pub(super) fn filled(options: &PolicyRateOptions, formats: (Format, Format)) -> Result<KvCache, EvalError> {
    let mut cache = KvCache::new(shape(options, formats), None).map_err(EngineError::from)?;
    for start in (0..options.tokens).step_by(FILL_TOKENS) {
        let (keys, values) = keys_and_values(options, start, FILL_TOKENS.min(options.tokens - start));
        cache.append(0, &keys, &values).map_err(EngineError::from)?;
    }
    Ok(cache)
}

/// Keys and values of tokens, both `[tokens, kv_heads, head_dim]`.
pub(super) fn keys_and_values(options: &PolicyRateOptions, start: usize, tokens: usize) -> (Vec<f32>, Vec<f32>) {
    let width = options.kv_heads * options.head_dim;
    let direction = direction(options);
    let mut keys = unit(tokens * width, start as u64 + 1);
    for (token, keys) in keys.chunks_exact_mut(width).enumerate() {
        // Multiples of the golden ratio spread the peaks over the text.
        if ((start + token) as f64 * 0.618_033_988_749_895).fract() < 1.0 / 64.0 {
            for key in keys.chunks_exact_mut(options.head_dim) {
                key.iter_mut().zip(&direction).for_each(|(k, d)| *k += d);
            }
        }
    }
    (keys, noise(tokens * width, start as u64 + 2))
}
