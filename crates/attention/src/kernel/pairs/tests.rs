//! Every instruction set against plain Rust: integers and their sums are equal to the bit.

use alloc::vec;
use alloc::vec::Vec;

use super::*;
use crate::format::{F16, F32};
use crate::kernel::{Ahead, Slot};
use crate::simd::{Kernel, Level, Simd};
use crate::testing::noise;
use crate::{LANES, f32_to_f16};

const HEAD_DIMS: [usize; 5] = [16, 48, 80, 128, 256];

/// Three of eight stripes; the last is not full.
const SLOTS: [Slot; 3] = [
    Slot { stripe: 0, tokens: 16 },
    Slot { stripe: 2, tokens: 16 },
    Slot { stripe: 3, tokens: 11 },
];

fn keys_of(level: Level, keys: &[f32], head_dim: usize) -> PairKeys {
    let mut out = PairKeys::default();
    level.run(RoundPairKeys::<F32> {
        keys,
        slots: &SLOTS,
        head_dim,
        out: &mut out,
    });
    out
}

fn values_of(level: Level, values: &[f32], head_dim: usize) -> PairValues {
    let mut out = PairValues::default();
    level.run(RoundPairValues::<F32> {
        values,
        slots: &SLOTS,
        head_dim,
        out: &mut out,
    });
    out
}

fn words(lines: &[Line]) -> Vec<i32> {
    lines.iter().flat_map(|line| line.0).collect()
}

#[test]
fn every_instruction_set_rounds_to_the_same_integers() {
    for head_dim in HEAD_DIMS {
        let source = noise(1, 64 * head_dim);
        let halves: Vec<u16> = source.iter().map(|x| f32_to_f16(*x)).collect();
        let rows: Vec<&[f32]> = source.chunks(head_dim).take(5).collect();
        let rounded = |level: Level| {
            let (keys, values) = (keys_of(level, &source, head_dim), values_of(level, &source, head_dim));
            let (mut half_keys, mut half_values) = (PairKeys::default(), PairValues::default());
            level.run(RoundPairKeys::<F16> {
                keys: &halves,
                slots: &SLOTS,
                head_dim,
                out: &mut half_keys,
            });
            level.run(RoundPairValues::<F16> {
                values: &halves,
                slots: &SLOTS,
                head_dim,
                out: &mut half_values,
            });
            let mut queries = PairQueries::default();
            queries.push(level, &rows, 6, 0.3);
            (
                [&keys, &half_keys].map(|keys| (words(&keys.lines), keys.scales, keys.first.clone())),
                [&values, &half_values].map(|values| (words(&values.lines), values.exponents, values.inverses)),
                (queries.words, queries.units),
            )
        };
        let expected = rounded(Level::SCALAR);
        for level in Level::all() {
            assert!(rounded(level) == expected, "{} {head_dim}", level.name());
        }
    }
}

fn scores<const R: usize>(level: Level, keys: &[f32], queries: &[f32], head_dim: usize) -> [[f32; KEY_BLOCK]; R] {
    let keys = keys_of(Level::SCALAR, keys, head_dim);
    let rows: Vec<&[f32]> = queries.chunks(head_dim).take(R).collect();
    let (mut integers, mut scores) = (PairQueries::default(), [[0.0; KEY_BLOCK]; R]);
    integers.push(Level::SCALAR, &rows, R, 0.3);
    level.run(ScorePairs {
        queries: PairTile::<R>::of(&integers, 0, head_dim),
        rows: &rows,
        scale: 0.3,
        keys: &keys,
        slots: &SLOTS,
        ahead: Ahead::default(),
        scores: &mut scores,
    });
    scores
}

