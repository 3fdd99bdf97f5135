//! Beginnings on disk: exact to the bit, never wrong, and within the budget.

use std::fs;
use std::path::{Path, PathBuf};

use crate::testing::{all_contents, append_all, shape};
use riffle_attention::Format;
use riffle_kv::{CacheShape, KvCache, KvError, PrefixCache};
use twox_hash::XxHash3_128;

pub(crate) const ALL: u64 = u64::MAX;

pub(crate) fn text(salt: u32, length: usize) -> Vec<u32> {
    (0..length as u32).map(|i| (i * 7919 + salt) % 1000).collect()
}

pub(crate) fn cache(shape: CacheShape, salt: u64, tokens: usize) -> KvCache {
    let mut cache = KvCache::new(shape, None).unwrap();
    append_all(&mut cache, salt, tokens);
    cache
}

pub(crate) fn found(
    store: &PrefixCache,
    shape: CacheShape,
    identity: &[u8],
    tokens: &[u32],
) -> (KvCache, usize, usize) {
    let mut cache = KvCache::new(shape, None).unwrap();
    let found = store.fill(&mut cache, identity, tokens).unwrap();
    (cache, found.tokens, found.damaged_blocks)
}

pub(crate) fn blocks(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut blocks: Vec<_> = entries
        .filter(|path| path.extension().is_some_and(|e| e == "block"))
        .collect();
    blocks.sort();
    blocks
}

pub(crate) fn bytes(folder: &Path) -> u64 {
    blocks(folder)
        .iter()
        .map(|path| fs::metadata(path).unwrap().len())
        .sum()
}

#[test]
fn a_beginning_is_found_again_to_the_bit_by_what_made_it_alone() {
    for (key_format, value_format) in [(Format::F32, Format::F16), (Format::Q8_0, Format::Q4_0)] {
        let folder = tempfile::tempdir().unwrap();
        let shape = CacheShape {
            key_format,
            value_format,
            ..shape(32, Format::F32)
        };
        let store = PrefixCache::open(folder.path(), ALL).unwrap();
        let tokens = text(1, 140);
        let original = cache(shape, 3, 140);
        let kept = store.store(&original, b"model", &tokens).unwrap();
        assert_eq!((kept.tokens, kept.new_blocks), (140, 4));
        assert_eq!(kept.bytes, bytes(folder.path()));
        assert_eq!(store.store(&original, b"model", &tokens).unwrap().new_blocks, 0);

        let (filled, ..) = found(&store, shape, b"model", &tokens);
        assert_eq!(all_contents(&filled), all_contents(&original));
        // Another text shares the pages before the first difference. Later differences do not matter.
        for differs_at in [0, 31, 32, 127, 128, 135] {
            let mut other = tokens.clone();
            other[differs_at] += 1;
            let (filled, kept, _) = found(&store, shape, b"model", &other);
            let whole = differs_at / 32 * 32;
            assert_eq!(kept, if whole == 128 { differs_at } else { whole });
            assert_eq!(filled.tokens(1), kept);
        }
        assert_eq!(found(&store, shape, b"other model", &tokens).1, 0);
        assert_eq!(found(&store, shape, b"model", &tokens[..95]).1, 64);
        let other_pages = CacheShape {
            page_tokens: 16,
            ..shape
        };
        assert_eq!(found(&store, other_pages, b"model", &tokens).1, 0);
    }
}

#[test]
fn the_budget_holds_and_what_was_used_longest_ago_goes_first() {
    let folder = tempfile::tempdir().unwrap();
    let shape = shape(16, Format::F16);
    let one = {
        let store = PrefixCache::open(folder.path(), ALL).unwrap();
        store.store(&cache(shape, 9, 16), b"", &text(9, 16)).unwrap().bytes
    };
    let store = PrefixCache::open(folder.path(), 6 * one).unwrap();
    for salt in [1, 2] {
        store
            .store(&cache(shape, u64::from(salt), 48), b"", &text(salt, 48))
            .unwrap();
    }
    assert_eq!(bytes(folder.path()), 6 * one);
    // The first text is used again, so blocks of the second are removed, from its end.
    assert_eq!(found(&store, shape, b"", &text(1, 48)).1, 48);
    let kept = store.store(&cache(shape, 3, 32), b"", &text(3, 32)).unwrap();
    assert_eq!((kept.new_blocks, kept.removed_blocks, kept.bytes), (2, 2, 6 * one));
    let tokens_of = |salt| found(&store, shape, b"", &text(salt, 48)).1;
    assert_eq!(
        [tokens_of(9), tokens_of(1), tokens_of(2), tokens_of(3)],
        [0, 48, 16, 32]
    );
    // For a text larger than the budget, only its beginning is written.
    let kept = store.store(&cache(shape, 4, 160), b"", &text(4, 160)).unwrap();
    assert_eq!((kept.tokens, bytes(folder.path())), (96, 6 * one));
    // The next store applies a smaller budget.
    let small = PrefixCache::open(folder.path(), one).unwrap();
    small.store(&cache(shape, 5, 16), b"", &text(5, 16)).unwrap();
    assert_eq!(
        (bytes(folder.path()), found(&small, shape, b"", &text(5, 16)).1),
        (one, 16)
    );
}

