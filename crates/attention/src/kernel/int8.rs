use alloc::vec::Vec;
use core::marker::PhantomData;

use super::ahead::{Ahead, Fetch};
use super::{KEY_BLOCK, LARGEST_INTEGER, Slot, halves};
use crate::format::{QUANT_BLOCK, Quant, stripe_bytes};
use crate::simd::{Kernel, Level, Simd};

/// Queries as integers of 15 bits and a sign, relative to the largest element of every block of 32. With 8-bit keys
/// the integer dot product is as exact as single precision.
#[derive(Debug, Default)]
pub(crate) struct Int8Queries {
    /// For each tile, `[head_dim / 4, 2, R]`: four integers in two words, in the order of the multiply instructions.
    words: Vec<i32>,
    /// For each tile, `[blocks, R]`: the value of one integer unit, and the sum of the integers.
    blocks: Vec<(f32, i32)>,
}

/// The integers of one tile.
#[derive(Clone, Copy)]
pub(crate) struct Int8Tile<'a> {
    words: &'a [i32],
    blocks: &'a [(f32, i32)],
}

impl Int8Queries {
    pub(crate) fn clear(&mut self) {
        self.words.clear();
        self.blocks.clear();
    }

    /// Quantises a tile, `[head_dim, width]`, for the instructions of `level`, and appends it.
    pub(crate) fn push(&mut self, level: Level, queries: &[f32], width: usize) {
        match width {
            1 => self.push_rows::<1>(level, queries),
            2 => self.push_rows::<2>(level, queries),
            3 => self.push_rows::<3>(level, queries),
            4 => self.push_rows::<4>(level, queries),
            6 => self.push_rows::<6>(level, queries),
            _ => self.push_rows::<8>(level, queries),
        }
    }

    /// The tile of `width` rows; `before` is the number of elements in earlier tiles.
    #[inline(always)]
    pub(crate) fn tile(&self, before: usize, width: usize, head_dim: usize) -> Int8Tile<'_> {
        let blocks = head_dim.div_ceil(QUANT_BLOCK);
        Int8Tile {
            words: &self.words[before / 2..][..head_dim / 2 * width],
            blocks: &self.blocks[before / head_dim * blocks..][..blocks * width],
        }
    }

    fn push_rows<const R: usize>(&mut self, level: Level, queries: &[f32]) {
        let queries = queries.as_chunks::<R>().0;
        level.run(PackInt8::<R> { queries, out: self });
    }
}

/// Quantises queries.
struct PackInt8<'a, const R: usize> {
    /// `[head_dim, R]`.
    queries: &'a [[f32; R]],
    out: &'a mut Int8Queries,
}

impl<const R: usize> Kernel for PackInt8<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let out = self.out;
        let first = out.words.len();
        out.words.resize(first + self.queries.len() / 2 * R, 0);
        let words = out.words[first..].chunks_mut(QUANT_BLOCK / 2 * R);
        for (block, words) in self.queries.chunks(QUANT_BLOCK).zip(words) {
            for r in 0..R {
                let largest = block.iter().fold(0.0f32, |m, q| m.max(q[r].abs()));
                // A query below 1e-30 adds nothing to a logit, and its inverse would overflow.
                let inverse = if largest > 1e-30 {
                    LARGEST_INTEGER / largest
                } else {
                    0.0
                };
                let mut sum = 0;
                for (sixteen, words) in block.as_chunks::<16>().0.iter().zip(words.chunks_exact_mut(8 * R)) {
                    let exact = simd.load(&core::array::from_fn(|d| sixteen[d][r]));
                    let integers = simd.to_i32(simd.mul(exact, simd.splat(inverse)));
                    sum += simd.reduce_add_i32(integers);
                    let mut packed = [0; 16];
                    simd.pack_words(integers, &mut packed);
                    for four in 0..4 {
                        words[2 * four * R + r] = packed[4 * four];
                        words[(2 * four + 1) * R + r] = packed[4 * four + 1];
                    }
                }
                out.blocks.push((largest / LARGEST_INTEGER, sum));
            }
        }
    }
}

/// Logits of a tile over quantised keys by integer dot products.
pub(crate) struct ScoreInt8<'a, Q: Quant, const R: usize> {
    pub(crate) queries: Int8Tile<'a>,
    /// The block's stripes in the layout of a quantised key plane.
    pub(crate) keys: &'a [u8],
    pub(crate) ahead: Ahead<'a>,
    pub(crate) slots: &'a [Slot],
    pub(crate) head_dim: usize,
    pub(crate) scores: &'a mut [[f32; KEY_BLOCK]; R],
    pub(crate) format: PhantomData<Q>,
}

