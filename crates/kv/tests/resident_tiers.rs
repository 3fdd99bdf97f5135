//! Resident memory of the process with most pages on disk. The test has its own binary, so that no other test's
//! memory counts.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod testing;

use riffle_attention::Format;
use riffle_kv::{CacheShape, DiskTier, KvCache, KvError, KvTiers, LayerShape, LayerShapes, Outlook};
use testing::append_all;

/// Resident bytes of this process, now and at the peak.
fn resident_bytes() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    };
    (line("VmRSS:"), line("VmHWM:"))
}

#[test]
fn the_process_never_holds_more_than_the_budget_and_gives_it_back() {
    let folder = tempfile::tempdir().unwrap();
    let shape = CacheShape {
        layers: LayerShapes::alike(4, LayerShape::new(2, 128)),
        page_tokens: 64,
        key_format: Format::F32,
        value_format: Format::F16,
    };
    let budget = 24 << 20;
    let tiers = KvTiers {
        disk: Some(DiskTier {
            folder: folder.path().to_owned(),
            budget_bytes: None,
        }),
        outlook: Outlook {
            context_tokens: 1 << 20,
            append_tokens: 256,
            scans_keys: false,
            ..Outlook::default()
        },
        ..KvTiers::memory(Some(budget))
    };
    let mut cache = KvCache::with_tiers(shape, tiers).unwrap();
    // Allocates the scratch memory of appends before the measurement.
    append_all(&mut cache, 0, 256);
    cache.clear();
    let (before, _) = resident_bytes();
    for step in 0..64 {
        append_all(&mut cache, 0, 256);
        if step % 16 == 15 {
            for layer in 0..shape.layers.count() {
                cache
                    .stream::<KvError>(layer, None, Some((layer + 1) % 4), &mut |_| Ok(()))
                    .unwrap();
            }
        }
    }
    let (_, most) = resident_bytes();
    let bytes = cache.usage().bytes_by_tier;
    assert!(bytes.total() > 3 * budget, "{bytes:?}");
    assert!(bytes.ram > budget / 2 && bytes.ram <= budget, "{bytes:?}");
    // Threads, their stacks and the staging of one page do not count as pages.
    assert!(most <= before + budget + (3 << 20), "{} over {budget}", most - before);
    cache.truncate(256);
    let (now, _) = resident_bytes();
    assert!(now < before + (12 << 20), "{} after {}", now - before, most - before);
}
