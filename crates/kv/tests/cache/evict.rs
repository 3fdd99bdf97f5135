//! Evicts tokens from the middle of a (layer, KV head): the other tokens do not change, and pages are freed.

use crate::testing::{append_all, shape, tokens};
use riffle_attention::{Format, PageView, read_keys, read_values};
use riffle_kv::{CacheShape, DiskTier, KvCache, KvError, KvTiers, Outlook};

/// Bits of keys and values of a (layer, KV head), token by token.
fn rows(cache: &mut KvCache, layer: usize, kv_head: usize) -> Vec<(Vec<u32>, Vec<u32>)> {
    let d = cache.shape().layer(0).key_width;
    let mut found = Vec::new();
    cache
        .stream::<KvError>(layer, None, None, &mut |pages| {
            for page in &pages[kv_head] {
                found.extend(page_rows(page, d));
            }
            Ok(())
        })
        .unwrap();
    found
}

fn page_rows(page: &PageView<'_>, d: usize) -> Vec<(Vec<u32>, Vec<u32>)> {
    let mut rows = [vec![0.0; page.tokens * d], vec![0.0; page.tokens * d]];
    read_keys(&page.keys, d, 0, page.tokens, &mut rows[0], d).unwrap();
    read_values(&page.values, d, 0, page.tokens, &mut rows[1], d).unwrap();
    let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect();
    let [keys, values] = &rows;
    keys.chunks(d)
        .zip(values.chunks(d))
        .map(|(k, v)| (bits(k), bits(v)))
        .collect()
}

fn far_tiers(folder: &std::path::Path, shape: &CacheShape) -> KvTiers {
    let mut tiers = KvTiers {
        disk: Some(DiskTier {
            folder: folder.to_owned(),
            budget_bytes: None,
        }),
        slots: 2,
        outlook: Outlook {
            context_tokens: 1000,
            append_tokens: 64,
            scans_keys: false,
            ..Outlook::default()
        },
        ..KvTiers::memory(None)
    };
    tiers.ram_budget_bytes = Some(tiers.least_near_bytes(shape));
    tiers
}

#[test]
fn what_is_kept_is_to_the_bit_what_it_was_in_every_format_and_tier() {
    let folder = tempfile::tempdir().unwrap();
    for (key_format, value_format) in Format::ALL.into_iter().zip(Format::ALL.into_iter().rev()) {
        for page_tokens in [16, 48] {
            let shape = CacheShape {
                value_format,
                ..shape(page_tokens, key_format)
            };
            for tiers in [KvTiers::memory(None), far_tiers(folder.path(), &shape)] {
                let mut cache = KvCache::with_tiers(shape, tiers).unwrap();
                for _ in 0..8 {
                    append_all(&mut cache, 3, 37);
                }
                let before: Vec<_> = (0..3).map(|head| rows(&mut cache, 1, head)).collect();
                let pages = cache.usage().pages;
                let bytes = cache.usage().bytes_by_tier.total();
                // The first 50 tokens, every fifth of the others, and the last.
                let kept: Vec<usize> = (0..296).filter(|at| *at < 50 || at % 5 == 0 || *at > 290).collect();
                let freed = cache.retain(1, 2, &kept).unwrap();
                assert_eq!(freed, 296usize.div_ceil(page_tokens) - kept.len().div_ceil(page_tokens));
                assert_eq!(cache.usage().pages, pages - freed);
                let left = cache.usage().bytes_by_tier.total();
                assert_eq!(bytes - left, freed as u64 * shape.page_bytes(0));
                assert_eq!((cache.head_tokens(1, 2), cache.tokens(1)), (kept.len(), 296));
                let expected: Vec<_> = kept.iter().map(|at| before[2][*at].clone()).collect();
                assert!(
                    rows(&mut cache, 1, 2) == expected,
                    "{key_format:?} {value_format:?} {page_tokens}"
                );
                assert!(rows(&mut cache, 1, 1) == before[1]);
                // Each head continues from its own length.
                append_all(&mut cache, 9, 20);
                let more = rows(&mut cache, 1, 2);
                assert!(more[..kept.len()] == expected && more.len() == kept.len() + 20);
                assert!(rows(&mut cache, 1, 0)[296..].len() == 20);
            }
        }
    }
}

#[test]
fn heads_of_different_lengths_are_saved_and_restored() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let shape = shape(32, Format::Q8_0);
    let mut cache = KvCache::new(shape, None).unwrap();
    append_all(&mut cache, 1, 150);
    cache.retain(0, 1, &(0..150).step_by(3).collect::<Vec<_>>()).unwrap();
    cache.retain(1, 0, &[]).unwrap();
    cache.save(&path, b"", b"").unwrap();
    let (mut restored, _) = KvCache::restore(&path, &shape, b"", None).unwrap();
    for layer in 0..shape.layers.count() {
        for head in 0..shape.layer(0).kv_heads {
            assert!(rows(&mut restored, layer, head) == rows(&mut cache, layer, head));
        }
    }
    assert_eq!((restored.head_tokens(0, 1), restored.head_tokens(1, 0)), (50, 0));
    cache.truncate_head(0, 1, 20);
    assert_eq!((cache.head_tokens(0, 1), cache.head_tokens(0, 0)), (20, 150));
}

#[test]
fn places_that_are_not_held_or_do_not_ascend_are_refused() {
    let shape = shape(16, Format::F32);
    let mut cache = KvCache::new(shape, None).unwrap();
    let some = tokens(&shape, 0, 0, 40);
    cache.append(0, &some, &some).unwrap();
    for kept in [&[40usize][..], &[3, 2], &[5, 5]] {
        assert!(matches!(
            cache.retain(0, 0, kept),
            Err(KvError::Tokens { held: 40, .. })
        ));
    }
    assert!(matches!(cache.retain(2, 0, &[]), Err(KvError::Layer { .. })));
    assert_eq!(cache.retain(0, 0, &(0..40).collect::<Vec<_>>()).unwrap(), 0);
    assert_eq!(cache.usage().pages, 9);
}