impl<Q: Quant, const R: usize> Kernel for ScoreInt8<'_, Q, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match rows_at_once(S::INTEGER_ROWS, R) {
            1 => score_stripes::<S, Q, R, 1>(simd, self),
            2 => score_stripes::<S, Q, R, 2>(simd, self),
            3 => score_stripes::<S, Q, R, 3>(simd, self),
            4 => score_stripes::<S, Q, R, 4>(simd, self),
            _ => score_stripes::<S, Q, R, R>(simd, self),
        }
    }
}

/// Rows per step: a divisor of the tile's rows, small enough that sums stay in registers.
#[inline(always)]
pub(super) const fn rows_at_once(most: usize, rows: usize) -> usize {
    let mut at_once = if rows < most { rows } else { most };
    while !rows.is_multiple_of(at_once) {
        at_once -= 1;
    }
    at_once
}

/// Scores the stripes of a block, `P` rows at a time.
#[inline(always)]
fn score_stripes<S: Simd, Q: Quant, const R: usize, const P: usize>(simd: S, task: ScoreInt8<'_, Q, R>) {
    let blocks = task.head_dim.div_ceil(QUANT_BLOCK);
    let len = stripe_bytes::<Q>(task.head_dim);
    let mut fetch = task.ahead.over(task.slots.len() * blocks);
    let mut idle = Ahead::default().over(1);
    for (slot, place) in task.slots.iter().enumerate() {
        let data = &task.keys[place.stripe * len..][..len];
        for first in (0..R).step_by(P) {
            let fetch = if first == 0 { &mut fetch } else { &mut idle };
            let sums = score_stripe::<S, Q, R, P>(simd, task.queries, data, task.head_dim, first, fetch);
            for p in 0..P {
                simd.store(sums[p], &mut task.scores[first + p].as_chunks_mut::<16>().0[slot]);
            }
        }
    }
}

