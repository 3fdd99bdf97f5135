//! Bytes of a cache: limits, usage and release.

use crate::testing::{all_contents, append_all, shape, tokens};
use riffle_attention::Format;
use riffle_kv::{CacheShape, KvCache, KvError, LayerShape, LayerShapes};

#[test]
fn pages_follow_the_tokens_held_not_the_context() {
    let shape = CacheShape {
        layers: LayerShapes::alike(4, LayerShape::new(2, 64)),
        page_tokens: 256,
        key_format: Format::F16,
        value_format: Format::F16,
    };
    let mut cache = KvCache::new(shape, Some(shape.bytes_for(131_072))).unwrap();
    assert_eq!(cache.usage().bytes_by_tier.total(), 0);
    append_all(&mut cache, 0, 300);
    let usage = cache.usage();
    assert_eq!(usage.pages, 4 * 2 * 2);
    assert_eq!(usage.bytes_by_tier.ram, 4 * 2 * 2 * 256 * 64 * 2 * 2);
    assert_eq!(usage.bytes_by_tier.total(), shape.bytes_for(300));
    assert_eq!(shape.bytes_per_token(), 4 * 2 * 64 * 2 * 2);
}

#[test]
fn bytes_follow_the_formats_of_keys_and_values() {
    let shape = CacheShape {
        key_format: Format::Q8_0,
        value_format: Format::Q4_0,
        layers: LayerShapes::alike(2, LayerShape::new(3, 64)),
        ..shape(64, Format::F32)
    };
    // A key has 64 bytes and two scales of 2 bytes. A value has 32 bytes and two scales.
    assert_eq!(shape.bytes_per_token(), 2 * 3 * (68 + 36));
    assert_eq!(shape.page_bytes(0), 64 * (68 + 36));
    assert_eq!(shape.tokens_for(shape.bytes_for(128)), 128);
    assert_eq!(shape.tokens_for(shape.bytes_for(129) - 1), 128);
}

#[test]
fn a_refused_append_changes_nothing_and_says_what_fits() {
    let shape = shape(32, Format::F16);
    let budget = shape.bytes_for(96) + 17;
    let mut cache = KvCache::new(shape, Some(budget)).unwrap();
    append_all(&mut cache, 0, 70);
    let (before, contents) = (cache.usage(), all_contents(&cache));
    let many = tokens(&shape, 0, 0, 60);
    let error = cache.append(0, &many, &many).unwrap_err();
    assert!(matches!(
        error,
        KvError::Budget {
            fitting_tokens: 96,
            wanted_tokens: 130,
            ..
        }
    ));
    let message = error.to_string();
    for part in [
        &budget.to_string()[..],
        "96 tokens",
        "130",
        "larger budget",
        "shorter context",
    ] {
        assert!(message.contains(part), "no {part:?} in {message}");
    }
    assert_eq!((cache.usage(), all_contents(&cache)), (before, contents));
    // Appends the last tokens that fit.
    append_all(&mut cache, 0, 26);
    let one = tokens(&shape, 0, 0, 1);
    assert!(cache.append(0, &one, &one).is_err());
    assert!(cache.mapped_bytes() <= budget);
}

#[test]
fn a_budget_below_one_page_fits_nothing() {
    let shape = shape(32, Format::F32);
    let mut cache = KvCache::new(shape, Some(shape.page_bytes(0) - 1)).unwrap();
    let one = tokens(&shape, 0, 0, 1);
    assert!(matches!(
        cache.append(0, &one, &one),
        Err(KvError::Budget { fitting_tokens: 0, .. })
    ));
    assert_eq!(cache.mapped_bytes(), 0);
}

#[test]
fn bookkeeping_is_below_three_percent_of_the_pages() {
    for page_tokens in [16, 64, 256, 1024] {
        for format in Format::ALL {
            let shape = CacheShape {
                layers: LayerShapes::alike(4, LayerShape::new(2, 64)),
                page_tokens,
                key_format: format,
                value_format: format,
            };
            let mut cache = KvCache::new(shape, None).unwrap();
            append_all(&mut cache, 0, 3000);
            let usage = cache.usage();
            let share = usage.bookkeeping_bytes as f64 / usage.bytes_by_tier.total() as f64;
            assert!(share < 0.03, "{} pages of {page_tokens}: {share}", format.name());
        }
    }
}
