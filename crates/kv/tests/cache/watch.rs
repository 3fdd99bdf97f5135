//! Changes reported by a pool and a prefix cache: a listener that applies them knows all contents and their tiers.

use std::collections::HashMap;
use std::path::Path;

use crate::testing::{append_all, shape};
use proptest::prelude::*;
use riffle_attention::Format;
use riffle_kv::{
    CacheShape, DiskTier, KvCache, KvTiers, ListingChange, Outlook, PagePool, PrefixCache, PrefixListing, RowChange,
    RowTier, TextBlock,
};

const PAGE: usize = 16;
const IDENTITY: &[u8] = b"model, full";

/// A subscriber's picture of a pool: the tier of each block.
type Picture = HashMap<u128, RowTier>;

fn apply(picture: &mut Picture, changes: Vec<RowChange>) {
    for change in changes {
        match change {
            RowChange::Known { block, tier } => {
                assert!(picture.insert(block.key, tier).is_none(), "a known row is told once");
            }
            RowChange::Moved { key, from, to } => assert_eq!(picture.insert(key, to), Some(from)),
            RowChange::Forgotten { key, tier } => assert_eq!(picture.remove(&key), Some(tier)),
        }
    }
}

/// The tiers of the rows of `text` that a new sequence can share, according to the pool.
fn held(pool: &PagePool, text: &[u32]) -> Vec<RowTier> {
    let mut cache = pool.cache();
    let rows = cache.adopt(IDENTITY, text) / PAGE;
    (0..rows).map(|row| cache.row_tier(row).unwrap()).collect()
}

/// The tiers according to a listener.
fn expected(picture: &Picture, text: &[u32]) -> Vec<RowTier> {
    let blocks = TextBlock::chain(PAGE, text);
    blocks.map_while(|block| picture.get(&block.key).copied()).collect()
}

/// Texts with common beginnings, in pairs and in fours.
fn texts() -> Vec<Vec<u32>> {
    (0..4u32)
        .map(|text| {
            (0..160u32)
                .map(|at| at * 7 % 101 + if at >= 80 { text * 1000 } else { text / 2 * 500 })
                .collect()
        })
        .collect()
}

fn salt(text: usize) -> u64 {
    10 * text as u64
}

