//! Pages shared by several sequences, compared with a model of separate tokens: reads are equal, budgets hold,
//! holders are counted, and nothing is left at the end.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::testing::{all_contents, append_all, shape};
use proptest::prelude::*;
use riffle_attention::{Format, read_keys, read_values};
use riffle_kv::{
    CacheShape, CpuDevice, Device, DeviceMemory, DiskTier, KvCache, KvError, KvTiers, LayerShape, LayerShapes, Outlook,
    PageId, PagePool,
};

const SHAPE: CacheShape = CacheShape {
    layers: LayerShapes::alike(2, LayerShape::new(2, 16)),
    page_tokens: 16,
    key_format: Format::F32,
    value_format: Format::F32,
};
const MOST_TOKENS: usize = 200;

/// Main memory that can refuse allocations.
#[derive(Debug)]
struct Refusing {
    memory: CpuDevice,
    refuses: AtomicBool,
}

impl Device for Refusing {
    fn reads_main_memory(&self) -> bool {
        self.memory.reads_main_memory()
    }

    fn allocate(&self, bytes: usize) -> io::Result<Box<dyn DeviceMemory>> {
        if self.refuses.load(Ordering::Relaxed) {
            Err(io::ErrorKind::OutOfMemory.into())
        } else {
            self.memory.allocate(bytes)
        }
    }
}

/// Bits of a token's keys and values in one (layer, KV head).
type Row = (Vec<u32>, Vec<u32>);

/// The contents of a sequence, stored separately.
#[derive(Clone, Default)]
struct Plain {
    /// `[layers, kv_heads]`
    heads: Vec<Vec<Row>>,
    /// The tokens read so far, if they alone determine the contents.
    text: Option<Vec<u32>>,
}

impl Plain {
    fn empty() -> Self {
        Self {
            heads: vec![Vec::new(); SHAPE.layers.count() * SHAPE.layer(0).kv_heads],
            text: Some(Vec::new()),
        }
    }
}

fn token(text: usize, position: usize) -> u32 {
    // The two texts differ after 40 tokens.
    (position * 7 + if position < 40 { 0 } else { text }) as u32
}

/// Keys or values of a token, `[kv_heads, head_dim]`.
fn elements(token: u32, position: usize, layer: usize, kind: usize) -> Vec<f32> {
    let seed = (token as usize * 31 + position) * 16 + layer * 4 + kind;
    let element = |at: usize| ((seed * 64 + at).wrapping_mul(2_654_435_761) >> 8 & 0xFFFF) as f32 / 256.0 - 128.0;
    (0..SHAPE.layer(0).kv_heads * SHAPE.layer(0).key_width)
        .map(element)
        .collect()
}

fn bits(elements: &[f32]) -> Vec<u32> {
    elements.iter().map(|x| x.to_bits()).collect()
}

/// The rows of a token in every KV head of a layer.
fn rows(keys: &[f32], values: &[f32]) -> Vec<Row> {
    let heads = keys
        .chunks(SHAPE.layer(0).key_width)
        .zip(values.chunks(SHAPE.layer(0).key_width));
    heads.map(|(keys, values)| (bits(keys), bits(values))).collect()
}

fn tiers(folder: &Path, tier: usize, spare_pages: u64, disk_pages: Option<u64>) -> (KvTiers, Arc<Refusing>) {
    let device = Arc::new(Refusing {
        memory: if tier == 2 {
            CpuDevice::apart()
        } else {
            CpuDevice::new()
        },
        refuses: AtomicBool::new(false),
    });
    let mut tiers = KvTiers {
        device: device.clone(),
        disk: (tier > 0).then(|| DiskTier {
            folder: folder.to_owned(),
            budget_bytes: disk_pages.map(|pages| pages * SHAPE.page_bytes(0)),
        }),
        slots: 2,
        outlook: Outlook {
            context_tokens: MOST_TOKENS,
            append_tokens: 40,
            ..Outlook::default()
        },
        ..KvTiers::memory(None)
    };
    let near = tiers.least_near_bytes(&SHAPE) + spare_pages * SHAPE.page_bytes(0);
    (tiers.ram_budget_bytes, tiers.device_budget_bytes) = match tier {
        2 => (Some(7 * SHAPE.page_bytes(0)), near),
        _ => (Some(near), 0),
    };
    (tiers, device)
}

