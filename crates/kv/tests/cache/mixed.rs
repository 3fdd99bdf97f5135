//! Caches whose layers differ in heads and widths: pages of several sizes in one pool.

use riffle_attention::Format;
use riffle_kv::{
    CacheShape, CpuDevice, DiskTier, KvCache, KvError, KvTiers, LayerShape, LayerShapes, Outlook, PagePool, PrefixCache,
};
use std::path::Path;
use std::sync::Arc;

use crate::sharing::streamed;
use crate::testing::{all_contents, append_all, contents, mixed_shape, shape};

const CONTEXT: usize = 600;

fn outlook() -> Outlook {
    Outlook {
        context_tokens: CONTEXT,
        append_tokens: 40,
        ..Outlook::default()
    }
}

/// Tiers with the fewest near pages and `more_rows` rows in addition.
fn tiers(folder: &Path, shape: &CacheShape, more_rows: u64, is_apart: bool) -> KvTiers {
    let mut tiers = KvTiers {
        disk: Some(DiskTier {
            folder: folder.to_owned(),
            budget_bytes: None,
        }),
        slots: 3,
        outlook: outlook(),
        ..KvTiers::memory(None)
    };
    let near = tiers.least_near_bytes(shape) + more_rows * shape.row_bytes();
    tiers.ram_budget_bytes = Some(near);
    if is_apart {
        tiers.device = Arc::new(CpuDevice::apart());
        tiers.device_budget_bytes = near;
        tiers.ram_budget_bytes = Some(2 * shape.row_bytes());
    }
    tiers
}

#[test]
fn each_layer_holds_what_a_cache_of_its_own_shape_holds() {
    for format in Format::ALL {
        let shape = mixed_shape(32, format);
        let mut cache = KvCache::new(shape, Some(shape.bytes_for(100))).unwrap();
        append_all(&mut cache, 3, 61);
        append_all(&mut cache, 3, 39);
        assert!(cache.mapped_bytes() <= shape.bytes_for(100));
        assert_eq!(cache.usage().bytes_by_tier.total(), shape.bytes_for(100));
        for layer in 0..shape.layers.count() {
            let alone = CacheShape {
                layers: LayerShapes::alike(layer + 1, shape.layer(layer)),
                ..shape
            };
            let mut alone = KvCache::new(alone, None).unwrap();
            append_all(&mut alone, 3, 100);
            for kv_head in 0..shape.layer(layer).kv_heads {
                assert!(
                    contents(&cache, layer, kv_head) == contents(&alone, layer, kv_head),
                    "layer {layer}"
                );
            }
        }
        assert!(matches!(
            cache.append(0, &[0.0; 3 * 48 * 29], &[0.0; 3 * 48 * 29]),
            Err(KvError::Budget { .. })
        ));
    }
}

#[test]
fn every_tier_gives_back_what_memory_holds_within_its_budget() {
    let folder = tempfile::tempdir().unwrap();
    for (format, is_apart) in [(Format::F16, false), (Format::Q8_0, true), (Format::Q4_0, false)] {
        let shape = mixed_shape(16, format);
        for more_rows in [0, 3] {
            let tiers = tiers(folder.path(), &shape, more_rows, is_apart);
            let near = tiers.ram_budget_bytes.unwrap().max(tiers.device_budget_bytes);
            let pool = PagePool::new(shape, tiers).unwrap();
            let (mut cache, mut resident) = (pool.cache(), KvCache::new(shape, None).unwrap());
            for count in [40, 1, 15, 33, 7, 40, 40, 40] {
                append_all(&mut cache, 5, count);
                append_all(&mut resident, 5, count);
                assert!(pool.near_bytes() <= near, "{} of {near}", pool.near_bytes());
            }
            assert!(cache.usage().bytes_by_tier.disk > 0);
            assert!(streamed(&mut cache) == streamed(&mut resident));
            // A fork shares far pages, and its copies are separate.
            let mut fork = cache.fork();
            append_all(&mut fork, 9, 5);
            append_all(&mut cache, 5, 5);
            append_all(&mut resident, 5, 5);
            assert!(streamed(&mut cache) == streamed(&mut resident));
            cache.park().unwrap();
            let retain = |cache: &mut KvCache, layer, kv_head| {
                let places = 0..cache.head_tokens(layer, kv_head);
                let kept: Vec<usize> = places.filter(|token| token % 3 > 0).collect();
                cache.retain(layer, kv_head, &kept).unwrap();
            };
            for kv_head in 0..2 {
                retain(&mut cache, 2, kv_head);
                retain(&mut resident, 2, kv_head);
            }
            cache.truncate_head(1, 0, 70);
            resident.truncate_head(1, 0, 70);
            assert!(streamed(&mut cache) == streamed(&mut resident));
            let keys = cache.read_keys(3, 20, 40).unwrap();
            assert_eq!(keys, resident.read_keys(3, 20, 40).unwrap());
            assert_eq!(keys.len(), 40 * 2 * 96);
            drop(fork);
            retain(&mut cache, 4, 0);
            retain(&mut resident, 4, 0);
            assert!(streamed(&mut cache) == streamed(&mut resident));
            drop(cache);
            assert_eq!((pool.pages(), pool.near_bytes(), pool.file_bytes()), (0, 0, 0));
        }
    }
}

