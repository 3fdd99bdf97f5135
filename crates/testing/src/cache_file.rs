//! Restores a KV cache file, for the fuzz target and the tests of riffle-kv.

use std::path::Path;

use riffle_attention::Format;
use riffle_kv::{CacheShape, KvCache, KvError, LayerShape, LayerShapes};
use twox_hash::XxHash3_128;

/// Shape of the caches in `seeds/cache_file`.
const SHAPE: CacheShape = CacheShape {
    layers: LayerShapes::alike(2, LayerShape::new(1, 16)),
    page_tokens: 16,
    key_format: Format::Q8_0,
    value_format: Format::F16,
};
const BUDGET_BYTES: u64 = 1 << 20;

/// Restores the file and checks the restored cache's budget and token count. Every second input, by its last byte,
/// first gets the correct hash of its header, because random inputs never have it.
///
/// # Errors
/// Errors of a restore.
pub fn restore(path: &Path, input: &[u8]) -> Result<(), KvError> {
    let mut bytes = input.to_vec();
    if bytes.pop().is_some_and(|last| last % 2 == 1) {
        hash_head(&mut bytes);
    }
    std::fs::write(path, &bytes).expect("the input is written");
    let (cache, _) = KvCache::restore(path, &SHAPE, b"id", Some(BUDGET_BYTES))?;
    assert!(cache.usage().bytes_by_tier.total() <= BUDGET_BYTES);
    for layer in 0..SHAPE.layers.count() {
        let tokens: usize = cache.read().pages(layer, 0).map(|page| page.tokens).sum();
        assert_eq!(tokens, cache.tokens(layer));
    }
    Ok(())
}

/// Writes the hash of the header at the position that the header's lengths give.
fn hash_head(bytes: &mut [u8]) {
    let number = |at: usize| {
        let eight = bytes.get(at..at + 8)?;
        usize::try_from(u64::from_le_bytes(eight.try_into().ok()?)).ok()
    };
    let end = || {
        let tokens = number(16)?.checked_mul(number(24)?)?.checked_mul(8)?;
        let end = 80usize.checked_add(tokens)?.checked_add(number(64)?)?;
        end.checked_add(number(72)?)
    };
    let Some(end) = end().filter(|end| bytes.len().checked_sub(16).is_some_and(|last| *end <= last)) else {
        return;
    };
    let hash = XxHash3_128::oneshot(&bytes[..end]).to_le_bytes();
    bytes[end..end + 16].copy_from_slice(&hash);
}
