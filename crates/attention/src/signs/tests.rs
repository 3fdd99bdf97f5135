use alloc::vec;

use super::scorer::round_to_integers;
use super::*;
use crate::simd::Level;
use crate::testing::noise;
use crate::{AttendOptions, QueryTile};

/// An index of the keys `[tokens, head_dim]`, without the keys after the last whole segment.
fn index_of(keys: &[f32], head_dim: usize) -> SignIndex {
    let mut index = SignIndex::default();
    for segment in keys.chunks_exact(SEGMENT * head_dim) {
        index.push(&mut segment.to_vec(), head_dim).unwrap();
    }
    index
}

fn tile(data: &[f32], head_dim: usize, group: usize, start: usize) -> QueryTile<'_> {
    QueryTile {
        data,
        rows: data.len() / head_dim / group,
        row_stride: group * head_dim,
        group,
        head_dim,
        start,
    }
}

fn rows_at(level: Level, queries: &QueryTile, index: &SignIndex, options: &AttendOptions) -> Vec<Vec<f32>> {
    let mut scorer = SignScorer::default();
    scorer.run_at(level, queries, index, options).unwrap();
    (0..scorer.queries()).map(|query| scorer.row(query).to_vec()).collect()
}

/// The product of integers with signs, from bit counts in four planes of the integers plus 8.
fn product_by_counts(integers: &[i32], key: &[f32]) -> i32 {
    let count = |bit: i32| {
        let pairs = integers.iter().zip(key);
        let set = pairs.filter(|(integer, _)| (**integer + 8) >> bit & 1 == 1);
        let (all, positive) = set.fold((0, 0), |(all, positive), (_, key)| {
            (all + 1, positive + i32::from(*key >= 0.0))
        });
        2 * positive - all
    };
    let planes: i32 = (0..4).map(|bit| count(bit) << bit).sum();
    let signs: i32 = key.iter().map(|key| if *key >= 0.0 { 1 } else { -1 }).sum();
    planes - 8 * signs
}

/// The estimate of every key by its definition, for a scaled query.
fn key_estimates(query: &[f32], keys: &[f32], head_dim: usize) -> Vec<f64> {
    let (mut query, mut keys) = (query.to_vec(), keys.to_vec());
    rotate_heads(&mut query, head_dim);
    rotate_heads(&mut keys, head_dim);
    let (integers, step) = round_to_integers(&query);
    let half = |value: f64| f64::from(f16_to_f32(f32_to_f16(value as f32)));
    let mut estimates = Vec::new();
    for segment in keys.chunks_exact(SEGMENT * head_dim) {
        let mean_of = |n: usize| {
            segment
                .iter()
                .skip(n)
                .step_by(head_dim)
                .map(|key| f64::from(*key))
                .sum::<f64>()
        };
        let mean: Vec<f64> = (0..head_dim).map(|n| half(mean_of(n) / SEGMENT as f64)).collect();
        let offset: f64 = query
            .iter()
            .zip(&mean)
            .map(|(query, mean)| f64::from(*query) * mean)
            .sum();
        for key in segment.chunks_exact(head_dim) {
            let rest: Vec<f32> = key.iter().zip(&mean).map(|(key, mean)| key - *mean as f32).collect();
            let magnitude: f64 = rest.iter().map(|value| f64::from(value.abs())).sum();
            let product = f64::from(product_by_counts(&integers, &rest)) * half(magnitude / head_dim as f64);
            estimates.push(product * f64::from(step) + offset);
        }
    }
    estimates
}

/// The largest estimate in every unit by its definition, for a scaled query.
fn estimates_of(query: &[f32], keys: &[f32], head_dim: usize) -> Vec<f64> {
    let estimates = key_estimates(query, keys, head_dim);
    let units = estimates.chunks(UNIT);
    units
        .map(|unit| unit.iter().copied().fold(f64::NEG_INFINITY, f64::max))
        .collect()
}

#[test]
fn estimates_are_counts_of_bits_times_scales_plus_products_of_means() {
    for (case, head_dim) in [16, 48, 64, 80, 128, 576].into_iter().enumerate() {
        for tokens in [64, 200, 1024, 1300] {
            let keys = noise(case as u64, tokens * head_dim);
            let queries = noise(case as u64 + 50, 7 * head_dim);
            let scale = 0.5;
            let rows = rows_at(
                Level::best(),
                &tile(&queries, head_dim, 7, tokens),
                &index_of(&keys, head_dim),
                &AttendOptions::new(scale),
            );
            for (row, query) in rows.iter().zip(queries.chunks(head_dim)) {
                let query: Vec<f32> = query.iter().map(|value| value * scale).collect();
                let expected = estimates_of(&query, &keys, head_dim);
                assert_eq!(row.len(), expected.len(), "{head_dim} {tokens}");
                for (found, expected) in row.iter().zip(expected) {
                    assert!((f64::from(*found) - expected).abs() < 2e-3, "{found} for {expected}");
                }
            }
        }
    }
}