/// Everything a sequence holds, `[layers, kv_heads]`.
fn streamed(cache: &mut KvCache) -> Vec<Vec<Row>> {
    let d = SHAPE.layer(0).key_width;
    let mut found = vec![Vec::new(); SHAPE.layers.count() * SHAPE.layer(0).kv_heads];
    for layer in 0..SHAPE.layers.count() {
        let next = Some((layer + 1) % SHAPE.layers.count());
        cache
            .stream::<KvError>(layer, None, next, &mut |pages| {
                for (head, pages) in pages.iter().enumerate() {
                    for page in pages {
                        let mut rows = [vec![0.0; page.tokens * d], vec![0.0; page.tokens * d]];
                        read_keys(&page.keys, d, 0, page.tokens, &mut rows[0], d).unwrap();
                        read_values(&page.values, d, 0, page.tokens, &mut rows[1], d).unwrap();
                        let tokens = rows[0].chunks(d).zip(rows[1].chunks(d));
                        found[layer * SHAPE.layer(0).kv_heads + head].extend(tokens.map(|(k, v)| (bits(k), bits(v))));
                    }
                }
                Ok(())
            })
            .unwrap();
    }
    found
}

/// Number of page tables with each page.
fn holders(caches: &[KvCache]) -> BTreeMap<PageId, usize> {
    let mut holders = BTreeMap::new();
    for cache in caches {
        for layer in 0..SHAPE.layers.count() {
            for head in 0..SHAPE.layer(0).kv_heads {
                for page in cache.page_ids(layer, head) {
                    *holders.entry(*page).or_default() += 1;
                }
            }
        }
    }
    holders
}

fn is_refusal(error: &KvError) -> bool {
    matches!(
        error,
        KvError::Budget { .. } | KvError::NearBudget { .. } | KvError::DiskBudget { .. } | KvError::Memory { .. }
    )
}

#[derive(Debug, Clone)]
enum Step {
    Append { text: usize, count: usize },
    Truncate(usize),
    Remove(usize),
    Retain(usize),
    Turn(usize),
    Fork(usize),
    Replace { text: usize },
    Share,
    Park,
}

fn steps() -> impl Strategy<Value = Vec<(usize, bool, Step)>> {
    let step = prop_oneof![
        8 => (0usize..2, 1usize..40).prop_map(|(text, count)| Step::Append { text, count }),
        2 => (0usize..MOST_TOKENS).prop_map(Step::Truncate),
        1 => (0usize..4).prop_map(Step::Remove),
        2 => (2usize..5).prop_map(Step::Retain),
        2 => (0usize..MOST_TOKENS).prop_map(Step::Turn),
        4 => (0usize..4).prop_map(Step::Fork),
        2 => (0usize..2).prop_map(|text| Step::Replace { text }),
        3 => Just(Step::Share),
        2 => Just(Step::Park),
    ];
    // In one of eight steps the system refuses memory.
    let step = (0usize..4, (0usize..8).prop_map(|at| at == 0), step);
    proptest::collection::vec(step, 1..40)
}

fn append(cache: &mut KvCache, plain: &mut Plain, text: usize, count: usize) {
    let first = plain.heads[0].len();
    let ids: Vec<u32> = (first..first + count).map(|at| token(text, at)).collect();
    let mut appended = 0;
    for layer in 0..SHAPE.layers.count() {
        let all = |kind: usize| -> Vec<f32> {
            let tokens = ids.iter().zip(first..);
            tokens.flat_map(|(id, at)| elements(*id, at, layer, kind)).collect()
        };
        let (keys, values) = (all(0), all(1));
        match cache.append(layer, &keys, &values) {
            Ok(()) => {
                let width = SHAPE.layer(0).kv_heads * SHAPE.layer(0).key_width;
                for (keys, values) in keys.chunks(width).zip(values.chunks(width)) {
                    for (head, row) in rows(keys, values).into_iter().enumerate() {
                        plain.heads[layer * SHAPE.layer(0).kv_heads + head].push(row);
                    }
                }
                appended += 1;
            }
            Err(error) => assert!(is_refusal(&error), "{error}"),
        }
    }
    match &mut plain.text {
        Some(tokens) if appended == SHAPE.layers.count() => tokens.extend(ids),
        // Only some layers have the tokens, so the contents belong to no text.
        text if appended > 0 => *text = None,
        _ => {}
    }
}

