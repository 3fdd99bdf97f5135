//! Blocks in a shared store: exact to the bit or absent, whatever faults the store has.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use riffle_attention::Format;
use riffle_kv::{CacheShape, FetchRequest, KvCache, LayerShape, LayerShapes, SharedBlocks, SharedOptions};

use crate::testing::{all_contents, append_all, shape};
use riffle_testing::store::{FakeStore, Fault, Operation};

const PAGE: usize = 32;
const IDENTITY: &[u8] = b"model";

fn text(salt: u32, length: usize) -> Vec<u32> {
    (0..length as u32).map(|i| (i * 7919 + salt) % 1000).collect()
}

fn cache(shape: CacheShape, salt: u64, tokens: usize) -> KvCache {
    let mut cache = KvCache::new(shape, None).unwrap();
    append_all(&mut cache, salt, tokens);
    cache
}

/// Blocks with several slices: two layers of 200 KB each, and a header.
fn large_shape() -> CacheShape {
    CacheShape {
        layers: LayerShapes::alike(5, LayerShape::new(2, 128)),
        page_tokens: 256,
        key_format: Format::F32,
        value_format: Format::F16,
    }
}

fn quick() -> SharedOptions {
    SharedOptions {
        operation_time: Duration::from_millis(200),
        ..SharedOptions::default()
    }
}

fn open(store: &FakeStore, options: SharedOptions) -> SharedBlocks {
    SharedBlocks::open(Arc::new(store.clone()), options).unwrap()
}

fn publish(shared: &SharedBlocks, cache: &KvCache, tokens: &[u32]) {
    let mut from = 0;
    let most = tokens.len() / cache.shape().page_tokens * cache.shape().page_tokens;
    while from < most {
        from = shared.publish(cache, IDENTITY, tokens, from, 1 << 20).unwrap();
        assert!(shared.flush(Duration::from_secs(20)));
    }
}

/// Fetches into an empty cache. Returns the cache cut to its complete part, and the duration.
fn fetched(shared: &SharedBlocks, shape: CacheShape, tokens: &[u32]) -> (KvCache, Duration) {
    let mut cache = KvCache::new(shape, None).unwrap();
    let took = fetch_into(shared, &mut cache, tokens);
    (cache, took)
}

fn fetch_into(shared: &SharedBlocks, cache: &mut KvCache, tokens: &[u32]) -> Duration {
    let began = Instant::now();
    let mut fetch = shared.fetch(&FetchRequest {
        shape: *cache.shape(),
        identity: IDENTITY,
        tokens,
        held_tokens: cache.tokens(0),
        wants_note: false,
    });
    while !fetch.fill(cache, 1 << 20).unwrap() {
        fetch.wait(Duration::from_secs(1));
        assert!(began.elapsed() < Duration::from_secs(30), "the fetch hangs");
    }
    cache.truncate(fetch.whole_tokens(cache));
    began.elapsed()
}

/// True if a cache holds exactly the first tokens of the original.
fn is_beginning_of(filled: &KvCache, salt: u64) -> bool {
    let tokens = filled.tokens(0);
    let mut expected = cache(*filled.shape(), salt, tokens.max(1));
    expected.truncate(tokens);
    all_contents(filled) == all_contents(&expected)
}

#[test]
fn what_one_publishes_another_adopts_to_the_bit_and_only_for_the_same_text_and_origin() {
    for shape in [shape(PAGE, Format::F16), shape(PAGE, Format::Q8_0), large_shape()] {
        let (store, page) = (FakeStore::default(), shape.page_tokens);
        let tokens = text(1, 5 * page + 7);
        publish(&open(&store, quick()), &cache(shape, 3, 5 * page + 7), &tokens);
        let shared = open(&store, quick());
        let (filled, _) = fetched(&shared, shape, &tokens);
        assert_eq!(filled.tokens(0), 5 * page);
        assert!(is_beginning_of(&filled, 3));
        for differs_at in [0, page - 1, page, 5 * page] {
            let mut other = tokens.clone();
            other[differs_at] += 1;
            let (filled, _) = fetched(&shared, shape, &other);
            assert_eq!(filled.tokens(0), (differs_at / page * page).min(5 * page));
            assert!(is_beginning_of(&filled, 3));
        }
        let mut fetch = shared.fetch(&FetchRequest {
            shape,
            identity: b"other model",
            tokens: &tokens,
            held_tokens: 0,
            wants_note: false,
        });
        let mut empty = KvCache::new(shape, None).unwrap();
        while !fetch.fill(&mut empty, 1 << 20).unwrap() {
            fetch.wait(Duration::from_secs(1));
        }
        assert_eq!((empty.tokens(0), fetch.expected_tokens()), (0, Some(0)));
    }
}

