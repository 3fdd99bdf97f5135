//! Sequences with shared pages: each reads its own text, and shared pages are stored once.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::testing::{all_contents, append_all, shape, tokens};
use proptest::prelude::*;
use riffle_attention::{Format, read_keys};
use riffle_kv::{CacheShape, CpuDevice, DiskTier, KvCache, KvError, KvTiers, Outlook, PagePool};

pub(crate) type Contents = BTreeMap<(usize, usize, usize), (Vec<u32>, Vec<u32>)>;

/// The complete contents of a cache, from all tiers.
pub(crate) fn streamed(cache: &mut KvCache) -> Contents {
    let shape = *cache.shape();
    let mut found = Contents::new();
    for layer in 0..shape.layers.count() {
        let widths = [shape.layer(layer).key_width, shape.layer(layer).value_width];
        cache
            .stream::<KvError>(layer, None, Some((layer + 1) % shape.layers.count()), &mut |pages| {
                for (head, pages) in pages.iter().enumerate() {
                    for page in pages {
                        let mut rows = widths.map(|width| vec![0.0; page.tokens * width]);
                        read_keys(&page.keys, widths[0], 0, page.tokens, &mut rows[0], widths[0]).unwrap();
                        page.read_values(widths, 0, page.tokens, &mut rows[1]).unwrap();
                        let [keys, values] = rows.map(|row| row.iter().map(|x| x.to_bits()).collect());
                        found.insert((layer, head, page.start), (keys, values));
                    }
                }
                Ok(())
            })
            .unwrap();
    }
    found
}

fn ids(count: usize) -> Vec<u32> {
    (0..count as u32).map(|token| token * 7 % 101).collect()
}

#[test]
fn forks_share_what_they_begin_with_and_write_into_copies() {
    for format in Format::ALL {
        let shape = shape(32, format);
        let pool = PagePool::new(shape, KvTiers::memory(None)).unwrap();
        let mut book = pool.cache();
        append_all(&mut book, 1, 100);
        let alone = all_contents(&book);
        let bytes = pool.near_bytes();
        let mut fork = book.fork();
        assert_eq!(all_contents(&fork), alone);
        // Four pages, one of them partial. The fork has written nothing yet.
        assert_eq!(fork.usage().shared_bytes, shape.bytes_for(100));
        assert!(pool.near_bytes() <= bytes);

        append_all(&mut fork, 5, 3);
        append_all(&mut book, 9, 40);
        assert_eq!(book.usage().shared_bytes, shape.bytes_for(96));
        for (head, before) in alone.iter().enumerate() {
            let (book, fork) = (&all_contents(&book)[head], &all_contents(&fork)[head]);
            assert_eq!(
                (&book.0[..before.0.len()], &fork.0[..before.0.len()]),
                (&before.0[..], &before.0[..])
            );
            assert_ne!(book.0[..100 * 48 + 3 * 48], fork.0[..]);
        }
        // Truncates into the shared pages, then appends other tokens.
        let mut third = fork.fork();
        third.truncate(50);
        append_all(&mut third, 7, 30);
        assert_eq!(third.usage().shared_bytes, shape.bytes_for(32));
        assert_eq!(all_contents(&fork)[0].0[..], {
            let mut plain = KvCache::new(shape, None).unwrap();
            append_all(&mut plain, 1, 100);
            append_all(&mut plain, 5, 3);
            all_contents(&plain)[0].0.clone()
        });
        drop((book, fork));
        assert_eq!(third.usage().shared_bytes, 0);
        assert_eq!(pool.near_bytes(), third.mapped_bytes());
        drop(third);
        assert_eq!(pool.near_bytes(), 0);
    }
}

