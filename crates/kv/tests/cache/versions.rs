//! Versions of pages: equal versions mean equal contents, whatever happened in between.

use std::collections::HashMap;

use crate::testing::tokens;
use riffle_attention::{Format, read_keys, read_values};
use riffle_kv::{CacheShape, KvCache, KvError, KvTiers, PagePool, PageVersion};

const PAGE_TOKENS: usize = 16;

fn shape() -> CacheShape {
    crate::testing::shape(PAGE_TOKENS, Format::F16)
}

/// Copies of pages, like a device's: the first tokens seen under each version.
#[derive(Default)]
struct Copies(HashMap<PageVersion, [Vec<u32>; 2]>);

impl Copies {
    /// Compares every page of a sequence with its copy, and copies new tokens. Returns the number of already copied
    /// tokens.
    fn check(&mut self, cache: &KvCache) -> usize {
        let (shape, mut known) = (*cache.shape(), 0);
        for layer in 0..shape.layers.count() {
            let versions = cache.page_versions(layer);
            for (kv_head, versions) in versions.iter().enumerate() {
                let reader = cache.read();
                let pages = reader.pages(layer, kv_head);
                assert_eq!(versions.len(), pages.len());
                for (version, page) in versions.iter().zip(pages) {
                    let d = shape.layer(0).key_width;
                    let mut rows = [vec![0.0; page.tokens * d], vec![0.0; page.tokens * d]];
                    read_keys(&page.keys, d, 0, page.tokens, &mut rows[0], d).unwrap();
                    read_values(&page.values, d, 0, page.tokens, &mut rows[1], d).unwrap();
                    let now = rows.map(|row| row.iter().map(|x| x.to_bits()).collect::<Vec<u32>>());
                    let copy = self.0.entry(*version).or_default();
                    let both = copy[0].len().min(now[0].len());
                    for (copy, now) in copy.iter().zip(&now) {
                        assert!(copy[..both] == now[..both], "a page changed under its version");
                    }
                    known += both / shape.layer(0).key_width;
                    if now[0].len() > copy[0].len() {
                        *copy = now;
                    }
                }
            }
        }
        known
    }
}

fn append(cache: &mut KvCache, salt: u64, count: usize) {
    let shape = *cache.shape();
    for layer in 0..shape.layers.count() {
        let first = cache.tokens(layer);
        let (keys, values) = (
            tokens(&shape, salt, first, count),
            tokens(&shape, salt + 1, first, count),
        );
        cache.append(layer, &keys, &values).unwrap();
    }
}

/// A fixed sequence of numbers.
struct Draws(u64);

impl Draws {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % end.max(1)
    }
}

#[test]
fn a_page_holds_what_was_copied_under_its_version_whatever_sequences_do() {
    for seed in 0..60 {
        let mut draws = Draws(seed);
        let pool = PagePool::new(shape(), KvTiers::memory(None)).unwrap();
        let (mut sequences, mut copies) = (vec![pool.cache()], Copies::default());
        for step in 0..60 {
            let (number, count) = (draws.below(sequences.len()), sequences.len());
            let cache = &mut sequences[number];
            let held = cache.tokens(0);
            match draws.below(9) {
                0 => cache.truncate(draws.below(held + 1)),
                1 => {
                    let fork = cache.fork();
                    sequences.push(fork);
                }
                2 if count > 1 => drop(sequences.swap_remove(number)),
                3 => {
                    let kept: Vec<usize> = (0..cache.head_tokens(1, 2)).filter(|_| draws.below(4) > 0).collect();
                    cache.retain(1, 2, &kept).unwrap();
                }
                4 if cache.head_tokens(1, 2) == held && held > 3 => {
                    let (first, count) = (draws.below(held - 2), 2);
                    let keys = tokens(&shape(), 1000 + step, first, count);
                    cache.replace_keys(0, first, &keys).unwrap();
                }
                5 => cache.remove_pages(draws.below(3), 1),
                6 => {
                    let layer_pages = cache.head_tokens(1, 2).min(held) / PAGE_TOKENS;
                    cache.remove_first_pages(1, draws.below(layer_pages + 1)).unwrap();
                }
                7 => {
                    // An encoder may fail after it has written some tokens.
                    let failed = cache.append_encoded::<KvError>(0, 5, |_| Ok(Vec::new()));
                    assert!(failed.is_err());
                }
                _ => append(cache, 10 * step + 3, draws.below(30)),
            }
            sequences.iter().for_each(|cache| {
                copies.check(cache);
            });
        }
    }
}

#[test]
fn what_is_appended_to_keeps_its_version_and_what_is_written_over_does_not() {
    let pool = PagePool::new(shape(), KvTiers::memory(None)).unwrap();
    let (mut cache, mut copies) = (pool.cache(), Copies::default());
    let heads = shape().layer(0).kv_heads * shape().layers.count();
    append(&mut cache, 1, 20);
    assert_eq!(copies.check(&cache), 0);
    append(&mut cache, 5, 20);
    assert_eq!(copies.check(&cache), 20 * heads);
    // A truncation within a page leaves the pages before it unchanged.
    cache.truncate(37);
    assert_eq!(copies.check(&cache), 37 * heads);
    append(&mut cache, 9, 1);
    assert_eq!(copies.check(&cache), 32 * heads);
    // A fork has the same pages until it writes.
    let mut fork = cache.fork();
    assert_eq!(copies.check(&fork), 38 * heads);
    append(&mut fork, 11, 1);
    assert_eq!(copies.check(&fork), 32 * heads);
    assert_eq!(copies.check(&cache), 38 * heads);
    // Other pages reuse the ids of freed pages.
    let ids = cache.page_ids(0, 0).to_vec();
    drop((cache, fork));
    let mut other = pool.cache();
    append(&mut other, 13, 40);
    assert_eq!(other.page_ids(0, 0)[0], ids[0]);
    assert_eq!(copies.check(&other), 0);
    assert!(other.page_versions(shape().layers.count()).is_empty());
}