#[test]
fn the_plan_of_bytes_is_what_a_pool_takes() {
    let folder = tempfile::tempdir().unwrap();
    let shape = mixed_shape(16, Format::F16);
    let memory = KvTiers {
        outlook: outlook(),
        ..KvTiers::memory(Some(shape.bytes_for(CONTEXT)))
    };
    assert_eq!(memory.bytes_for(&shape, CONTEXT), [shape.bytes_for(CONTEXT), 0, 0]);
    let tiers = tiers(folder.path(), &shape, 2, false);
    let [near, _, disk] = tiers.bytes_for(&shape, CONTEXT);
    let pool = PagePool::new(shape, tiers).unwrap();
    let mut cache = pool.cache();
    (0..CONTEXT / 40).for_each(|_| append_all(&mut cache, 1, 40));
    assert!(pool.near_bytes() <= near && pool.file_bytes() <= disk);
    // A window has pages of one size only.
    let windows = Outlook {
        window_layers: vec![0],
        window_tokens: 64,
        ..outlook()
    };
    let windowed = KvTiers {
        outlook: windows,
        ..memory
    };
    let of_window = 3 * (CONTEXT.div_ceil(16) - 4) as u64 * shape.page_bytes(0);
    assert_eq!(
        windowed.pages_bytes(&shape, CONTEXT),
        shape.bytes_for(CONTEXT) - of_window
    );
}

#[test]
fn files_and_beginnings_come_back_to_the_bit_and_to_their_shape_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache.kv");
    let shape = mixed_shape(32, Format::Q8_0);
    let mut cache = KvCache::new(shape, None).unwrap();
    append_all(&mut cache, 3, 75);
    cache.save(&path, b"model", b"text").unwrap();
    let (restored, attachment) = KvCache::restore(&path, &shape, b"model", None).unwrap();
    assert_eq!(
        (all_contents(&restored), &attachment[..]),
        (all_contents(&cache), &b"text"[..])
    );
    let mut layers: Vec<LayerShape> = shape.layers.iter().collect();
    layers.swap(0, 2);
    let other = CacheShape {
        layers: LayerShapes::new(&layers).unwrap(),
        ..shape
    };
    for other in [other, crate::testing::shape(32, Format::Q8_0)] {
        let refused = KvCache::restore(&path, &other, b"model", None);
        assert!(matches!(refused, Err(KvError::Foreign { .. })));
    }

    let tokens: Vec<u32> = (0..75).collect();
    let store = PrefixCache::open(folder.path().join("prefix"), u64::MAX).unwrap();
    assert_eq!(store.store(&cache, b"model", &tokens).unwrap().tokens, 75);
    let mut filled = KvCache::new(shape, None).unwrap();
    assert_eq!(store.fill(&mut filled, b"model", &tokens).unwrap().tokens, 75);
    assert_eq!(all_contents(&filled), all_contents(&cache));
    let mut other = KvCache::new(other, None).unwrap();
    assert_eq!(store.fill(&mut other, b"model", &tokens).unwrap().tokens, 0);
}

#[test]
fn sequences_of_a_pool_find_each_others_pages() {
    let shape = mixed_shape(16, Format::F16);
    let pool = PagePool::new(shape, KvTiers::memory(None)).unwrap();
    let tokens: Vec<u32> = (0..70).collect();
    let mut first = pool.cache();
    append_all(&mut first, 2, 70);
    first.share(b"model", &tokens);
    let mut second = pool.cache();
    assert_eq!(second.adopt(b"model", &tokens), 64);
    first.truncate(64);
    assert_eq!(all_contents(&second), all_contents(&first));
    assert_eq!(pool.pages_bytes(), shape.bytes_for(64));
}

#[test]
fn layers_beyond_the_kinds_a_cache_mixes_are_refused() {
    let layers: Vec<LayerShape> = (1..=7).map(|kv_heads| LayerShape::new(kv_heads, 16)).collect();
    assert!(LayerShapes::new(&layers[..6]).is_ok());
    let refused = LayerShapes::new(&layers).unwrap_err().to_string();
    assert!(refused.contains("layer kinds"), "{refused}");
    assert!(LayerShapes::new(&[]).is_err());
    let alike = LayerShapes::new(&vec![shape(16, Format::F16).layer(0); 300]).unwrap();
    assert_eq!((alike.count(), alike.uniform()), (300, Some(LayerShape::new(3, 48))));
}
