//! Memory that the process holds, measured; alone in its binary, so that no other test's memory is counted.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod testing;

use riffle_attention::Format;
use riffle_kv::{CacheShape, KvCache};
use testing::append_all;

/// Resident bytes of this process.
fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[test]
fn freed_pages_go_back_to_the_operating_system() {
    let shape = CacheShape {
        layers: 4,
        kv_heads: 2,
        head_dim: 128,
        page_tokens: 64,
        key_format: Format::F32,
        value_format: Format::F16,
    };
    let mut cache = KvCache::new(shape, None).unwrap();
    let before = resident_bytes();
    // In turns, so that pages of all layers mix in memory.
    for _ in 0..64 {
        append_all(&mut cache, 0, 256);
    }
    let payload = cache.usage().bytes_by_tier.ram as usize;
    assert!(payload >= 96 << 20);
    let full = resident_bytes();
    assert!(full - before > payload * 9 / 10, "{full} after {before}");

    // Cut to a quarter: three quarters go back, though they are spread over slabs still in use.
    cache.truncate(4096);
    let quarter = resident_bytes();
    assert!(full - quarter > payload * 3 / 4 * 8 / 10, "{quarter} after {full}");
    cache.clear();
    let empty = resident_bytes();
    assert!(full - empty > payload * 9 / 10, "{empty} after {full}");
    assert_eq!((cache.usage().bytes_by_tier.total(), cache.mapped_bytes()), (0, 0));
}
