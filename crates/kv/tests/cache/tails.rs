//! Tails (tokens of a partial page): exact to the bit, one per block, within the budget, and not reported to
//! listeners.

use std::fs;
use std::path::{Path, PathBuf};

use crate::prefix::{ALL, blocks, bytes, cache, found, text};
use crate::testing::{all_contents, append_all, mixed_shape, shape};
use riffle_attention::Format;
use riffle_kv::{CacheShape, KvCache, PrefixCache, PrefixListing};

/// The files of tails.
fn tails(folder: &Path) -> Vec<PathBuf> {
    let mut tails = blocks(folder);
    tails.retain(|path| fs::read(path).unwrap().starts_with(b"RIFFLEPT"));
    tails
}

/// Stores a text that was read, with an answer after it.
fn keep(store: &PrefixCache, shape: CacheShape, salt: u64, tokens: &[u32]) -> usize {
    let held = cache(shape, salt, tokens.len() + 5);
    store.store(&held, b"model", tokens).unwrap().tokens
}

#[test]
fn a_text_is_found_again_to_its_last_token_and_goes_on_with_the_same_bits() {
    let formats = [
        (Format::F16, Format::F16),
        (Format::Q8_0, Format::Q8_0),
        (Format::Q4_0, Format::Q4_0),
        (Format::F32, Format::Q8_0),
    ];
    for (key_format, value_format) in formats {
        for shape in [shape(32, Format::F16), mixed_shape(32, Format::F16)] {
            let shape = CacheShape {
                key_format,
                value_format,
                ..shape
            };
            // Texts shorter than a page, tails of one token, tails of a page without its last token, and lengths near
            // stripes of 16 tokens.
            for length in [1, 16, 31, 33, 64 + 15, 64 + 17, 64 + 31] {
                let folder = tempfile::tempdir().unwrap();
                let store = PrefixCache::open(folder.path(), ALL).unwrap();
                let tokens = text(1, length);
                assert_eq!(keep(&store, shape, 3, &tokens), length);
                assert_eq!(store.known_tokens(&shape, b"model", &tokens).unwrap(), length);
                assert_eq!(store.known_tokens(&shape, b"other", &tokens).unwrap(), 0);
                let (mut filled, kept, damaged) = found(&store, shape, b"model", &tokens);
                assert_eq!((kept, damaged), (length, 0), "{shape:?}");
                let mut expected = cache(shape, 3, length);
                assert_eq!(all_contents(&filled), all_contents(&expected), "{shape:?} {length}");
                for cache in [&mut filled, &mut expected] {
                    append_all(cache, 3, 40);
                }
                assert_eq!(all_contents(&filled), all_contents(&expected), "{shape:?} {length}");
                let hashes = |cache: &KvCache| -> Vec<_> {
                    let pages = 0..(length + 40).div_ceil(32);
                    pages.map(|page| cache.page_hash(1, 0, page).unwrap()).collect()
                };
                assert_eq!(hashes(&filled), hashes(&expected));
            }
        }
    }
}

#[test]
fn a_text_that_parts_from_a_tail_takes_the_tokens_that_both_begin_with() {
    for format in [Format::F16, Format::Q4_0] {
        let folder = tempfile::tempdir().unwrap();
        let shape = shape(32, format);
        let store = PrefixCache::open(folder.path(), ALL).unwrap();
        let tokens = text(1, 90);
        keep(&store, shape, 3, &tokens);
        for differs_at in [64, 65, 70, 80, 89] {
            let mut other = [&tokens[..], &text(7, 40)].concat();
            other[differs_at] += 1;
            let (filled, kept, _) = found(&store, shape, b"model", &other);
            assert_eq!(kept, differs_at);
            assert_eq!(all_contents(&filled), all_contents(&cache(shape, 3, differs_at)));
        }
        // Texts that end with the page or within the tail.
        for asked in [64, 66] {
            assert_eq!(found(&store, shape, b"model", &tokens[..asked]).1, asked);
        }
        // A text that differs before the last page finds no tail.
        let mut other = tokens.clone();
        other[40] += 1;
        assert_eq!(found(&store, shape, b"model", &other).1, 32);
    }
}

#[test]
fn nothing_of_what_follows_a_tail_in_its_page_reaches_the_disk() {
    for format in [Format::F32, Format::F16, Format::Q8_0, Format::Q4_0] {
        let shape = mixed_shape(32, format);
        let tokens = text(1, 41);
        let files = [None, Some(50), Some(60)].map(|follows| {
            let folder = tempfile::tempdir().unwrap();
            let mut held = cache(shape, 3, 41);
            if let Some(salt) = follows {
                append_all(&mut held, salt, 22);
            }
            let store = PrefixCache::open(folder.path(), ALL).unwrap();
            store.store(&held, b"model", &tokens).unwrap();
            blocks(folder.path())
                .iter()
                .map(|path| fs::read(path).unwrap())
                .collect::<Vec<_>>()
        });
        assert_eq!(files[0].len(), 2);
        assert!(files[0] == files[1] && files[0] == files[2], "{format:?}");
    }
}