#[derive(Debug, Clone)]
enum Step {
    Begin(usize),
    Append(usize, usize),
    Share(usize),
    ShareUnderAnother(usize),
    Truncate(usize, usize),
    Fork(usize),
    Park(usize),
    Evict(usize),
    Drop(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let place = 0..6usize;
    prop_oneof![
        2 => (0..4usize).prop_map(Step::Begin),
        4 => (place.clone(), 1..50usize).prop_map(|(place, count)| Step::Append(place, count)),
        4 => place.clone().prop_map(Step::Share),
        1 => place.clone().prop_map(Step::ShareUnderAnother),
        1 => (place.clone(), 0..160usize).prop_map(|(place, tokens)| Step::Truncate(place, tokens)),
        1 => place.clone().prop_map(Step::Fork),
        2 => place.clone().prop_map(Step::Park),
        1 => place.clone().prop_map(Step::Evict),
        1 => place.prop_map(Step::Drop),
    ]
}

fn tiers(folder: &Path, shape: &CacheShape) -> KvTiers {
    let mut tiers = KvTiers {
        disk: Some(DiskTier {
            folder: folder.to_owned(),
            budget_bytes: None,
        }),
        slots: 2,
        outlook: Outlook {
            context_tokens: 200,
            append_tokens: 50,
            sequences: 8,
            ..Outlook::default()
        },
        ..KvTiers::memory(None)
    };
    tiers.ram_budget_bytes = Some(tiers.least_near_bytes(shape) + 8 * shape.page_bytes(0));
    tiers
}

/// A sequence, its text, and true if it still holds the whole text.
struct Sequence {
    cache: KvCache,
    text: usize,
    is_whole: bool,
}

#[allow(clippy::too_many_lines, reason = "one arm for each kind of step")]
fn take(sequences: &mut Vec<Sequence>, pool: &PagePool, texts: &[Vec<u32>], step: Step) {
    let count = sequences.len();
    let at = |place: usize| (count > 0).then(|| place % count.max(1));
    match step {
        Step::Begin(text) if count < 6 => {
            let mut cache = pool.cache();
            cache.adopt(IDENTITY, &texts[text]);
            sequences.push(Sequence {
                cache,
                text,
                is_whole: true,
            });
        }
        Step::Begin(_) => {}
        Step::Append(place, tokens) => {
            let Some(place) = at(place) else { return };
            let Sequence { cache, text, is_whole } = &mut sequences[place];
            let tokens = tokens.min(160 - cache.tokens(0).min(160));
            if tokens > 0 && *is_whole {
                append_all(cache, salt(*text), tokens);
            }
        }
        Step::Share(place) => {
            let Some(place) = at(place) else { return };
            let Sequence { cache, text, is_whole } = &mut sequences[place];
            if *is_whole {
                let tokens = cache.tokens(0);
                cache.share(IDENTITY, &texts[*text][..tokens]);
            }
        }
        Step::ShareUnderAnother(place) => {
            let Some(place) = at(place) else { return };
            let Sequence { cache, text, is_whole } = &mut sequences[place];
            if *is_whole {
                let tokens = cache.tokens(0);
                cache.share(b"model, streaming", &texts[*text][..tokens]);
            }
        }
        Step::Truncate(place, tokens) => {
            let Some(place) = at(place) else { return };
            sequences[place].cache.truncate(tokens);
        }
        Step::Fork(place) if count < 6 => {
            let Some(place) = at(place) else { return };
            let Sequence { cache, text, is_whole } = &sequences[place];
            let (text, is_whole, cache) = (*text, *is_whole, cache.fork());
            sequences.push(Sequence { cache, text, is_whole });
        }
        Step::Fork(_) => {}
        Step::Park(place) => {
            let Some(place) = at(place) else { return };
            sequences[place].cache.park().unwrap();
        }
        Step::Evict(place) => {
            let Some(place) = at(place) else { return };
            let Sequence { cache, is_whole, .. } = &mut sequences[place];
            if *is_whole && cache.tokens(0) > 40 {
                *is_whole = false;
                let end = cache.tokens(0);
                let kept: Vec<usize> = (0..5).chain(23..end).collect();
                let shape = *cache.shape();
                for table in 0..shape.layers.count() * shape.layer(0).kv_heads {
                    cache
                        .retain(table / shape.layer(0).kv_heads, table % shape.layer(0).kv_heads, &kept)
                        .unwrap();
                }
            }
        }
        Step::Drop(place) => {
            let Some(place) = at(place) else { return };
            sequences.remove(place);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_subscriber_knows_after_every_step_what_a_pool_holds_and_where(steps in prop::collection::vec(step(), 1..60)) {
        let folder = tempfile::tempdir().unwrap();
        let shape = shape(PAGE, Format::Q8_0);
        let pool = PagePool::new(shape, tiers(folder.path(), &shape)).unwrap();
        pool.watch_rows(IDENTITY);
        let (texts, mut sequences, mut picture) = (texts(), Vec::new(), Picture::new());
        for step in steps {
            take(&mut sequences, &pool, &texts, step);
            apply(&mut picture, pool.take_row_changes());
            for text in &texts {
                prop_assert_eq!(expected(&picture, text), held(&pool, text));
            }
            // The lookup changed nothing.
            prop_assert_eq!(pool.take_row_changes(), Vec::new());
        }
        drop(sequences);
        apply(&mut picture, pool.take_row_changes());
        prop_assert!(picture.is_empty(), "what nobody holds is told to be gone");
    }
}

#[test]
fn a_pool_that_nobody_watches_notes_nothing() {
    let shape = shape(PAGE, Format::F16);
    let pool = PagePool::new(shape, KvTiers::memory(None)).unwrap();
    let mut cache = pool.cache();
    append_all(&mut cache, 0, 100);
    cache.share(IDENTITY, &texts()[0][..100]);
    let bytes = cache.usage().bookkeeping_bytes;
    drop(cache);
    assert!(pool.take_row_changes().is_empty());

    pool.watch_rows(IDENTITY);
    let mut cache = pool.cache();
    append_all(&mut cache, 0, 100);
    cache.share(IDENTITY, &texts()[0][..100]);
    assert!(cache.usage().bookkeeping_bytes > bytes, "what is noted is counted");
    assert_eq!(pool.take_row_changes().len(), 6);
}

/// A subscriber's picture of a prefix cache: blocks, and those with a note.
#[derive(Debug, Default, PartialEq)]
struct Kept {
    blocks: Vec<u128>,
    notes: Vec<u128>,
}

impl Kept {
    fn apply(&mut self, changes: Vec<ListingChange>) {
        let remove = |keys: &mut Vec<u128>, key| {
            let place = keys.iter().position(|other| *other == key);
            keys.remove(place.expect("what goes was there"));
        };
        for change in changes {
            match change {
                ListingChange::Stored(block) => {
                    let known = block.parent.is_none_or(|parent| self.blocks.contains(&parent));
                    assert!(known, "a block comes after the one before it");
                    self.blocks.push(block.key);
                }
                ListingChange::NoteStored(block) => self.notes.push(block.key),
                ListingChange::Removed(key) => remove(&mut self.blocks, key),
                ListingChange::NoteRemoved(key) => remove(&mut self.notes, key),
            }
        }
    }

    fn found(&self, text: &[u32]) -> usize {
        let blocks = TextBlock::chain(PAGE, text);
        blocks.take_while(|block| self.blocks.contains(&block.key)).count() * PAGE
    }
}

#[test]
fn a_listing_tells_what_a_prefix_cache_finds_whoever_writes_to_it() {
    let shape = shape(PAGE, Format::F16);
    let folder = tempfile::tempdir().unwrap();
    let block_bytes = shape.bytes_for(PAGE) + 200;
    let open = || PrefixCache::open(folder.path(), 12 * block_bytes).unwrap();
    let (ours, theirs) = (open(), open());
    let texts = texts();
    let mut listing = PrefixListing::new(&shape, IDENTITY, false);
    let mut kept = Kept::default();
    for round in 0..12 {
        let text = &texts[round % 4];
        let mut cache = KvCache::new(shape, None).unwrap();
        append_all(&mut cache, salt(round % 4), 40 + round * 8);
        let tokens = &text[..cache.tokens(0)];
        let writer = if round % 3 == 0 { &theirs } else { &ours };
        writer.store(&cache, IDENTITY, tokens).unwrap();
        writer.store(&cache, b"model, streaming", &tokens[..20]).unwrap();
        kept.apply(listing.refresh(&ours).unwrap());
        for text in &texts {
            assert_eq!(
                kept.found(text),
                ours.known_tokens(&shape, IDENTITY, text).unwrap() / PAGE * PAGE,
                "round {round}"
            );
        }
    }
    assert!(listing.refresh(&ours).unwrap().is_empty());
    // A later process gets the same reports, in order.
    let mut later = Kept::default();
    later.apply(PrefixListing::new(&shape, IDENTITY, false).refresh(&theirs).unwrap());
    later.blocks.sort_unstable();
    kept.blocks.sort_unstable();
    assert_eq!(later, kept);
    kept.apply(listing.clear());
    assert_eq!(kept, Kept::default());
}

#[test]
fn beginnings_without_a_note_are_listed_only_where_none_is_needed() {
    let shape = shape(PAGE, Format::F16);
    let folder = tempfile::tempdir().unwrap();
    let cache = PrefixCache::open(folder.path(), u64::MAX).unwrap();
    let text = &texts()[0];
    let mut held = KvCache::new(shape, None).unwrap();
    append_all(&mut held, 0, 96);
    cache.store(&held, IDENTITY, &text[..96]).unwrap();
    let mut listing = PrefixListing::new(&shape, IDENTITY, true);
    let mut kept = Kept::default();
    kept.apply(listing.refresh(&cache).unwrap());
    assert_eq!(kept, Kept::default());
    cache.store_with_note(&held, IDENTITY, &text[..64], b"state").unwrap();
    kept.apply(listing.refresh(&cache).unwrap());
    let blocks: Vec<TextBlock> = TextBlock::chain(PAGE, text).collect();
    assert_eq!((kept.found(text), &kept.notes[..]), (64, &[blocks[3].key][..]));
    assert_eq!(cache.note(&shape, IDENTITY, text).unwrap().tokens, 64);
}
