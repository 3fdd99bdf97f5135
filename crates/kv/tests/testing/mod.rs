//! Shapes, tokens and a plain model of a cache.
#![allow(dead_code)]

use riffle_attention::{Format, PageView, read_keys, read_values};
use riffle_kv::{CacheShape, KvCache, LayerShape, LayerShapes};

pub(crate) fn shape(page_tokens: usize, format: Format) -> CacheShape {
    CacheShape {
        layers: LayerShapes::alike(2, LayerShape::new(3, 48)),
        page_tokens,
        key_format: format,
        value_format: format,
    }
}

/// A shape with layers of different heads and widths, with two page sizes, and with a latent layer.
pub(crate) fn mixed_shape(page_tokens: usize, format: Format) -> CacheShape {
    let layers = [
        LayerShape::new(3, 48),
        LayerShape {
            kv_heads: 1,
            key_width: 64,
            ..LayerShape::new(1, 32)
        },
        LayerShape::new(2, 48),
        LayerShape::new(2, 96),
        LayerShape {
            value_width: 32,
            is_latent: true,
            ..LayerShape::new(1, 64)
        },
    ];
    CacheShape {
        layers: LayerShapes::new(&layers).unwrap(),
        ..shape(page_tokens, format)
    }
}

/// Tokens `first..first + tokens` of a fixed sequence, `[tokens, kv_heads, key_width]` as in the first layer. `salt`
/// distinguishes sequences, and keys from values.
pub(crate) fn tokens(shape: &CacheShape, salt: u64, first: usize, tokens: usize) -> Vec<f32> {
    rows(shape.layer(0).kv_heads * shape.layer(0).key_width, salt, first, tokens)
}

fn rows(width: usize, salt: u64, first: usize, tokens: usize) -> Vec<f32> {
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
    for layer in 0..shape.layers.count() {
        let first = cache.tokens(layer);
        let layer_salt = salt + 2 * layer as u64;
        let of_layer = shape.layer(layer);
        let keys = rows(of_layer.kv_heads * of_layer.key_width, layer_salt, first, count);
        let values = rows(
            of_layer.kv_heads * of_layer.held_value_width(),
            layer_salt + 1,
            first,
            count,
        );
        cache.append(layer, &keys, &values).unwrap();
    }
}

/// Keys and values of a (layer, KV head) as f32 bits, `[tokens, width]` each; checks the pages' positions.
pub(crate) fn contents(cache: &KvCache, layer: usize, kv_head: usize) -> (Vec<u32>, Vec<u32>) {
    let shape = cache.shape();
    let [d, value_width] = [shape.layer(layer).key_width, shape.layer(layer).held_value_width()];
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    let reader = cache.read();
    let pages: Vec<PageView<'_>> = reader.pages(layer, kv_head).collect();
    for (number, page) in pages.iter().enumerate() {
        assert_eq!(page.start, number * shape.page_tokens);
        assert!(page.tokens > 0 && page.tokens <= shape.page_tokens);
        assert!(number + 1 == pages.len() || page.tokens == shape.page_tokens);
        assert_eq!(page.keys.len(), shape.key_format.plane_len(shape.page_tokens, d));
        assert_eq!(page.is_latent(), shape.layer(layer).is_latent);
        let mut rows = vec![0.0; page.tokens * d];
        read_keys(&page.keys, d, 0, page.tokens, &mut rows, d).unwrap();
        keys.extend(rows.iter().map(|x| x.to_bits()));
        if page.is_latent() {
            continue;
        }
        assert_eq!(
            page.values.len(),
            shape.value_format.plane_len(shape.page_tokens, value_width)
        );
        rows.resize(page.tokens * value_width, 0.0);
        read_values(&page.values, value_width, 0, page.tokens, &mut rows, value_width).unwrap();
        values.extend(rows.iter().map(|x| x.to_bits()));
    }
    assert_eq!(keys.len(), cache.tokens(layer) * d);
    (keys, values)
}

/// Everything a cache holds.
pub(crate) fn all_contents(cache: &KvCache) -> Vec<(Vec<u32>, Vec<u32>)> {
    let shape = *cache.shape();
    let heads = (0..shape.tables()).map(|table| shape.place_of(table));
    heads.map(|(layer, kv_head)| contents(cache, layer, kv_head)).collect()
}