#[test]
fn a_damaged_block_is_removed_and_never_used() {
    let folder = tempfile::tempdir().unwrap();
    let shape = shape(16, Format::Q8_0);
    let tokens = text(1, 64);
    let store = PrefixCache::open(folder.path(), ALL).unwrap();
    let original = cache(shape, 1, 64);
    for damage in 0..40 {
        store.store(&original, b"", &tokens).unwrap();
        let all = blocks(folder.path());
        assert_eq!(all.len(), 4);
        let path = &all[damage % 4];
        let mut content = fs::read(path).unwrap();
        match damage % 5 {
            0 => content.truncate(content.len() * damage / 40),
            1 => content.push(0),
            // A complete block from another position.
            2 => content = fs::read(&all[(damage + 1) % 4]).unwrap(),
            _ => {
                let at = content.len() * damage / 40;
                content[at] ^= 1 << (damage % 8);
            }
        }
        fs::write(path, &content).unwrap();
        let (filled, kept, damaged) = found(&store, shape, b"", &tokens);
        assert!(kept < 64 && damaged == 1, "damage {damage}: {kept}");
        let mut expected = cache(shape, 1, 64);
        expected.truncate(kept);
        assert_eq!(all_contents(&filled), all_contents(&expected));
        assert_eq!(found(&store, shape, b"", &tokens).2, 0);
    }
    // A missing block, an unindexed block, and a foreign file with a block's name.
    store.store(&original, b"", &tokens).unwrap();
    fs::remove_file(&blocks(folder.path())[0]).unwrap();
    assert!(found(&store, shape, b"", &tokens).1 < 64);
    let left_behind = folder.path().join(format!("{:032x}.block", 7));
    fs::write(&left_behind, b"RIFFLEPB left behind").unwrap();
    let foreign = folder.path().join(format!("{:032x}.block", 8));
    fs::write(&foreign, b"a diary").unwrap();
    store.store(&original, b"", &tokens).unwrap();
    assert!(!left_behind.exists());
    assert_eq!(fs::read(&foreign).unwrap(), b"a diary");
    fs::remove_file(&foreign).unwrap();
    assert_eq!(
        (blocks(folder.path()).len(), found(&store, shape, b"", &tokens).1),
        (4, 64)
    );
}

#[test]
fn a_damaged_index_is_a_miss_and_the_cache_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    let shape = shape(16, Format::Q8_0);
    let tokens = text(1, 64);
    let store = PrefixCache::open(folder.path(), ALL).unwrap();
    store.store(&cache(shape, 1, 64), b"", &tokens).unwrap();
    let path = folder.path().join("index.redb");
    let whole = fs::read(&path).unwrap();
    for at in (0..whole.len()).step_by(1 + whole.len() / 60).chain(0..64) {
        for cut in [false, true] {
            let mut content = whole.clone();
            if cut {
                content.truncate(at)
            } else {
                content[at] ^= 0xff
            }
            fs::write(&path, &content).unwrap();
            let mut filled = KvCache::new(shape, None).unwrap();
            match store.fill(&mut filled, b"", &tokens) {
                Ok(found) => {
                    let mut expected = cache(shape, 1, 64);
                    expected.truncate(found.tokens);
                    assert_eq!(all_contents(&filled), all_contents(&expected));
                }
                Err(error) => panic!("damage at {at}, cut {cut}: {error}"),
            }
            store.store(&cache(shape, 1, 64), b"", &tokens).unwrap();
            assert_eq!(store.known_tokens(&shape, b"", &tokens).unwrap(), 64);
        }
    }
}