/// Replaces keys of some tokens within a page. After a refusal, each KV head has either its old or its new keys.
fn turn(cache: &mut KvCache, plain: &mut Plain, first: usize) {
    let heads = SHAPE.layer(0).kv_heads..2 * SHAPE.layer(0).kv_heads;
    let held = heads.clone().map(|head| plain.heads[head].len()).min().unwrap();
    let first = first.min(held);
    let count = (held - first).min(16 - first % 16).min(9);
    let keys: Vec<f32> = cache.read_keys(1, first, count).unwrap().iter().map(|x| -x).collect();
    plain.text = None;
    if let Err(error) = cache.replace_keys(1, first, &keys) {
        assert!(is_refusal(&error), "{error}");
    }
    let found = cache.read_keys(1, first, count).unwrap();
    for (number, head) in heads.enumerate() {
        let of_head = |all: &[f32], at: usize| bits(&all[(at * 2 + number) * 16..][..16]);
        let is_new = (0..count).all(|at| of_head(&found, at) == of_head(&keys, at));
        for at in (0..count).filter(|_| is_new) {
            plain.heads[head][first + at].0 = of_head(&keys, at);
        }
    }
}

/// Adopts shared pages of a text into an empty cache. Returns the expected contents.
fn adopt(cache: &mut KvCache, text: usize) -> Plain {
    let mut plain = Plain::empty();
    let ids: Vec<u32> = (0..MOST_TOKENS).map(|at| token(text, at)).collect();
    let found = cache.adopt(b"model", &ids);
    for (at, id) in ids[..found].iter().enumerate() {
        for layer in 0..SHAPE.layers.count() {
            let row = rows(&elements(*id, at, layer, 0), &elements(*id, at, layer, 1));
            for (head, row) in row.into_iter().enumerate() {
                plain.heads[layer * SHAPE.layer(0).kv_heads + head].push(row);
            }
        }
    }
    plain.text = Some(ids[..found].to_vec());
    plain
}