#[test]
fn a_fetch_goes_on_from_what_the_cache_holds() {
    let (store, shape) = (FakeStore::default(), shape(PAGE, Format::F16));
    let tokens = text(1, 6 * PAGE);
    let shared = open(&store, quick());
    publish(&shared, &cache(shape, 3, 6 * PAGE), &tokens);
    let mut filled = cache(shape, 3, 2 * PAGE);
    fetch_into(&shared, &mut filled, &tokens);
    assert_eq!(filled.tokens(0), 6 * PAGE);
    assert!(is_beginning_of(&filled, 3));
    // Only slices of the other four blocks were requested.
    assert_eq!(store.count(Operation::Get), 4);
}

#[test]
fn the_length_is_found_with_few_questions_whatever_it_is() {
    let (store, shape) = (FakeStore::default(), shape(16, Format::F16));
    let tokens = text(1, 40 * 16);
    let (mut publisher, empty) = (open(&store, quick()), store.copy());
    let original = cache(shape, 3, 40 * 16);
    for names in [1, 2, 7, 100] {
        store.ask_few_at_a_time(names);
        for blocks in [0, 1, 2, 17, 39, 40] {
            publish(&publisher, &original, &tokens[..blocks * 16]);
            let before = store.count(Operation::Contains);
            let (filled, _) = fetched(&open(&store, quick()), shape, &tokens);
            assert_eq!(filled.tokens(0) / 16, blocks.max(store.names().len()), "{names} names");
            assert!(store.count(Operation::Contains) - before <= 7);
        }
        store.restore(&empty);
        // A process that does not know removed blocks writes them again.
        publisher = open(&store, quick());
    }
}

#[test]
fn damaged_and_cut_blocks_are_counted_never_used_and_written_anew() {
    let (store, shape) = (FakeStore::default(), large_shape());
    let page = shape.page_tokens;
    let tokens = text(1, 4 * page);
    let original = cache(shape, 3, 4 * page);
    publish(&open(&store, quick()), &original, &tokens);
    let whole = store.copy();
    let spoils: [fn(&mut Vec<u8>); 4] = [
        |bytes| bytes[1000] ^= 1,
        |bytes| bytes.truncate(bytes.len() / 2),
        Vec::clear,
        |bytes| bytes.resize(bytes.len() + (4 << 20), 0),
    ];
    for (number, spoil) in spoils.into_iter().enumerate() {
        for name in whole.keys() {
            store.change(name, spoil);
            let shared = open(&store, quick());
            let (filled, _) = fetched(&shared, shape, &tokens);
            assert!(filled.tokens(0) < 4 * page, "spoil {number} of {name}");
            assert!(is_beginning_of(&filled, 3));
            assert_eq!(shared.counts().bad_blocks, 1, "spoil {number} of {name}");
            let notices = shared.take_notices();
            assert!(
                notices.len() == 1 && notices[0].contains("fake://store is damaged"),
                "{notices:?}"
            );
            // A process that has read the text overwrites the bad block.
            publish(&shared, &original, &tokens);
            let (filled, _) = fetched(&open(&store, quick()), shape, &tokens);
            assert_eq!(filled.tokens(0), 4 * page);
            store.restore(&whole);
        }
    }
}

#[test]
fn bits_that_flip_and_bytes_that_end_on_the_way_are_never_used() {
    let (store, shape) = (FakeStore::default(), shape(PAGE, Format::F16));
    let tokens = text(1, 6 * PAGE);
    publish(&open(&store, quick()), &cache(shape, 3, 6 * PAGE), &tokens);
    for fault in [Fault::Flipped(12345), Fault::Cut(5000)] {
        for bad in 0..6 {
            let (gets, fault) = (AtomicUsize::new(0), fault.clone());
            store.set_faults(move |operation, _| match operation {
                Operation::Get if gets.fetch_add(1, Ordering::Relaxed) == bad => fault.clone(),
                _ => Fault::None,
            });
            let shared = open(&store, quick());
            let (filled, _) = fetched(&shared, shape, &tokens);
            assert!(is_beginning_of(&filled, 3) && filled.tokens(0) < 6 * PAGE);
            assert_eq!(shared.counts().bad_blocks, 1);
        }
    }
}