#[test]
fn a_beginning_is_found_by_its_hash_under_the_same_origin_alone() {
    let shape = shape(16, Format::F16);
    // A small budget has small slabs: mapped memory is close to used memory.
    let pool = PagePool::new(shape, KvTiers::memory(Some(shape.bytes_for(640)))).unwrap();
    let mut first = pool.cache();
    append_all(&mut first, 1, 90);
    let text = ids(90);
    assert_eq!(first.share(b"model, full", &text), 80);
    assert_eq!(pool.cache().adopt(b"model, streaming", &text), 0);
    let mut other = text.clone();
    other[40] += 1;
    let mut second = pool.cache();
    assert_eq!(second.adopt(b"model, full", &other), 32);
    assert_eq!(second.usage().shared_bytes, shape.bytes_for(32));
    assert_eq!(
        second.adopt(b"model, full", &text),
        0,
        "only an empty sequence takes a beginning"
    );
    assert_eq!(all_contents(&second)[0].0[..], all_contents(&first)[0].0[..32 * 48]);

    // A sequence that computed the same pages drops its own copies.
    let mut third = pool.cache();
    append_all(&mut third, 1, 90);
    let before = pool.near_bytes();
    third.share(b"model, full", &text);
    assert!(pool.near_bytes() <= before - shape.bytes_for(80) + shape.bytes_for(16) * 2);
    assert_eq!(third.usage().shared_bytes, shape.bytes_for(80));
    assert_eq!(all_contents(&third), all_contents(&first));
    drop((first, third));
    // Pages without a holder are not found.
    assert_eq!(pool.cache().adopt(b"model, full", &text), 32);
    drop(second);
    assert_eq!(pool.cache().adopt(b"model, full", &text), 0);
    assert_eq!(pool.near_bytes(), 0);
}

#[test]
fn sequences_of_a_pool_keep_to_one_budget_in_which_shared_pages_count_once() {
    let shape = shape(32, Format::F16);
    let budget = shape.bytes_for(320);
    let pool = PagePool::new(shape, KvTiers::memory(Some(budget))).unwrap();
    let mut book = pool.cache();
    append_all(&mut book, 1, 256);
    // Three sequences with eight of ten pages fit only because the pages are stored once.
    let mut forks = [book.fork(), book.fork()];
    for fork in &mut forks {
        append_all(fork, 3, 32);
    }
    assert!(pool.near_bytes() <= budget);
    let one = tokens(&shape, 0, 0, 1);
    let error = forks[0].append(0, &one, &one).unwrap_err();
    assert!(matches!(error, KvError::Budget { .. }), "{error}");
    assert_eq!(forks[0].tokens(0), 288);
    let [first, mut second] = forks;
    drop(first);
    append_all(&mut second, 3, 32);
    assert!(pool.near_bytes() <= budget);
}

fn far(folder: &Path, shape: &CacheShape, pages: u64, apart: bool) -> KvTiers {
    let mut tiers = KvTiers {
        disk: Some(DiskTier {
            folder: folder.to_owned(),
            budget_bytes: None,
        }),
        slots: 2,
        outlook: Outlook {
            context_tokens: 400,
            append_tokens: 40,
            scans_keys: false,
            ..Outlook::default()
        },
        ..KvTiers::memory(None)
    };
    let near = 3 * tiers.least_near_bytes(shape) + pages * shape.page_bytes(0);
    (tiers.ram_budget_bytes, tiers.device_budget_bytes) = if apart {
        (Some(9 * shape.page_bytes(0)), near)
    } else {
        (Some(near), 0)
    };
    if apart {
        tiers.device = Arc::new(CpuDevice::apart());
    }
    tiers
}