fn take_step(pool: &PagePool, caches: &mut [KvCache], plains: &mut [Plain], who: usize, step: &Step) {
    match *step {
        Step::Append { text, count } => {
            if plains[who].heads.iter().all(|head| head.len() + count <= MOST_TOKENS) {
                append(&mut caches[who], &mut plains[who], text, count);
            }
        }
        Step::Truncate(tokens) => {
            caches[who].truncate(tokens);
            plains[who].heads.iter_mut().for_each(|head| head.truncate(tokens));
            if let Some(text) = &mut plains[who].text {
                text.truncate(tokens);
            }
        }
        Step::Remove(first) => {
            caches[who].remove_pages(first, 1);
            for head in &mut plains[who].heads {
                let from = (first * 16).min(head.len());
                head.drain(from..(from + 16).min(head.len()));
            }
            plains[who].text = None;
        }
        Step::Retain(every) => {
            let head = &mut plains[who].heads[SHAPE.layer(0).kv_heads + 1];
            let kept: Vec<usize> = (0..head.len()).filter(|at| *at < 20 || at % every == 0).collect();
            match caches[who].retain(1, 1, &kept) {
                Ok(_) => *head = kept.iter().map(|at| head[*at].clone()).collect(),
                Err(error) => assert!(is_refusal(&error), "{error}"),
            }
            plains[who].text = None;
        }
        Step::Turn(first) => turn(&mut caches[who], &mut plains[who], first),
        Step::Fork(from) => {
            let before = pool.near_bytes();
            let fork = caches[from].fork();
            assert_eq!(pool.near_bytes(), before);
            caches[who] = fork;
            plains[who] = plains[from].clone();
        }
        Step::Replace { text } => {
            caches[who] = pool.cache();
            plains[who] = adopt(&mut caches[who], text);
        }
        Step::Share => {
            if let Some(text) = &plains[who].text {
                let shared = caches[who].share(b"model", text);
                assert_eq!(shared, text.len() / 16 * 16);
            }
        }
        Step::Park => {
            if let Err(error) = caches[who].park() {
                assert!(is_refusal(&error), "{error}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn sequences_of_a_pool_read_their_own_tokens_whatever_is_shared_parked_or_refused(
        steps in steps(),
        tier in 0usize..3,
        spare_pages in 0u64..60,
        disk_pages in proptest::option::of(10u64..120),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let (tiers, device) = tiers(folder.path(), tier, spare_pages, disk_pages);
        let near_budget = match tier {
            2 => tiers.device_budget_bytes,
            _ => tiers.ram_budget_bytes.unwrap(),
        };
        let all_memory = tiers.device_budget_bytes + tiers.ram_budget_bytes.unwrap();
        let disk_budget = disk_pages.map_or(u64::MAX, |pages| pages * SHAPE.page_bytes(0));
        let pool = PagePool::new(SHAPE, tiers).unwrap();
        let mut caches: Vec<KvCache> = (0..4).map(|_| pool.cache()).collect();
        let mut plains: Vec<Plain> = (0..4).map(|_| Plain::empty()).collect();
        for (number, (who, refuses, step)) in steps.iter().enumerate() {
            device.refuses.store(*refuses, Ordering::Relaxed);
            take_step(&pool, &mut caches, &mut plains, *who, step);
            device.refuses.store(false, Ordering::Relaxed);

            prop_assert!(pool.near_bytes() <= near_budget);
            prop_assert!(pool.file_bytes() <= disk_budget);
            prop_assert!(caches[0].mapped_bytes() <= all_memory);
            for (cache, plain) in caches.iter_mut().zip(&plains) {
                prop_assert!(streamed(cache) == plain.heads, "step {} {:?}", number, step);
            }
            let holders = holders(&caches);
            prop_assert_eq!(pool.pages(), holders.len());
            for cache in &caches {
                let ids = (0..SHAPE.layers.count()).flat_map(|layer| (0..SHAPE.layer(0).kv_heads).map(move |head| (layer, head)));
                let ids = ids.flat_map(|(layer, head)| cache.page_ids(layer, head));
                let shared = ids.filter(|id| holders[id] > 1).count() as u64;
                prop_assert_eq!(cache.usage().shared_bytes, shared * SHAPE.page_bytes(0));
            }
        }
        while let Some(cache) = caches.pop() {
            drop(cache);
            for (cache, plain) in caches.iter_mut().zip(&plains) {
                prop_assert!(streamed(cache) == plain.heads);
            }
        }
        prop_assert_eq!((pool.near_bytes(), pool.file_bytes(), pool.pages()), (0, 0, 0));
    }
}

#[test]
fn a_fork_of_100_000_tokens_takes_no_page_and_no_byte_of_memory() {
    let folder = tempfile::tempdir().unwrap();
    for tier in [0, 1] {
        let mut tiers = tiers(folder.path(), tier, 400, None).0;
        if tier == 0 {
            tiers.ram_budget_bytes = None;
        }
        let pool = PagePool::new(SHAPE, tiers).unwrap();
        let mut book = pool.cache();
        for _ in 0..2500 {
            append_all(&mut book, 1, 40);
        }
        let before = (pool.near_bytes(), pool.file_bytes(), pool.pages(), book.mapped_bytes());
        let fork = book.fork();
        let after = (pool.near_bytes(), pool.file_bytes(), pool.pages(), book.mapped_bytes());
        assert_eq!(after, before);
        assert_eq!((fork.tokens(1), fork.page_ids(1, 1)), (100_000, book.page_ids(1, 1)));
        assert_eq!(fork.usage().shared_bytes, SHAPE.bytes_for(100_000));
    }
}

#[test]
fn a_page_goes_to_the_disk_once_for_all_sequences_that_hold_it() {
    let folder = tempfile::tempdir().unwrap();
    let tiers = tiers(folder.path(), 1, 80, None).0;
    let pool = PagePool::new(SHAPE, tiers).unwrap();
    let mut book = pool.cache();
    append_all(&mut book, 1, 200);
    assert_eq!(pool.file_bytes(), 0);
    let mut forks: Vec<KvCache> = (0..3).map(|_| book.fork()).collect();
    // The forks grow until their shared pages have moved to disk.
    for step in 0..5 {
        for (salt, fork) in forks.iter_mut().enumerate() {
            append_all(fork, 10 * salt as u64 + step, 40);
        }
    }
    let on_disk: Vec<u64> = forks.iter().map(|fork| fork.usage().bytes_by_tier.disk).collect();
    assert!(book.usage().bytes_by_tier.disk >= SHAPE.bytes_for(100));
    assert!(on_disk.iter().all(|bytes| *bytes >= book.usage().bytes_by_tier.disk));
    // The files hold the separate pages of the forks, and one copy of the shared pages.
    let apart: u64 = on_disk
        .iter()
        .map(|bytes| bytes - book.usage().bytes_by_tier.disk)
        .sum();
    assert_eq!(pool.file_bytes(), book.usage().bytes_by_tier.disk + apart);
    assert!(streamed(&mut forks[2]).iter().all(|head| head.len() == 400));
}

#[test]
fn a_parked_sequence_leaves_the_nearest_tier_and_goes_on_to_the_bit() {
    let folder = tempfile::tempdir().unwrap();
    for tier in [1, 2] {
        let tiers = tiers(folder.path(), tier, 100, None).0;
        let pool = PagePool::new(SHAPE, tiers).unwrap();
        let (mut parked, mut other) = (pool.cache(), pool.cache());
        append_all(&mut parked, 1, 150);
        append_all(&mut other, 2, 70);
        let fork = other.fork();
        let expected = streamed(&mut parked);
        assert_eq!(parked.park().unwrap(), SHAPE.bytes_for(150));
        assert_eq!(parked.usage().bytes_by_tier.disk, SHAPE.bytes_for(150));
        // Pages of other sequences stay.
        assert_eq!(other.park().unwrap(), 0);
        assert!(streamed(&mut parked) == expected);
        let mut plain = KvCache::new(SHAPE, None).unwrap();
        append_all(&mut plain, 1, 150);
        for count in [3, 40] {
            append_all(&mut parked, 1, count);
            append_all(&mut plain, 1, count);
            assert!(streamed(&mut parked) == streamed(&mut plain));
        }
        drop(fork);
        assert_eq!(other.park().unwrap(), SHAPE.bytes_for(70));
    }
}

#[test]
fn one_reader_shows_the_pages_of_several_sequences_of_its_pool() {
    let shape = shape(16, Format::F16);
    let mut book = KvCache::new(shape, None).unwrap();
    append_all(&mut book, 1, 40);
    let mut question = book.fork();
    append_all(&mut question, 5, 20);
    let stranger = KvCache::new(shape, None).unwrap();
    let expected = [all_contents(&book), all_contents(&question)];
    let reader = book.read();
    assert!(reader.pages_of(&stranger).is_none());
    let question_pages = reader.pages_of(&question).unwrap();
    let tokens = |pages: Vec<riffle_attention::PageView<'_>>| pages.iter().map(|page| page.tokens).sum::<usize>();
    assert_eq!(tokens(reader.pages(1, 2).collect()), 40);
    assert_eq!(tokens(question_pages.pages(1, 2).collect()), 60);
    // The shared pages of both are in the same memory.
    let first = |page: Option<riffle_attention::PageView<'_>>| match page.unwrap().keys {
        riffle_attention::Plane::F16(keys) => keys.as_ptr(),
        _ => unreachable!(),
    };
    assert_eq!(
        first(reader.near_page(1, 2, 1)),
        first(question_pages.near_page(1, 2, 1))
    );
    drop(reader);
    assert_eq!([all_contents(&book), all_contents(&question)], expected);
}