#[test]
fn a_store_that_gives_the_bytes_of_another_block_is_found_out() {
    let (store, shape) = (FakeStore::default(), shape(PAGE, Format::F16));
    let tokens = text(1, 6 * PAGE);
    publish(&open(&store, quick()), &cache(shape, 3, 6 * PAGE), &tokens);
    let mine = store.names();
    publish(&open(&store, quick()), &cache(shape, 4, PAGE), &text(2, PAGE));
    let foreign = store.names().into_iter().find(|name| !mine.contains(name)).unwrap();
    for (other, most_tokens) in [(&mine[2], PAGE), (&foreign, 0)] {
        let given = other.clone();
        store.set_faults(move |operation, _| match operation {
            Operation::Get => Fault::Other(given.clone()),
            _ => Fault::None,
        });
        let (filled, _) = fetched(&open(&store, quick()), shape, &tokens);
        assert!(filled.tokens(0) <= most_tokens && is_beginning_of(&filled, 3));
    }
    // A store with repeated wrong blocks is skipped like a failing one. With one thread each fetch sees one bad
    // block. The count of failures lasts, but the pause may already be over on a busy machine.
    let shared = open(&store, SharedOptions { parallel: 1, ..quick() });
    for failures in [0, 0, 1] {
        fetched(&shared, shape, &tokens);
        assert_eq!(shared.counts().failures, failures);
    }
    assert_eq!(shared.counts().bad_blocks, 3);
    assert!(shared.take_notices()[1].contains("prompts are read here"));
}

