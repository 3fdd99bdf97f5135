//! Resident memory of the process. The test has its own binary, so that no other test's memory counts.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod testing;

use riffle_attention::Format;
use riffle_kv::{CacheShape, KvCache, LayerShape, LayerShapes};
use testing::append_all;

/// Resident bytes of this process.
fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[test]
fn memory_follows_what_is_held_evicted_and_shared() {
    let shape = CacheShape {
        layers: LayerShapes::alike(4, LayerShape::new(2, 128)),
        page_tokens: 64,
        key_format: Format::F32,
        value_format: Format::F16,
    };
    let mut cache = KvCache::new(shape, None).unwrap();
    let before = resident_bytes();
    // The layers alternate, so that their pages mix in memory.
    for _ in 0..64 {
        append_all(&mut cache, 0, 256);
    }
    let payload = cache.usage().bytes_by_tier.ram as usize;
    assert!(payload >= 96 << 20);
    let full = resident_bytes();
    assert!(full - before > payload * 9 / 10, "{full} after {before}");

    // Truncation to a quarter frees three quarters, although they share slabs with used pages.
    cache.truncate(4096);
    let quarter = resident_bytes();
    assert!(full - quarter > payload * 3 / 4 * 8 / 10, "{quarter} after {full}");
    cache.clear();
    let empty = resident_bytes();
    assert!(full - empty > payload * 9 / 10, "{empty} after {full}");
    assert_eq!((cache.usage().bytes_by_tier.total(), cache.mapped_bytes()), (0, 0));

    // Keeps a tenth of every head's tokens, spread over all pages, and frees the rest.
    for _ in 0..64 {
        append_all(&mut cache, 0, 256);
    }
    let full = resident_bytes();
    let kept: Vec<usize> = (0..64 * 256).step_by(10).collect();
    for layer in 0..shape.layers.count() {
        for kv_head in 0..shape.layer(0).kv_heads {
            cache.retain(layer, kv_head, &kept).unwrap();
        }
    }
    let evicted = resident_bytes();
    assert!(full - evicted > payload * 9 / 10 * 9 / 10, "{evicted} after {full}");
    cache.clear();

    // Three sequences store their common beginning once, until the last of them is dropped.
    let before = resident_bytes();
    for _ in 0..64 {
        append_all(&mut cache, 0, 256);
    }
    let mut forks = vec![cache.fork(), cache.fork()];
    forks.iter_mut().for_each(|fork| append_all(fork, 7, 64));
    let shared = resident_bytes() - before;
    assert!(shared < payload * 11 / 10, "{shared} for {payload}");
    drop(cache);
    forks.truncate(1);
    assert!(resident_bytes() - before > payload * 9 / 10);
    drop(forks);
    let empty = resident_bytes().saturating_sub(before);
    assert!(empty < payload / 10, "{empty} of {payload} left");
}