#[test]
fn a_zeroed_index_is_set_aside_with_a_notice() {
    let folder = tempfile::tempdir().unwrap();
    let shape = shape(16, Format::Q8_0);
    let tokens = text(1, 64);
    let store = PrefixCache::open(folder.path(), ALL).unwrap();
    store.store(&cache(shape, 1, 64), b"", &tokens).unwrap();
    assert_eq!(store.take_notice(), None);
    let path = folder.path().join("index.redb");
    let zeros = vec![0; fs::read(&path).unwrap().len()];
    fs::write(&path, &zeros).unwrap();
    assert_eq!(store.known_tokens(&shape, b"", &tokens).unwrap(), 0);
    let notice = store.take_notice().unwrap();
    assert!(
        notice.contains("index.redb.damaged") && notice.contains("begins anew"),
        "{notice}"
    );
    assert_eq!(store.take_notice(), None);
    assert_eq!(fs::read(folder.path().join("index.redb.damaged")).unwrap(), zeros);
}

#[test]
fn another_programs_file_in_place_of_the_index_is_left_alone_and_nobody_is_told_to_delete_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index.redb");
    fs::write(&path, "a diary").unwrap();
    let shape = shape(16, Format::F16);
    let store = PrefixCache::open(folder.path(), ALL).unwrap();
    let error = store.store(&cache(shape, 1, 64), b"", &text(1, 64)).unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("index.redb there is no index") && message.contains("use another folder"),
        "{message}"
    );
    assert!(!message.contains("delete") && !message.contains("remove"), "{message}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "a diary");
}

#[test]
fn what_does_not_fit_the_cache_is_refused_and_leaves_it_empty() {
    let folder = tempfile::tempdir().unwrap();
    let shape = shape(16, Format::F16);
    let store = PrefixCache::open(folder.path(), ALL).unwrap();
    store.store(&cache(shape, 1, 64), b"", &text(1, 64)).unwrap();
    let mut small = KvCache::new(shape, Some(shape.bytes_for(48))).unwrap();
    let result = store.fill(&mut small, b"", &text(1, 64));
    assert!(matches!(result, Err(KvError::Budget { .. })), "{result:?}");
    assert_eq!((small.tokens(0), small.usage().pages), (0, 0));
}

#[test]
fn a_note_comes_back_with_exactly_the_tokens_it_was_kept_with_and_within_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let shape = shape(32, Format::F16);
    let tokens = text(1, 140);
    let original = cache(shape, 3, 140);
    let store = PrefixCache::open(folder.path(), ALL).unwrap();
    store.store(&original, b"model", &tokens).unwrap();
    let find = |tokens: &[u32]| {
        let found = store.note(&shape, b"model", tokens).unwrap();
        (found.tokens, found.note)
    };
    assert_eq!(find(&tokens), (0, None), "pages without a note are not enough");
    let kept = store
        .store_with_note(&original, b"model", &tokens[..64], b"state after two")
        .unwrap();
    assert_eq!((kept.tokens, kept.new_blocks), (64, 0));
    assert_eq!(kept.bytes, bytes(folder.path()));
    // A note needs a beginning of whole pages.
    store
        .store_with_note(&original, b"model", &tokens[..100], b"state")
        .unwrap();
    assert_eq!(find(&tokens), (64, Some(b"state after two".to_vec())));
    assert_eq!(find(&text(2, 140)), (0, None));
    store
        .store_with_note(&original, b"model", &tokens[..128], b"state after four")
        .unwrap();
    assert_eq!(find(&tokens), (128, Some(b"state after four".to_vec())));
    // A changed note is removed, and an earlier one is used.
    for path in blocks(folder.path()) {
        let mut content = fs::read(&path).unwrap();
        if content.windows(16).any(|window| window == b"state after four") {
            content[50] ^= 1;
            fs::write(&path, content).unwrap();
        }
    }
    assert_eq!(find(&tokens), (64, Some(b"state after two".to_vec())));
    assert_eq!(found(&store, shape, b"model", &tokens).1, 140);

    // The budget has room for the pages but not for the note.
    let tight = tempfile::tempdir().unwrap();
    let all = bytes(folder.path());
    let store = PrefixCache::open(tight.path(), all / 2).unwrap();
    store
        .store_with_note(&original, b"model", &tokens[..64], &vec![1; all as usize])
        .unwrap();
    assert!(bytes(tight.path()) <= all / 2);
}