#[test]
fn a_store_that_is_slow_or_gone_costs_one_operation_then_nothing() {
    let (store, shape) = (FakeStore::default(), shape(PAGE, Format::F16));
    let tokens = text(1, 6 * PAGE);
    publish(&open(&store, quick()), &cache(shape, 3, 6 * PAGE), &tokens);
    for fault in [Fault::Slow(Duration::from_secs(3600)), Fault::Fails] {
        let given = fault.clone();
        store.set_faults(move |_, _| given.clone());
        let shared = open(&store, quick());
        let asked = store.count(Operation::Contains);
        // The pause lasts 2 seconds from the failure; a slow machine may miss it.
        let began = Instant::now();
        for _ in 0..20 {
            let (filled, _) = fetched(&shared, shape, &tokens);
            assert_eq!(filled.tokens(0), 0);
        }
        let (counts, can_publish) = (shared.counts(), shared.can_publish(&shape));
        let asked = store.count(Operation::Contains) - asked;
        if began.elapsed() < Duration::from_secs(2) {
            assert!(asked == 1 && counts.is_paused && !can_publish, "{asked}");
        }
        let notices = shared.take_notices();
        assert_eq!(notices.len(), 1, "{notices:?}");
        assert!(notices[0].contains("prompts are read here"));
        // After the pause the store is tried again, and a notice says that it works.
        store.set_faults(|_, _| Fault::None);
        while fetched(&shared, shape, &tokens).0.tokens(0) < 6 * PAGE {
            assert!(began.elapsed() < Duration::from_secs(150), "it is not tried again");
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(shared.take_notices(), ["fake://store works again"]);
    }
}

#[test]
fn a_fetch_that_fails_half_way_leaves_the_whole_blocks_before() {
    let (store, shape) = (FakeStore::default(), large_shape());
    let page = shape.page_tokens;
    let tokens = text(1, 8 * page);
    publish(&open(&store, quick()), &cache(shape, 3, 8 * page), &tokens);
    for after in 0..30 {
        let gets = AtomicUsize::new(0);
        store.set_faults(move |operation, _| match operation {
            Operation::Get if gets.fetch_add(1, Ordering::Relaxed) >= after => Fault::Fails,
            _ => Fault::None,
        });
        let (filled, _) = fetched(&open(&store, quick()), shape, &tokens);
        assert!(is_beginning_of(&filled, 3), "after {after}");
        assert!(filled.tokens(0) <= after / 4 * page);
    }
}

#[test]
fn a_full_queue_and_a_paused_store_never_block_the_publisher() {
    let (store, shape) = (FakeStore::default(), shape(PAGE, Format::F16));
    let block = shape.bytes_for(PAGE) as usize;
    let tokens = text(1, 10 * PAGE);
    let original = cache(shape, 3, 10 * PAGE);
    store.set_faults(|_, _| Fault::Slow(Duration::from_secs(3600)));
    let options = SharedOptions {
        publish_bytes: 3 * block,
        operation_time: Duration::from_secs(1),
        ..SharedOptions::default()
    };
    let shared = open(&store, options);
    let began = Instant::now();
    let offered = shared.publish(&original, IDENTITY, &tokens, 0, usize::MAX).unwrap();
    assert_eq!(offered, 3 * PAGE);
    assert_eq!(
        shared
            .publish(&original, IDENTITY, &tokens, offered, usize::MAX)
            .unwrap(),
        offered
    );
    // Publishing did not wait for the store, whose first operation takes a second.
    assert!(began.elapsed() < Duration::from_secs(1) && !shared.can_publish(&shape));
    assert_eq!(shared.counts().queued_bytes, 3 * block as u64);
    assert!(!shared.flush(Duration::from_millis(1500)) && shared.counts().failures > 0);
    // Queued blocks are written after the store works again.
    store.set_faults(|_, _| Fault::None);
    assert!(shared.flush(Duration::from_secs(20)));
    assert_eq!(store.names().len(), 3);
    assert_eq!(shared.counts().queued_bytes, 0);
}

#[test]
fn blocks_that_are_there_are_not_written_again() {
    let (store, shape) = (FakeStore::default(), shape(PAGE, Format::F16));
    let tokens = text(1, 4 * PAGE);
    let original = cache(shape, 3, 4 * PAGE);
    let (first, second) = (open(&store, quick()), open(&store, quick()));
    publish(&first, &original, &tokens);
    publish(&first, &original, &tokens);
    publish(&second, &original, &tokens);
    assert_eq!(store.count(Operation::Put), 4);
    assert_eq!((first.counts().published, second.counts().published), (4, 0));
    assert_eq!(second.counts().already_there, 4);
}

#[test]
fn who_waits_gets_blocks_as_another_publishes_them_and_gives_up_after_the_wait() {
    let (store, shape) = (FakeStore::default(), shape(PAGE, Format::F16));
    let tokens = text(1, 6 * PAGE);
    let original = cache(shape, 3, 6 * PAGE);
    // The wait is much longer than the publisher's pauses, so a slow machine is not counted as late.
    let wait = Duration::from_secs(3);
    let options = SharedOptions { wait, ..quick() };
    let publisher = open(&store, quick());
    let (waiting, others) = (open(&store, options), tokens.clone());
    let reader = thread::spawn(move || {
        let (filled, took) = fetched(&waiting, shape, &others);
        (filled.tokens(0), is_beginning_of(&filled, 3), took)
    });
    for blocks in 1..=4 {
        thread::sleep(Duration::from_millis(50));
        publish(&publisher, &original, &tokens[..blocks * PAGE]);
    }
    let (filled, is_right, took) = reader.join().unwrap();
    assert!(filled == 4 * PAGE && is_right);
    assert!(took > wait, "{took:?}");
    // Everything is available, so there is no wait.
    let (filled, took) = fetched(
        &open(&store, SharedOptions { wait, ..quick() }),
        shape,
        &tokens[..4 * PAGE],
    );
    assert!(filled.tokens(0) == 4 * PAGE && took < wait, "{took:?}");
}

#[test]
fn a_note_is_found_with_the_longest_beginning_that_has_one() {
    let (store, shape) = (FakeStore::default(), shape(PAGE, Format::F16));
    let tokens = text(1, 8 * PAGE);
    let original = cache(shape, 3, 8 * PAGE);
    let shared = open(&store, quick());
    publish(&shared, &original, &tokens);
    for pages in [3, 6] {
        assert!(shared.publish_note(&shape, IDENTITY, &tokens[..pages * PAGE], vec![pages as u8; 100]));
    }
    assert!(shared.flush(Duration::from_secs(20)));
    for wait in [Duration::ZERO, Duration::from_millis(300)] {
        let note_of = |tokens: &[u32]| {
            let shared = open(&store, SharedOptions { wait, ..quick() });
            let mut fetch = shared.fetch(&FetchRequest {
                shape,
                identity: IDENTITY,
                tokens,
                held_tokens: 0,
                wants_note: true,
            });
            let mut cache = KvCache::new(shape, None).unwrap();
            while !fetch.fill(&mut cache, 1 << 20).unwrap() {
                fetch.wait(Duration::from_secs(1));
            }
            let note = fetch.take_note();
            assert!(cache.tokens(0) >= note.as_ref().map_or(0, |(tokens, _)| *tokens));
            note
        };
        assert_eq!(note_of(&tokens), Some((6 * PAGE, vec![6; 100])));
        assert_eq!(note_of(&tokens[..5 * PAGE]), Some((3 * PAGE, vec![3; 100])));
        assert_eq!(note_of(&tokens[..2 * PAGE]), None);
    }
    // Instead of a damaged note the next shorter beginning is used.
    let note = store.names().into_iter().find(|name| name.ends_with("5.note")).unwrap();
    store.change(&note, |bytes| bytes[50] ^= 1);
    let mut fetch = shared.fetch(&FetchRequest {
        shape,
        identity: IDENTITY,
        tokens: &tokens,
        held_tokens: 0,
        wants_note: true,
    });
    let mut cache = KvCache::new(shape, None).unwrap();
    while !fetch.fill(&mut cache, 1 << 20).unwrap() {
        fetch.wait(Duration::from_secs(1));
    }
    assert_eq!(fetch.take_note(), Some((3 * PAGE, vec![3; 100])));
    assert_eq!(shared.counts().bad_blocks, 1);
}

#[test]
fn a_sweep_removes_the_old_then_the_ends_of_what_is_beyond_the_budget() {
    let (store, shape) = (FakeStore::default(), shape(PAGE, Format::F16));
    let publisher = open(&store, quick());
    publish(&publisher, &cache(shape, 3, 4 * PAGE), &text(1, 4 * PAGE));
    let first: HashSet<String> = store.names().into_iter().collect();
    let one = store.bytes() / 4;
    publish(&publisher, &cache(shape, 5, 4 * PAGE), &text(2, 4 * PAGE));
    let mine = first.clone();
    store.grow_older(Duration::from_secs(3 * 3600), move |name| mine.contains(name));
    let with = |budget_blocks: Option<u64>, expiry| {
        let options = SharedOptions {
            budget_bytes: budget_blocks.map(|blocks| blocks * one + one / 2),
            expiry,
            ..quick()
        };
        open(&store, options).sweep().unwrap()
    };
    assert_eq!(with(None, Some(Duration::from_secs(4 * 3600))).removed_blocks, 0);
    let swept = with(Some(6), None);
    assert_eq!((swept.removed_blocks, swept.bytes), (2, store.bytes()));
    // The first text lost its last blocks, and is found up to them.
    let tokens_of = |salt| {
        fetched(&open(&store, quick()), shape, &text(salt, 4 * PAGE))
            .0
            .tokens(0)
    };
    assert_eq!([tokens_of(1), tokens_of(2)], [2 * PAGE, 4 * PAGE]);
    assert_eq!(with(None, Some(Duration::from_secs(3600))).removed_blocks, 2);
    assert_eq!([tokens_of(1), tokens_of(2)], [0, 4 * PAGE]);
}

#[test]
fn the_first_layers_of_the_end_arrive_before_the_last_ones() {
    let (store, shape) = (FakeStore::default(), large_shape());
    let page = shape.page_tokens;
    let tokens = text(1, 8 * page);
    publish(&open(&store, quick()), &cache(shape, 3, 8 * page), &tokens);
    let shared = open(&store, SharedOptions { parallel: 1, ..quick() });
    let mut fetch = shared.fetch(&FetchRequest {
        shape,
        identity: IDENTITY,
        tokens: &tokens,
        held_tokens: 0,
        wants_note: false,
    });
    let mut cache = KvCache::new(shape, None).unwrap();
    let mut ready = Vec::new();
    while !fetch.fill(&mut cache, 1).unwrap() {
        ready.push((fetch.ready_layers(&cache), fetch.whole_tokens(&cache) / page));
        fetch.wait(Duration::from_secs(1));
    }
    // The first layers are ready while the last blocks are incomplete.
    assert!(
        ready
            .iter()
            .any(|(layers, blocks)| (1..5).contains(layers) && *blocks < 8),
        "{ready:?}"
    );
    assert!(ready.is_sorted());
    assert_eq!((fetch.ready_layers(&cache), fetch.whole_tokens(&cache)), (5, 8 * page));
    assert!(is_beginning_of(&cache, 3));
}