#[test]
fn keys_from_a_limit_are_those_whose_estimates_reach_it() {
    const SCALE: f32 = 0.5;
    for (case, (head_dim, soft_cap)) in [(16, None), (80, Some(2.0)), (128, None)].into_iter().enumerate() {
        for tokens in [64, 1100, 1300] {
            let keys = noise(case as u64 + 20, tokens * head_dim);
            let queries = noise(case as u64 + 70, 6 * head_dim);
            let index = index_of(&keys, head_dim);
            // Two rows of three heads; the first row sees one segment fewer than the index has.
            let tile = tile(&queries, head_dim, 3, index.tokens() - 1);
            let options = AttendOptions::new(SCALE).with_soft_cap(soft_cap);
            let cap = |logit: f64| soft_cap.map_or(logit, |cap| f64::from(cap) * (logit / f64::from(cap)).tanh());
            let estimates = queries.chunks(head_dim).zip(0..).map(|(query, number)| {
                let query: Vec<f32> = query.iter().map(|value| value * SCALE).collect();
                let seen = if number < 3 {
                    index.tokens() - SEGMENT
                } else {
                    index.tokens()
                };
                let estimates = key_estimates(&query, &keys, head_dim);
                estimates.into_iter().take(seen).map(cap).collect::<Vec<f64>>()
            });
            let estimates: Vec<Vec<f64>> = estimates.collect();
            for level in Level::all() {
                let mut scorer = SignScorer::default();
                scorer.run_at(level, &tile, &index, &options).unwrap();
                let largest = |query: usize| scorer.row(query).iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let lowest: Vec<f32> = (0..6).map(|query| largest(query) - 0.2 * query as f32).collect();
                let found = scorer.keys_from_at(level, &index, &lowest).unwrap();
                assert!(found.is_sorted());
                for key in 0..index.tokens() {
                    let rows = estimates.iter().zip(&lowest);
                    let most = rows.filter_map(|(row, lowest)| Some(row.get(key)? - f64::from(*lowest)));
                    let most = most.fold(f64::NEG_INFINITY, f64::max);
                    let is_found = found.binary_search(&key).is_ok();
                    let is_close = most.abs() < 2e-3;
                    assert!(
                        is_close || is_found == (most > 0.0),
                        "{head_dim} {tokens} {}: {key}",
                        level.name()
                    );
                }
                let every = scorer.keys_from_at(level, &index, &[f32::NEG_INFINITY; 6]).unwrap();
                assert_eq!(every, (0..index.tokens()).collect::<Vec<_>>());
                assert!(
                    scorer
                        .keys_from_at(level, &index, &[f32::INFINITY; 6])
                        .unwrap()
                        .is_empty()
                );
            }
        }
    }
    let scorer = SignScorer::default();
    assert!(scorer.keys_from(&SignIndex::default(), &[]).unwrap().is_empty());
    assert!(scorer.keys_from(&SignIndex::default(), &[0.0]).is_err());
}

#[test]
fn every_instruction_set_and_any_queries_beside_give_the_same_bits() {
    for head_dim in [16, 96, 128] {
        let (keys, queries) = (noise(5, 1500 * head_dim), noise(6, 18 * head_dim));
        let index = index_of(&keys, head_dim);
        let tile = tile(&queries, head_dim, 3, 1400);
        let bits = |rows: Vec<Vec<f32>>| -> Vec<Vec<u32>> {
            rows.iter()
                .map(|row| row.iter().map(|value| value.to_bits()).collect())
                .collect()
        };
        let options = AttendOptions::new(0.3);
        let expected = bits(rows_at(Level::SCALAR, &tile, &index, &options));
        for level in Level::all() {
            assert_eq!(
                bits(rows_at(level, &tile, &index, &options)),
                expected,
                "{}",
                level.name()
            );
            for row in 0..6 {
                let alone = QueryTile {
                    data: &queries[row * 3 * head_dim..],
                    rows: 1,
                    start: 1400 + row,
                    ..tile
                };
                let found = bits(rows_at(level, &alone, &index, &options));
                assert_eq!(found, expected[3 * row..3 * row + 3], "{} row {row}", level.name());
            }
        }
    }
}

#[test]
fn a_query_sees_the_segments_before_its_own() {
    let keys = noise(7, 640 * 32);
    let index = index_of(&keys, 32);
    let queries = noise(8, 130 * 32);
    let mut scorer = SignScorer::default();
    scorer
        .run(&tile(&queries, 32, 1, 60), &index, &AttendOptions::new(1.0))
        .unwrap();
    for query in 0..130 {
        assert_eq!(scorer.row(query).len(), (60 + query) / 64 * 4);
    }
    scorer
        .run(&tile(&queries, 32, 1, 5000), &index, &AttendOptions::new(1.0))
        .unwrap();
    assert_eq!(scorer.row(129).len(), 40);
    scorer
        .run(
            &tile(&queries, 32, 1, 60),
            &SignIndex::default(),
            &AttendOptions::new(1.0),
        )
        .unwrap();
    assert!(scorer.row(129).is_empty());
}