#[inline(always)]
fn score_stripe<S: Simd, Q: Quant, const R: usize, const P: usize>(
    simd: S,
    queries: Int8Tile<'_>,
    mut data: &[u8],
    head_dim: usize,
    first: usize,
    fetch: &mut Fetch,
) -> [S::V; P] {
    let mut words = queries.words.as_chunks::<R>().0;
    let mut sums = [simd.splat(0.0); P];
    for (b, block) in queries.blocks.as_chunks::<R>().0.iter().enumerate() {
        fetch.step(simd, 1);
        let width = (head_dim - b * QUANT_BLOCK).min(QUANT_BLOCK);
        let (scale, rest) = data.split_first_chunk::<32>().expect("a block begins with its scales");
        let (bytes, rest) = rest.split_at(width * 2 * Q::BITS);
        data = rest;
        let (block_words, rest) = words.split_at(width / 2);
        words = rest;
        let mut dots = [simd.zero_sums(); P];
        let eights = bytes.chunks_exact(16 * Q::BITS);
        for (bytes, words) in eights.zip(block_words.as_chunks::<4>().0) {
            let [low, high] = Q::eight_dimensions(simd, bytes);
            let low = Q::factors(simd, low);
            for p in 0..P {
                dots[p] = simd.dot4(dots[p], low, [words[0][first + p], words[1][first + p]]);
            }
            let high = Q::factors(simd, high);
            for p in 0..P {
                dots[p] = simd.dot4(dots[p], high, [words[2][first + p], words[3][first + p]]);
            }
        }
        let scale = simd.load_f16(&halves(scale));
        for p in 0..P {
            let (unit, sum) = block[first + p];
            let dot = simd.add_i32(simd.sums_to_i32(dots[p]), simd.splat_i32(Q::bias::<S>() * sum));
            let dot = simd.mul(simd.i32_to_f32(dot), simd.splat(unit));
            sums[p] = simd.fma(dot, scale, sums[p]);
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Q4_0, Q8_0};
    use crate::layout::{key_at, write_keys};
    use crate::testing::noise;
    use crate::{Format, PlaneBuf};

    /// Two of three stripes are active.
    const SLOTS: [Slot; 2] = [Slot { stripe: 0, tokens: 16 }, Slot { stripe: 2, tokens: 16 }];

    fn quantised_keys(format: Format, head_dim: usize) -> PlaneBuf {
        let mut keys = PlaneBuf::new(format, 48, head_dim);
        let source = noise(3, 48 * head_dim);
        write_keys(&mut keys.plane_mut(), head_dim, 0, 48, &source, head_dim).unwrap();
        keys
    }

    fn logits<Q: Quant, const R: usize>(level: Level, queries: &[[f32; R]], keys: &[u8]) -> [[f32; KEY_BLOCK]; R] {
        let (mut packed, mut scores) = (Int8Queries::default(), [[0.0; KEY_BLOCK]; R]);
        level.run(PackInt8::<R> {
            queries,
            out: &mut packed,
        });
        level.run(ScoreInt8::<Q, R> {
            queries: packed.tile(0, R, queries.len()),
            keys,
            ahead: Ahead::default(),
            slots: &SLOTS,
            head_dim: queries.len(),
            scores: &mut scores,
            format: PhantomData,
        });
        scores
    }

    fn logits_agree<Q: Quant, const R: usize>(format: Format, head_dim: usize) {
        let plane = quantised_keys(format, head_dim);
        let (PlaneBuf::Q8_0(keys) | PlaneBuf::Q4_0(keys)) = &plane else {
            panic!("bytes")
        };
        let queries = noise(7, head_dim * R);
        let queries = queries.as_chunks().0;
        let expected = logits::<Q, R>(Level::SCALAR, queries, keys);
        for level in Level::all() {
            let scores = logits::<Q, R>(level, queries, keys);
            for (r, (scores, expected)) in scores.iter().zip(&expected).enumerate() {
                for (score, expected) in scores.iter().zip(expected) {
                    let name = level.name();
                    assert!(
                        (score - expected).abs() < 1e-5,
                        "{name}, {R} rows, row {r}: {score} for {expected}"
                    );
                }
            }
        }
        for (at, token) in [(0, 0), (15, 15), (16, 32), (31, 47)] {
            let key = key_at(&plane.plane(), head_dim, token);
            for r in 0..R {
                let products = key.iter().zip(queries).map(|(k, q)| f64::from(*k) * f64::from(q[r]));
                let exact: f64 = products.sum();
                assert!((f64::from(expected[r][at]) - exact).abs() < 1e-4 * (head_dim as f64).sqrt());
            }
        }
    }

    fn logits_of_all_widths_agree<Q: Quant>(format: Format, head_dim: usize) {
        logits_agree::<Q, 1>(format, head_dim);
        logits_agree::<Q, 2>(format, head_dim);
        logits_agree::<Q, 3>(format, head_dim);
        logits_agree::<Q, 4>(format, head_dim);
        logits_agree::<Q, 6>(format, head_dim);
        logits_agree::<Q, 8>(format, head_dim);
    }

    #[test]
    fn integer_logits_are_the_same_with_every_instruction_set_and_number_of_rows() {
        for head_dim in [16, 48, 80, 128, 256] {
            logits_of_all_widths_agree::<Q8_0>(Format::Q8_0, head_dim);
            logits_of_all_widths_agree::<Q4_0>(Format::Q4_0, head_dim);
        }
    }

    #[test]
    fn the_largest_integers_do_not_overflow() {
        // All bytes 255 and integers of the largest magnitude, over a full block of tokens.
        for level in Level::all() {
            struct Largest;
            impl Kernel for Largest {
                type Output = ([f32; 16], i32);
                #[inline(always)]
                fn run<S: Simd>(self, simd: S) -> ([f32; 16], i32) {
                    let mut words = [0; 16];
                    simd.pack_words(simd.splat_i32(-32512), &mut words);
                    let bytes = simd.factors(simd.load_bytes(&[255; 64]));
                    let mut sums = simd.zero_sums();
                    for _ in 0..KEY_BLOCK / 4 {
                        sums = simd.dot4(sums, bytes, [words[0], words[1]]);
                    }
                    let mut out = [0.0; 16];
                    simd.store(simd.i32_to_f32(simd.sums_to_i32(sums)), &mut out);
                    (out, S::FACTOR_BIAS)
                }
            }
            let (sums, bias) = level.run(Largest);
            let expected = (bias - 255) as f32 * 32512.0 * 128.0;
            assert_eq!(sums, [expected; 16], "{}", level.name());
        }
    }

    #[test]
    fn queries_too_small_to_count_give_no_logits() {
        for level in Level::all() {
            let mut packed = Int8Queries::default();
            level.run(PackInt8::<1> {
                queries: &[[1e-39]; 32],
                out: &mut packed,
            });
            assert!(packed.words.iter().all(|words| *words == 0), "{}", level.name());
        }
    }
}
