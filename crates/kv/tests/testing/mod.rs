//! Shapes, tokens and a plain model of a cache.
#![allow(dead_code)]

use riffle_attention::{Format, PageView, read_keys, read_values};
use riffle_kv::{CacheShape, KvCache};

pub(crate) fn shape(page_tokens: usize, format: Format) -> CacheShape {
    CacheShape {
        layers: 2,
        kv_heads: 3,
        head_dim: 48,
        page_tokens,
        key_format: format,
        value_format: format,
    }
}

/// Tokens `first..first + tokens` of a fixed sequence, `[tokens, kv_heads, head_dim]`; `salt` tells keys from values
/// and one sequence from another.
pub(crate) fn tokens(shape: &CacheShape, salt: u64, first: usize, tokens: usize) -> Vec<f32> {
    let width = shape.kv_heads * shape.head_dim;
    (first * width..(first + tokens) * width)
        .map(|at| {
            let mut x = (at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ salt.wrapping_mul(0xD134_2543_DE82_EF95);
            x = (x ^ (x >> 31)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            ((x >> 40) as f32 / (1u64 << 23) as f32) - 1.0
        })
        .collect()
}

/// Appends the next `count` tokens of sequence `salt` to every layer.
pub(crate) fn append_all(cache: &mut KvCache, salt: u64, count: usize) {
    let shape = *cache.shape();
    for layer in 0..shape.layers {
        let first = cache.tokens(layer);
        let layer_salt = salt + 2 * layer as u64;
        let keys = tokens(&shape, layer_salt, first, count);
        let values = tokens(&shape, layer_salt + 1, first, count);
        cache.append(layer, &keys, &values).unwrap();
    }
}

/// Keys and values of a (layer, KV head) as f32 bits, `[tokens, head_dim]` each; checks the pages' positions.
pub(crate) fn contents(cache: &KvCache, layer: usize, kv_head: usize) -> (Vec<u32>, Vec<u32>) {
    let shape = cache.shape();
    let d = shape.head_dim;
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    let reader = cache.read();
    let pages: Vec<PageView<'_>> = reader.pages(layer, kv_head).collect();
    for (number, page) in pages.iter().enumerate() {
        assert_eq!(page.start, number * shape.page_tokens);
        assert!(page.tokens > 0 && page.tokens <= shape.page_tokens);
        assert!(number + 1 == pages.len() || page.tokens == shape.page_tokens);
        assert_eq!(page.keys.len(), shape.key_format.plane_len(shape.page_tokens, d));
        assert_eq!(page.values.len(), shape.value_format.plane_len(shape.page_tokens, d));
        let mut rows = vec![0.0; page.tokens * d];
        read_keys(&page.keys, d, 0, page.tokens, &mut rows, d).unwrap();
        keys.extend(rows.iter().map(|x| x.to_bits()));
        read_values(&page.values, d, 0, page.tokens, &mut rows, d).unwrap();
        values.extend(rows.iter().map(|x| x.to_bits()));
    }
    assert_eq!(keys.len(), cache.tokens(layer) * d);
    (keys, values)
}

/// Everything a cache holds.
pub(crate) fn all_contents(cache: &KvCache) -> Vec<(Vec<u32>, Vec<u32>)> {
    let shape = *cache.shape();
    let heads = (0..shape.layers).flat_map(|layer| (0..shape.kv_heads).map(move |kv_head| (layer, kv_head)));
    heads.map(|(layer, kv_head)| contents(cache, layer, kv_head)).collect()
}