#[test]
fn a_note_under_a_name_is_kept_within_the_budget_and_never_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let store = PrefixCache::open(folder.path(), 400).unwrap();
    assert_eq!(store.named_note(b"a").unwrap(), None);
    assert!(store.store_named_note(b"a", &[1; 100]).unwrap());
    assert!(store.store_named_note(b"b", &[2; 100]).unwrap());
    assert!(store.store_named_note(b"a", &[3; 120]).unwrap());
    let other = PrefixCache::open(folder.path(), 400).unwrap();
    assert_eq!(other.named_note(b"a").unwrap(), Some(vec![3; 120]));
    assert_eq!(other.named_note(b"b").unwrap(), Some(vec![2; 100]));
    assert_eq!(other.named_note(b"c").unwrap(), None);
    assert!(
        !store.store_named_note(b"c", &[4; 400]).unwrap(),
        "more than the budget"
    );
    assert!(store.store_named_note(b"c", &[4; 100]).unwrap());
    assert_eq!(store.named_note(b"a").unwrap(), None, "used longest ago");
    assert!(bytes(folder.path()) <= 400);
    for at in [3, 30, 70, 160] {
        assert!(store.store_named_note(b"c", &[5; 100]).unwrap());
        let file = blocks(folder.path()).into_iter().find(|path| {
            let content = fs::read(path).unwrap();
            content[48..148] == [5; 100]
        });
        let file = file.unwrap();
        let mut content = fs::read(&file).unwrap();
        content[at] ^= 1;
        fs::write(&file, content).unwrap();
        assert_eq!(store.named_note(b"c").unwrap(), None, "damage at {at}");
        assert_eq!(store.named_note(b"b").unwrap(), Some(vec![2; 100]));
    }
}

#[test]
fn a_cache_that_holds_first_pages_is_filled_with_those_after_them() {
    let folder = tempfile::tempdir().unwrap();
    let shape = shape(32, Format::F16);
    let tokens = text(1, 140);
    let original = cache(shape, 3, 140);
    let store = PrefixCache::open(folder.path(), ALL).unwrap();
    store.store(&original, b"model", &tokens).unwrap();
    assert_eq!(store.known_tokens(&shape, b"model", &tokens).unwrap(), 140);
    assert_eq!(store.known_tokens(&shape, b"model", &tokens[..95]).unwrap(), 64);
    assert_eq!(store.known_tokens(&shape, b"other", &tokens).unwrap(), 0);
    let mut whole = KvCache::new(shape, None).unwrap();
    store.fill(&mut whole, b"model", &tokens).unwrap();
    let mut stepwise = KvCache::new(shape, None).unwrap();
    for (asked, held) in [(64, 64), (70, 64), (100, 96), (140, 140), (140, 140)] {
        let found = store.fill(&mut stepwise, b"model", &tokens[..asked]).unwrap();
        assert_eq!((found.tokens, stepwise.tokens(0)), (held, held));
    }
    assert_eq!(all_contents(&stepwise), all_contents(&whole));
    // The search continues after missing first pages.
    let of_pages = |path: &PathBuf| fs::read(path).unwrap().starts_with(b"RIFFLEPB");
    fs::remove_file(blocks(folder.path()).into_iter().find(of_pages).unwrap()).unwrap();
    let mut first = KvCache::new(shape, None).unwrap();
    let found = store.fill(&mut first, b"model", &tokens).unwrap();
    assert_eq!(found.damaged_blocks, 1);
    let held = found.tokens;
    let mut ahead = cache(shape, 3, 140);
    ahead.truncate(held + 32);
    assert_eq!(store.fill(&mut ahead, b"model", &tokens).unwrap().tokens, 140);
    assert_eq!(all_contents(&ahead), all_contents(&whole));
}

#[test]
fn the_files_of_whole_pages_are_those_that_earlier_versions_wrote() {
    let shape = CacheShape {
        value_format: Format::Q8_0,
        ..shape(32, Format::F16)
    };
    let folder = tempfile::tempdir().unwrap();
    let store = PrefixCache::open(folder.path(), ALL).unwrap();
    let kept = store
        .store_with_note(&cache(shape, 3, 64), b"model", &text(1, 64), b"state")
        .unwrap();
    assert_eq!((kept.tokens, kept.new_blocks), (64, 2));
    let mut hash = XxHash3_128::new();
    for path in blocks(folder.path()) {
        hash.write(path.file_name().unwrap().as_encoded_bytes());
        hash.write(&fs::read(path).unwrap());
    }
    assert_eq!(hash.finish_128(), 70_295_426_298_653_643_420_182_565_667_956_364_821);
}