#[test]
fn a_block_has_one_tail_of_the_newest_text_unless_an_older_one_holds_that_whole() {
    let folder = tempfile::tempdir().unwrap();
    let shape = shape(32, Format::F16);
    let store = PrefixCache::open(folder.path(), ALL).unwrap();
    let (first, mut second) = (text(1, 60), text(1, 60));
    second[40] += 1;
    let known = |tokens: &[u32]| store.known_tokens(&shape, b"model", tokens).unwrap();
    keep(&store, shape, 3, &first[..50]);
    // A longer tail replaces the stored tail; a beginning of the stored tail does not.
    keep(&store, shape, 3, &first[..58]);
    assert_eq!((known(&first), tails(folder.path()).len()), (58, 1));
    let before = fs::read(&tails(folder.path())[0]).unwrap();
    assert_eq!(keep(&store, shape, 3, &first[..45]), 45);
    assert!(fs::read(&tails(folder.path())[0]).unwrap() == before);
    assert_eq!(known(&first), 58);
    // A tail of a newer text replaces it, although it is shorter.
    keep(&store, shape, 4, &second[..45]);
    assert_eq!((known(&first), known(&second), tails(folder.path()).len()), (40, 45, 1));
    let stored = store.store(&cache(shape, 4, 45), b"model", &second[..45]).unwrap();
    assert_eq!(stored.bytes, bytes(folder.path()));
    assert_eq!((stored.new_blocks, stored.removed_blocks), (0, 0));
}

#[test]
fn a_whole_page_takes_the_place_of_the_tail_that_it_begins_with() {
    let folder = tempfile::tempdir().unwrap();
    let shape = shape(32, Format::F16);
    let store = PrefixCache::open(folder.path(), ALL).unwrap();
    let tokens = text(1, 96);
    let mut other = tokens.clone();
    other[40] += 1;
    // A text with another end keeps its own tail.
    keep(&store, shape, 4, &other[..50]);
    keep(&store, shape, 3, &tokens[..64]);
    assert_eq!(tails(folder.path()).len(), 1);
    assert_eq!(store.known_tokens(&shape, b"model", &other).unwrap(), 50);
    keep(&store, shape, 3, &tokens[..70]);
    assert_eq!(tails(folder.path()).len(), 2);
    let stored = store.store(&cache(shape, 3, 96), b"model", &tokens).unwrap();
    assert_eq!((tails(folder.path()).len(), stored.bytes), (1, bytes(folder.path())));
    assert_eq!(store.known_tokens(&shape, b"model", &tokens).unwrap(), 96);
}

#[test]
fn tails_keep_to_the_budget_and_leave_before_their_block() {
    let shape = shape(16, Format::F16);
    let size = |tokens: usize| {
        let folder = tempfile::tempdir().unwrap();
        let store = PrefixCache::open(folder.path(), ALL).unwrap();
        store
            .store(&cache(shape, 1, tokens), b"model", &text(1, tokens))
            .unwrap()
            .bytes
    };
    let (block, tail) = (size(16), size(25) - size(16));
    let folder = tempfile::tempdir().unwrap();
    let all = bytes;
    // The budget has room for the pages but not for the tail.
    let store = PrefixCache::open(folder.path(), 2 * block + tail - 1).unwrap();
    assert_eq!(keep(&store, shape, 1, &text(1, 41)), 32);
    assert_eq!(all(folder.path()), 2 * block);
    let store = PrefixCache::open(folder.path(), 2 * block + 2 * tail).unwrap();
    assert_eq!(keep(&store, shape, 1, &text(1, 41)), 41);
    let stored = store.store(&cache(shape, 2, 9), b"model", &text(2, 9)).unwrap();
    assert_eq!((stored.removed_blocks, stored.bytes), (0, 2 * block + 2 * tail));
    // The first text is the least recently used, and is removed from its end.
    let stored = store.store(&cache(shape, 2, 9), b"other", &text(2, 9)).unwrap();
    assert_eq!((stored.removed_blocks, stored.bytes), (1, 2 * block + 2 * tail));
    assert_eq!(all(folder.path()), stored.bytes);
    let known = |identity: &[u8], tokens: &[u32]| store.known_tokens(&shape, identity, tokens).unwrap();
    assert_eq!(known(b"model", &text(1, 41)), 32);
    assert_eq!((known(b"model", &text(2, 9)), known(b"other", &text(2, 9))), (9, 9));
    // A lookup counts as a use of the tail.
    assert_eq!(found(&store, shape, b"model", &text(2, 9)).1, 9);
    assert_eq!(found(&store, shape, b"model", &text(1, 41)).1, 32);
    let stored = store.store(&cache(shape, 5, 9), b"third", &text(5, 9)).unwrap();
    assert_eq!(stored.removed_blocks, 1);
    assert_eq!((known(b"model", &text(2, 9)), known(b"other", &text(2, 9))), (9, 0));
}