fn scores_agree<const R: usize>(head_dim: usize) {
    let (mut keys, queries) = (noise(2, 64 * head_dim), noise(3, R * head_dim));
    // With a first key of zero, only products are added to the sums; these round alike with fused and separate
    // operations.
    keys.iter_mut().step_by(LANES).take(head_dim).for_each(|x| *x = 0.0);
    let expected = scores::<R>(Level::SCALAR, &keys, &queries, head_dim);
    for level in Level::all() {
        let found = scores::<R>(level, &keys, &queries, head_dim);
        assert!(found == expected, "{} {R} {head_dim}", level.name());
    }
    // Rounding an element has a standard deviation of a step / √12. A product has √2 times this, times its size. The
    // sum may be off by five deviations.
    let step = 1.0 / f64::from(largest_of(head_dim));
    let most = 5.0 * 0.3 * (head_dim as f64 * 2.0 / 12.0 / 3.0).sqrt() * step;
    for (slot, place) in SLOTS.iter().enumerate() {
        for lane in 0..LANES {
            let key = keys[place.stripe * LANES * head_dim..][..LANES * head_dim]
                .iter()
                .skip(lane);
            let key: Vec<f64> = key.step_by(LANES).map(|x| f64::from(*x)).collect();
            for (query, found) in queries.chunks(head_dim).zip(&expected) {
                let exact: f64 = query.iter().zip(&key).map(|(q, k)| 0.3 * f64::from(*q) * k).sum();
                let found = f64::from(found[slot * LANES + lane]);
                assert!((found - exact).abs() < most, "{found} for {exact}");
            }
        }
    }
}

#[test]
fn every_instruction_set_finds_the_same_logits_in_tiles_of_any_width() {
    for head_dim in HEAD_DIMS {
        scores_agree::<1>(head_dim);
        scores_agree::<2>(head_dim);
        scores_agree::<3>(head_dim);
        scores_agree::<4>(head_dim);
        scores_agree::<6>(head_dim);
        scores_agree::<8>(head_dim);
        scores_agree::<12>(head_dim);
    }
}

fn sums<const R: usize>(level: Level, values: &PairValues, weights: &[PairWeights; R], head_dim: usize) -> Vec<f32> {
    let mut o = vec![0.0; R * head_dim];
    level.run(AccumulatePairs {
        weights,
        values,
        slots: &SLOTS,
        ahead: Ahead::default(),
        keep: &[1.0; R],
        unit: &[0.25; R],
        o: &mut o,
        head_dim,
    });
    o
}

fn sums_agree<const R: usize>(head_dim: usize) {
    let values = values_of(Level::SCALAR, &noise(4, 64 * head_dim), head_dim);
    let mut weights = [PairWeights::default(); R];
    for (r, weights) in weights.iter_mut().enumerate() {
        let of = noise(5 + r as u64, 2 * PAIRS);
        for (word, two) in weights.0.iter_mut().zip(of.chunks(2)) {
            let [low, high] = [two[0], two[1]].map(|x| (x.abs() * LARGEST_WEIGHT) as i32);
            *word = low | high << 16;
        }
    }
    let expected = sums::<R>(Level::SCALAR, &values, &weights, head_dim);
    for level in Level::all() {
        assert_eq!(
            sums::<R>(level, &values, &weights, head_dim),
            expected,
            "{}",
            level.name()
        );
    }
    // The sums by their definition.
    for (r, expected) in expected.chunks(head_dim).enumerate() {
        for (column, expected) in expected.iter().enumerate() {
            let mut sum = 0;
            for (slot, place) in SLOTS.iter().enumerate() {
                for pair in 0..LANES / 2 {
                    let line = round::line_of(column / LANES, place.stripe * LANES / 2 + pair, head_dim / LANES);
                    let (value, weight) = (
                        values.lines[line].0[column % LANES],
                        weights[r].0[slot * LANES / 2 + pair],
                    );
                    sum += i32::from(value as i16) * i32::from(weight as i16) + (value >> 16) * (weight >> 16);
                }
            }
            assert_eq!(*expected, sum as f32 * 0.25);
        }
    }
}

#[test]
fn every_instruction_set_weighs_values_to_the_same_sums() {
    for head_dim in HEAD_DIMS {
        sums_agree::<1>(head_dim);
        sums_agree::<2>(head_dim);
        sums_agree::<3>(head_dim);
        sums_agree::<4>(head_dim);
        sums_agree::<6>(head_dim);
        sums_agree::<8>(head_dim);
        sums_agree::<12>(head_dim);
    }
}