#[test]
fn a_sequence_that_fills_the_nearest_tier_leaves_room_to_those_that_share_its_pages() {
    let folder = tempfile::tempdir().unwrap();
    let shape = shape(16, Format::F16);
    for apart in [false, true] {
        let mut tiers = far(folder.path(), &shape, 0, apart);
        tiers.outlook.context_tokens = 4000;
        let budget = if apart {
            tiers.device_budget_bytes
        } else {
            tiers.ram_budget_bytes.unwrap()
        };
        let pool = PagePool::new(shape, tiers).unwrap();
        let mut book = pool.cache();
        let mut plain = KvCache::new(shape, None).unwrap();
        for _ in 0..20 {
            append_all(&mut book, 1, 40);
            append_all(&mut plain, 1, 40);
        }
        // The budget is full.
        assert!(pool.near_bytes() > budget * 9 / 10);
        let expected = streamed(&mut plain);
        for round in 0..3 {
            let mut fork = book.fork();
            assert!(pool.near_bytes() <= budget);
            append_all(&mut fork, round, 40);
            assert!(pool.near_bytes() <= budget);
            assert!(streamed(&mut book) == expected);
            fork.truncate(800);
            assert!(streamed(&mut fork) == expected);
        }
        let mut forks = Vec::new();
        let error = loop {
            assert!(forks.len() < 100, "there is no end of room");
            let mut fork = book.fork();
            let mut refused = None;
            for layer in 0..shape.layers.count() {
                let one = tokens(&shape, layer as u64, 0, 40);
                refused = refused.or(fork.append(layer, &one, &one).err());
            }
            forks.push(fork);
            if let Some(error) = refused {
                break error;
            }
            assert!(pool.near_bytes() <= budget);
        };
        assert!(matches!(error, KvError::NearBudget { .. }), "{error}");
        assert!(streamed(&mut book) == expected);
    }
}

#[test]
fn a_fork_goes_on_within_the_budget_that_was_planned_for_it() {
    let folder = tempfile::tempdir().unwrap();
    const CONTEXT: usize = 700;
    for (format, page_tokens) in [
        (Format::F16, 16),
        (Format::Q8_0, 32),
        (Format::Q4_0, 64),
        (Format::F32, 48),
    ] {
        let shape = shape(page_tokens, format);
        for disk in [false, true] {
            let mut tiers = far(folder.path(), &shape, 0, false);
            tiers.outlook = Outlook {
                context_tokens: CONTEXT,
                append_tokens: 40,
                sequences: 2,
                ..Outlook::default()
            };
            tiers.disk = tiers.disk.filter(|_| disk);
            tiers.ram_budget_bytes = Some(tiers.least_near_bytes(&shape));
            let budget = tiers.ram_budget_bytes.unwrap();
            let mut planned = tiers.pages_bytes(&shape, CONTEXT);
            if disk {
                let disk_bytes = tiers.disk_bytes_for(&shape, CONTEXT);
                tiers.disk.as_mut().unwrap().budget_bytes = Some(disk_bytes);
                planned = budget + disk_bytes;
            }
            let pool = PagePool::new(shape, tiers).unwrap();
            let mut book = pool.cache();
            for _ in 0..16 {
                append_all(&mut book, 1, 40);
            }
            // Each question fills the rest of the context.
            for question in 0..4 {
                let mut fork = book.fork();
                append_all(&mut fork, question, 40);
                append_all(&mut fork, question, CONTEXT - 680);
                assert!(pool.near_bytes() <= budget);
                assert!(pool.near_bytes() + pool.file_bytes() <= planned + budget);
                let mut plain = KvCache::new(shape, None).unwrap();
                for _ in 0..16 {
                    append_all(&mut plain, 1, 40);
                }
                append_all(&mut plain, question, 40);
                append_all(&mut plain, question, CONTEXT - 680);
                assert!(
                    streamed(&mut fork) == streamed(&mut plain),
                    "{format:?} {page_tokens} {disk}"
                );
            }
        }
    }
}

#[test]
fn a_window_that_moves_on_in_one_sequence_leaves_the_pages_of_those_that_share_them() {
    let shape = shape(16, Format::F16);
    let mut book = KvCache::new(shape, None).unwrap();
    append_all(&mut book, 1, 100);
    let before = all_contents(&book);
    let mut fork = book.fork();
    fork.remove_first_pages(1, 3).unwrap();
    assert_eq!((fork.tokens(0), fork.tokens(1)), (100, 52));
    assert_eq!(all_contents(&book), before);
    drop(book);
    append_all(&mut fork, 2, 30);
    assert_eq!((fork.tokens(0), fork.tokens(1)), (130, 82));
    let error = fork.remove_first_pages(1, 6).unwrap_err();
    assert!(
        matches!(
            error,
            KvError::Tokens {
                held: 82,
                wanted: 96,
                ..
            }
        ),
        "{error}"
    );
}