#[test]
fn segments_that_were_cut_off_leave_nothing_behind() {
    let head_dim = 48;
    let (keys, other) = (noise(9, 1280 * head_dim), noise(10, 1280 * head_dim));
    let queries = noise(11, 2 * head_dim);
    let tile = tile(&queries, head_dim, 2, 2000);
    let options = AttendOptions::new(0.2);
    let expected = rows_at(Level::best(), &tile, &index_of(&keys, head_dim), &options);
    for kept in [0, 63, 64, 250, 256, 1023, 1100] {
        let whole = kept / SEGMENT * SEGMENT * head_dim;
        let mut index = index_of(&[&keys[..whole], &other[whole..]].concat(), head_dim);
        index.truncate(kept);
        assert_eq!(index.tokens(), kept / SEGMENT * SEGMENT);
        for segment in keys[whole..].chunks_exact(SEGMENT * head_dim) {
            index.push(&mut segment.to_vec(), head_dim).unwrap();
        }
        assert_eq!(rows_at(Level::best(), &tile, &index, &options), expected, "{kept}");
    }
}

#[test]
fn an_index_from_bytes_is_the_one_that_was_written() {
    for (head_dim, tokens) in [(16, 64), (48, 1280), (128, 2112)] {
        let (keys, more) = (noise(14, tokens * head_dim), noise(15, 640 * head_dim));
        let queries = noise(16, 3 * head_dim);
        let tile = tile(&queries, head_dim, 3, 4000);
        let options = AttendOptions::new(0.2);
        let mut index = index_of(&[&keys[..], &more[..]].concat(), head_dim);
        index.truncate(tokens);
        let bytes = index.to_bytes();
        assert_eq!(
            bytes,
            index_of(&keys, head_dim).to_bytes(),
            "later segments leave nothing behind"
        );
        let mut restored = SignIndex::from_bytes(&bytes).unwrap();
        for index in [&mut index, &mut restored] {
            for segment in more.chunks_exact(SEGMENT * head_dim) {
                index.push(&mut segment.to_vec(), head_dim).unwrap();
            }
        }
        let rows = |index: &SignIndex| rows_at(Level::best(), &tile, index, &options);
        assert_eq!(rows(&restored), rows(&index), "{head_dim} {tokens}");
        for cut in [1, 7, 8, 9, bytes.len() - 1] {
            assert!(SignIndex::from_bytes(&bytes[..cut]).is_err(), "{cut} bytes");
        }
        let wide = [&u64::MAX.saturating_sub(15).to_le_bytes()[..], &bytes[8..]].concat();
        assert!(SignIndex::from_bytes(&wide).is_err());
    }
    let empty = SignIndex::from_bytes(&SignIndex::default().to_bytes()).unwrap();
    assert_eq!(empty.tokens(), 0);
}

#[test]
fn a_key_like_the_query_has_the_largest_estimate() {
    let head_dim = 128;
    let mut keys = noise(12, 2048 * head_dim);
    let query = noise(13, head_dim);
    keys[700 * head_dim..701 * head_dim].copy_from_slice(&query);
    // Without centring, a part that all keys share would hide the signs of the rest.
    for key in keys.chunks_mut(head_dim) {
        key.iter_mut()
            .zip(0..)
            .for_each(|(value, n)| *value += if n % 3 == 0 { 5.0 } else { -2.0 });
    }
    let tile = tile(&query, head_dim, 1, 2048);
    let rows = rows_at(
        Level::best(),
        &tile,
        &index_of(&keys, head_dim),
        &AttendOptions::new(1.0),
    );
    let best = (0..rows[0].len()).max_by(|a, b| rows[0][*a].total_cmp(&rows[0][*b]));
    assert_eq!(best, Some(700 / UNIT));
}

#[test]
fn wrong_shapes_are_refused() {
    let mut index = SignIndex::default();
    assert!(index.push(&mut vec![0.0; 64 * 20], 20).is_err());
    assert!(index.push(&mut vec![0.0; 63 * 32], 32).is_err());
    index.push(&mut vec![0.0; 64 * 32], 32).unwrap();
    assert!(index.push(&mut vec![0.0; 64 * 48], 48).is_err());
    let queries = [0.0; 48];
    let mut scorer = SignScorer::default();
    let refused = scorer.run(&tile(&queries, 48, 1, 99), &index, &AttendOptions::new(1.0));
    assert!(refused.is_err());
}