/// Weighs one row over 64 keys whose values are all 1.5. Returns the weights as integers, and the fields of the row
/// afterwards.
fn weigh(level: Level) -> (Vec<i32>, [f32; 4]) {
    let head_dim = 16;
    let values = values_of(Level::SCALAR, &vec![1.5; 64 * head_dim], head_dim);
    let mut scores = [[0.0; KEY_BLOCK]];
    scores[0]
        .iter_mut()
        .enumerate()
        .for_each(|(at, score)| *score = 2.0 - 0.25 * at as f32);
    let masks = [[0xffff, 0xfff7, 0x07ff, 0, 0, 0, 0, 0]];
    let (mut weights, mut keep, mut unit) = ([PairWeights::default()], [0.0], [0.0]);
    let (mut m, mut l) = ([1.0], [3.0]);
    level.run(WeighPairs {
        scores: &mut scores,
        slots: &SLOTS,
        masks: Some(&masks),
        soft_cap: None,
        values: &values,
        m: &mut m,
        l: &mut l,
        weights: &mut weights,
        keep: &mut keep,
        unit: &mut unit,
    });
    let two = weights[0].0[..24].iter().flat_map(|word| [word & 0xffff, word >> 16]);
    (two.collect(), [m[0], l[0], keep[0], unit[0]])
}

#[test]
fn every_instruction_set_rounds_weights_to_the_nearest() {
    let (expected, expected_state) = weigh(Level::SCALAR);
    for level in Level::all() {
        let (found, state) = weigh(level);
        for (found, expected) in found.iter().zip(&expected) {
            assert!(
                (found - expected).abs() <= 1,
                "{}: {found} for {expected}",
                level.name()
            );
        }
        for (found, expected) in state.iter().zip(expected_state) {
            assert!((found - expected).abs() <= 1e-5 * expected, "{}", level.name());
        }
    }
    let seen = |at: usize| at < 16 || (16..32).contains(&at) && at != 19 || (32..43).contains(&at);
    let mut sum = 3.0 * (-1.0f64).exp();
    for (at, found) in expected.iter().enumerate() {
        let weight = if seen(at) { (-0.25 * at as f64).exp() } else { 0.0 };
        sum += weight;
        assert!((f64::from(*found) - 8192.0 * weight).abs() <= 1.0, "{at}: {found}");
        assert!(seen(at) || *found == 0);
    }
    let [m, l, keep, _] = expected_state;
    assert_eq!(m, 2.0);
    assert!((f64::from(l) - sum).abs() < 1e-5 * sum);
    assert!((f64::from(keep) - (-1.0f64).exp()).abs() < 1e-6);
}

#[test]
fn the_largest_integers_do_not_overflow() {
    for head_dim in [16, 64, 128, 256, 512] {
        // The first key is zero, so every element of the other keys has the largest integer.
        let mut keys = vec![1.0; 64 * head_dim];
        keys.iter_mut().step_by(LANES).take(head_dim).for_each(|x| *x = 0.0);
        let queries = vec![-1.0; head_dim];
        for level in Level::all() {
            let found = scores::<1>(level, &keys, &queries, head_dim);
            for logit in &found[0][1..32] {
                assert!(
                    (logit + 0.3 * head_dim as f32).abs() < 1e-3,
                    "{}: {logit}",
                    level.name()
                );
            }
        }
    }
    struct Largest;
    impl Kernel for Largest {
        type Output = [f32; 16];
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> [f32; 16] {
            let (value, weight) = (
                simd.splat_i32(-(LARGEST_VALUE as i32)),
                simd.splat_i32(LARGEST_WEIGHT as i32),
            );
            let mut values = [0; 16];
            simd.store_words(simd.pair(value, value), &mut values);
            let mut weights = [0; 8];
            simd.narrow(weight, &mut weights);
            let (values, mut sums) = (simd.load_pairs(&values), simd.splat_i32(0));
            for _ in 0..PAIRS {
                sums = simd.dot2(sums, values, weights[0]);
            }
            let mut out = [0.0; 16];
            simd.store(simd.i32_to_f32(sums), &mut out);
            out
        }
    }
    for level in Level::all() {
        let sum = -(KEY_BLOCK as f32) * LARGEST_VALUE * LARGEST_WEIGHT;
        assert_eq!(level.run(Largest), [sum; 16], "{}", level.name());
    }
}

#[test]
fn keys_and_queries_too_small_to_count_give_no_logits() {
    for level in Level::all() {
        let head_dim = 32;
        let found = scores::<1>(level, &vec![1e-39; 64 * head_dim], &vec![1.0; head_dim], head_dim);
        assert!(
            found[0][..48].iter().all(|logit| logit.abs() < 1e-30),
            "{}",
            level.name()
        );
        let found = scores::<1>(level, &noise(3, 64 * head_dim), &vec![1e-39; head_dim], head_dim);
        assert!(
            found[0][..48].iter().all(|logit| logit.abs() < 1e-30),
            "{}",
            level.name()
        );
    }
}
