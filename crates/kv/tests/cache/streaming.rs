//! An endless cache in constant memory.

use crate::testing::{all_contents, append_all, contents, shape, tokens};
use riffle_attention::Format;
use riffle_kv::{KvCache, KvError};

#[test]
fn pages_removed_from_the_middle_leave_the_others_as_they_were() {
    for format in [Format::F32, Format::Q4_0] {
        let shape = shape(32, format);
        let width = shape.layer(0).key_width;
        let mut cache = KvCache::new(shape, None).unwrap();
        append_all(&mut cache, 3, 150);
        let before = all_contents(&cache);
        cache.remove_pages(1, 2);
        assert_eq!((cache.tokens(0), cache.tokens(1)), (86, 86));
        assert_eq!(cache.usage().pages, 3 * 6);
        for (now, before) in all_contents(&cache).iter().zip(&before) {
            let kept = |all: &[u32]| [&all[..32 * width], &all[96 * width..]].concat();
            assert_eq!(*now, (kept(&before.0), kept(&before.1)));
        }
        // The cache continues after the last token. An end beyond the last token is not an error.
        append_all(&mut cache, 4, 60);
        assert_eq!(cache.tokens(0), 146);
        cache.remove_pages(4, 100);
        assert_eq!((cache.tokens(0), cache.usage().pages), (128, 4 * 6));
        cache.remove_pages(9, 1);
        cache.remove_pages(0, 4);
        assert_eq!((cache.tokens(0), cache.usage().pages, cache.mapped_bytes()), (0, 0, 0));
    }
}

#[test]
fn keys_are_replaced_in_place_and_values_stay() {
    let shape = shape(16, Format::F32);
    let mut cache = KvCache::new(shape, None).unwrap();
    append_all(&mut cache, 5, 50);
    let before = contents(&cache, 1, 2);
    let keys = tokens(&shape, 99, 0, 20);
    cache.replace_keys(1, 13, &keys).unwrap();
    assert_eq!(cache.read_keys(1, 13, 20).unwrap(), keys);
    assert_eq!(cache.read_keys(1, 14, 3).unwrap(), keys[144..4 * 144]);
    let after = contents(&cache, 1, 2);
    assert_eq!(after.1, before.1);
    assert_eq!(after.0[..13 * 48], before.0[..13 * 48]);
    assert_eq!(after.0[33 * 48..], before.0[33 * 48..]);
    assert!(matches!(cache.read_keys(2, 0, 1), Err(KvError::Layer { .. })));
    assert!(matches!(
        cache.replace_keys(1, 40, &keys),
        Err(KvError::Tokens {
            held: 50,
            wanted: 60,
            ..
        })
    ));
    assert!(matches!(
        cache.replace_keys(1, 0, &keys[1..]),
        Err(KvError::Length { .. })
    ));
}