#[derive(Debug, Clone)]
enum Step {
    Append(usize, usize),
    Truncate(usize, usize),
    Remove(usize, usize),
    Retain(usize, usize),
    Fork(usize, usize),
    Drop(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let who = 0usize..3;
    let step = prop_oneof![
        6 => (who.clone(), 1usize..40).prop_map(|(who, count)| Step::Append(who, count)),
        2 => (who.clone(), 0usize..200).prop_map(|(who, keep)| Step::Truncate(who, keep)),
        1 => (who.clone(), 0usize..4).prop_map(|(who, first)| Step::Remove(who, first)),
        2 => (who.clone(), 2usize..6).prop_map(|(who, every)| Step::Retain(who, every)),
        3 => (who.clone(), who.clone()).prop_map(|(from, to)| Step::Fork(from, to)),
        1 => who.prop_map(Step::Drop),
    ];
    proptest::collection::vec(step, 1..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Compares three sequences of one pool with three separate ones.
    #[test]
    fn sequences_that_share_pages_read_as_if_they_did_not(
        steps in steps(),
        page_stripes in 1usize..3,
        spare_pages in 0u64..20,
        format in 0usize..5,
        tier in 0usize..3,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let shape = shape(16 * page_stripes, Format::ALL[format]);
        let tiers = match tier {
            0 => KvTiers::memory(None),
            _ => far(folder.path(), &shape, spare_pages, tier == 2),
        };
        let near_budget = tiers.device_budget_bytes + match tier { 0 => u64::MAX >> 1, 1 => tiers.ram_budget_bytes.unwrap(), _ => 0 };
        let pool = PagePool::new(shape, tiers).unwrap();
        let mut pooled: Vec<KvCache> = (0..3).map(|_| pool.cache()).collect();
        let mut plain: Vec<KvCache> = (0..3).map(|_| KvCache::new(shape, None).unwrap()).collect();
        for (number, step) in steps.iter().enumerate() {
            match *step {
                Step::Append(who, count) => {
                    for layer in 0..shape.layers.count() {
                        let (keys, values) = (tokens(&shape, number as u64, 0, count), tokens(&shape, 99, number, count));
                        if pooled[who].tokens(layer) + count <= 400 {
                            match pooled[who].append(layer, &keys, &values) {
                                Ok(()) => plain[who].append(layer, &keys, &values).unwrap(),
                                // Other sequences have taken the near memory.
                                Err(KvError::NearBudget { .. }) if tier > 0 => {}
                                Err(error) => prop_assert!(false, "{}", error),
                            }
                        }
                    }
                }
                Step::Truncate(who, keep) => {
                    pooled[who].truncate(keep);
                    plain[who].truncate(keep);
                }
                Step::Remove(who, first) => {
                    pooled[who].remove_pages(first, 1);
                    plain[who].remove_pages(first, 1);
                }
                Step::Retain(who, every) => {
                    let kept: Vec<usize> = (0..plain[who].head_tokens(1, 1)).filter(|at| at % every == 0).collect();
                    match pooled[who].retain(1, 1, &kept) {
                        Ok(_) => {
                            plain[who].retain(1, 1, &kept).unwrap();
                        }
                        Err(KvError::NearBudget { .. }) if tier > 0 => {}
                        Err(error) => prop_assert!(false, "{}", error),
                    }
                }
                Step::Fork(from, to) if from != to => {
                    let (copy, path) = (folder.path().join("copy"), folder.path());
                    prop_assert!(path.exists());
                    // The replaced sequence is dropped first.
                    pooled[to] = pool.cache();
                    pooled[to] = pooled[from].fork();
                    plain[from].save(&copy, b"", b"").unwrap();
                    plain[to] = KvCache::restore(&copy, &shape, b"", None).unwrap().0;
                }
                Step::Fork(..) => {}
                Step::Drop(who) => {
                    pooled[who].clear();
                    plain[who].clear();
                }
            }
            prop_assert!(pool.near_bytes() <= near_budget);
            for who in 0..3 {
                prop_assert!(streamed(&mut pooled[who]) == streamed(&mut plain[who]), "step {} {:?}", number, step);
            }
        }
        drop(pooled);
        prop_assert_eq!((pool.near_bytes(), pool.file_bytes()), (0, 0));
    }
}