#[test]
fn a_damaged_tail_is_removed_and_never_used() {
    let folder = tempfile::tempdir().unwrap();
    let shape = shape(32, Format::Q8_0);
    let store = PrefixCache::open(folder.path(), ALL).unwrap();
    let (tokens, others) = (text(1, 50), text(2, 50));
    for damage in 0..60 {
        keep(&store, shape, 3, &tokens);
        keep(&store, shape, 4, &others);
        let all = tails(folder.path());
        assert_eq!(all.len(), 2);
        let mine = |path: &&PathBuf| {
            let first = fs::read(path).unwrap()[52..56].to_vec();
            first == tokens[32].to_le_bytes()
        };
        let path = all.iter().find(mine).unwrap();
        let mut content = fs::read(path).unwrap();
        match damage % 5 {
            0 => content.truncate(content.len() * damage / 60),
            1 => content.push(0),
            // A complete tail of another block.
            2 => content = fs::read(all.iter().find(|path| !mine(path)).unwrap()).unwrap(),
            // The header, or its number of tokens.
            3 => content[damage] ^= 1 << (damage % 8),
            _ => {
                let at = content.len() * damage / 60;
                content[at] ^= 1 << (damage % 8);
            }
        }
        fs::write(path, &content).unwrap();
        assert!(store.known_tokens(&shape, b"model", &tokens).unwrap() <= 50);
        let (filled, kept, damaged) = found(&store, shape, b"model", &tokens);
        assert_eq!((kept, damaged), (32, 1), "damage {damage}");
        assert_eq!(all_contents(&filled), all_contents(&cache(shape, 3, 32)));
        assert_eq!((found(&store, shape, b"model", &tokens).2, path.exists()), (0, false));
    }
    // A missing tail, and an unindexed tail of a dead process.
    keep(&store, shape, 3, &tokens);
    let path = tails(folder.path()).pop().unwrap();
    let content = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let lost = [&tokens, &others].map(|tokens| found(&store, shape, b"model", tokens).1);
    assert_eq!(lost.iter().sum::<usize>(), 32 + 50);
    let left_behind = folder.path().join(format!("{:032x}.block", 7));
    fs::write(&left_behind, content).unwrap();
    keep(&store, shape, 3, &tokens);
    assert!(!left_behind.exists());
    assert_eq!(found(&store, shape, b"model", &tokens).1, 50);
}

#[test]
fn a_damaged_tail_makes_room_for_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let shape = shape(32, Format::F16);
    let store = PrefixCache::open(folder.path(), ALL).unwrap();
    let tokens = text(1, 70);
    for kept in [50, 70] {
        keep(&store, shape, 3, &tokens[..50]);
        // With another number of tokens the header is unreadable.
        let path = tails(folder.path()).pop().unwrap();
        let mut content = fs::read(&path).unwrap();
        content[48..52].fill(0xff);
        fs::write(&path, content).unwrap();
        assert_eq!(store.known_tokens(&shape, b"model", &tokens).unwrap(), 32);
        assert_eq!(keep(&store, shape, 3, &tokens[..kept]), kept);
        assert_eq!(
            (tails(folder.path()).len(), found(&store, shape, b"model", &tokens).1),
            (1, kept)
        );
    }
}

#[test]
fn a_cache_that_holds_a_page_in_part_is_filled_anew_from_there() {
    let folder = tempfile::tempdir().unwrap();
    let shape = mixed_shape(32, Format::Q4_0);
    let store = PrefixCache::open(folder.path(), ALL).unwrap();
    let tokens = text(1, 90);
    keep(&store, shape, 3, &tokens);
    let mut filled = KvCache::new(shape, None).unwrap();
    for (asked, held) in [(40, 32), (70, 70), (64, 64), (90, 90), (90, 90)] {
        let found = store.fill(&mut filled, b"model", &tokens[..asked]).unwrap();
        assert_eq!((found.tokens, filled.tokens(0)), (held, held));
        assert_eq!(all_contents(&filled), all_contents(&cache(shape, 3, held)));
    }
    // Without room for the tail, the cache keeps its whole pages.
    let mut small = KvCache::new(shape, Some(shape.bytes_for(64))).unwrap();
    append_all(&mut small, 3, 64);
    assert!(store.fill(&mut small, b"model", &tokens).is_err());
    assert_eq!(all_contents(&small), all_contents(&cache(shape, 3, 64)));
}

#[test]
fn a_listing_tells_nothing_of_tails() {
    let folder = tempfile::tempdir().unwrap();
    let shape = shape(16, Format::F16);
    let store = PrefixCache::open(folder.path(), ALL).unwrap();
    let mut listing = PrefixListing::new(&shape, b"model", false);
    keep(&store, shape, 3, &text(1, 9));
    assert!(listing.refresh(&store).unwrap().is_empty());
    keep(&store, shape, 3, &text(1, 32));
    assert_eq!(listing.refresh(&store).unwrap().len(), 2);
    for length in [33, 47] {
        keep(&store, shape, 3, &text(1, length));
        assert!(listing.refresh(&store).unwrap().is_empty());
    }
    keep(&store, shape, 3, &text(1, 48));
    assert_eq!(listing.refresh(&store).unwrap().len(), 1);
}
