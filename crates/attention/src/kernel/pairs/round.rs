//! Rounds queries, keys and values to integers.

use alloc::vec::Vec;

use super::{LARGEST_VALUE, LEAST, Lanes, Line, PAIRS, largest_of};
use crate::LANES;
use crate::kernel::{Element, STRIPES, Slot};
use crate::simd::{Kernel, Level, Simd};

/// Exponent of the smallest power of two for rounding values. Magnitudes below 2⁻⁶⁰ become zero.
const LEAST_EXPONENT: i32 = -60;

/// The keys of a block, minus its first key.
#[derive(Debug, Default)]
pub(crate) struct PairKeys {
    /// `[stripes, head_dim / 2, 16]`: two elements of each of 16 keys.
    pub(super) lines: Vec<Line>,
    /// Value of one integer unit, by stripe and lane.
    pub(super) scales: [[f32; LANES]; STRIPES],
    /// The first key of the block, `[head_dim]`.
    pub(super) first: Vec<f32>,
    differences: Vec<Lanes>,
}

/// Rounds the keys of some stripes of a block, each to its own index.
pub(crate) struct RoundPairKeys<'a, E: Element> {
    /// `[stripes, head_dim, 16]`.
    pub(crate) keys: &'a [E::Raw],
    pub(crate) slots: &'a [Slot],
    pub(crate) head_dim: usize,
    pub(crate) out: &'a mut PairKeys,
}

impl<E: Element> Kernel for RoundPairKeys<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (out, head_dim) = (self.out, self.head_dim);
        out.resize(head_dim);
        let rows = self.keys.as_chunks::<LANES>().0;
        for (first, row) in out.first.iter_mut().zip(rows) {
            let mut lanes = [0.0; LANES];
            simd.store(E::load(simd, row), &mut lanes);
            *first = lanes[0];
        }
        let largest_integer = largest_of(head_dim);
        for slot in self.slots {
            let mut largest = simd.splat(0.0);
            let rows = &rows[slot.stripe * head_dim..][..head_dim];
            for ((difference, row), first) in out.differences.iter_mut().zip(rows).zip(&out.first) {
                let less = simd.sub(E::load(simd, row), simd.splat(*first));
                largest = simd.max_abs(largest, less);
                simd.store(less, &mut difference.0);
            }
            simd.store(
                simd.mul(largest, simd.splat(1.0 / largest_integer)),
                &mut out.scales[slot.stripe],
            );
            let counts = simd.at_least(largest, simd.splat(LEAST));
            let inverse = simd.div(simd.splat(largest_integer), largest);
            let inverse = simd.select(counts, inverse, simd.splat(0.0));
            let lines = &mut out.lines[slot.stripe * head_dim / 2..][..head_dim / 2];
            for (line, [low, high]) in lines.iter_mut().zip(out.differences.as_chunks::<2>().0) {
                let low = simd.to_i32(simd.mul(simd.load(&low.0), inverse));
                let high = simd.to_i32(simd.mul(simd.load(&high.0), inverse));
                simd.store_words(simd.pair(low, high), &mut line.0);
            }
        }
    }
}

impl PairKeys {
    fn resize(&mut self, head_dim: usize) {
        self.lines.resize(STRIPES * head_dim / 2, Line([0; LANES]));
        self.first.resize(head_dim, 0.0);
        self.differences.resize(head_dim, Lanes([0.0; LANES]));
    }
}

/// The values of a block.
#[derive(Debug, Default)]
pub(crate) struct PairValues {
    /// For every 32 columns, `[pairs, 2, 16]`: the same column of two tokens in a word. The last may be 16 columns
    /// wide.
    pub(super) lines: Vec<Line>,
    /// `[stripe][lane]`: a power of two for each token. The token's integers are multiples of it.
    pub(super) exponents: [[f32; LANES]; STRIPES],
    /// Inverses of these powers; zero if there is no token.
    pub(super) inverses: [[f32; LANES]; STRIPES],
}

/// Rounds the values of some stripes of a block, each to its own index.
pub(crate) struct RoundPairValues<'a, E: Element> {
    /// `[tokens, head_dim]`.
    pub(crate) values: &'a [E::Raw],
    pub(crate) slots: &'a [Slot],
    pub(crate) head_dim: usize,
    pub(crate) out: &'a mut PairValues,
}

impl<E: Element> Kernel for RoundPairValues<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (out, vectors) = (self.out, self.head_dim / LANES);
        out.lines.resize(vectors * PAIRS, Line([0; LANES]));
        for slot in self.slots {
            let tokens = &self.values[slot.stripe * LANES * self.head_dim..][..slot.tokens * self.head_dim];
            let tokens = tokens.as_chunks::<LANES>().0;
            let (exponents, inverses) = (&mut out.exponents[slot.stripe], &mut out.inverses[slot.stripe]);
            (*exponents, *inverses) = ([0.0; LANES], [0.0; LANES]);
            for (token, lane) in tokens.chunks_exact(vectors).zip(0..LANES) {
                let mut largest = simd.splat(0.0);
                for vector in token {
                    largest = simd.max_abs(largest, E::load(simd, vector));
                }
                let exponent = exponent_of(simd.reduce_max(largest));
                (exponents[lane], inverses[lane]) = (exponent as f32, power_of_two(-exponent));
            }
            for (number, two) in tokens.chunks(2 * vectors).enumerate() {
                let (low, high) = two.split_at(vectors);
                let [below, above] = [2 * number, 2 * number + 1].map(|lane| simd.splat(inverses[lane]));
                let pair = slot.stripe * LANES / 2 + number;
                for (vector, low) in low.iter().enumerate() {
                    let low = simd.to_i32(simd.mul(E::load(simd, low), below));
                    let high = match high.get(vector) {
                        Some(high) => simd.to_i32(simd.mul(E::load(simd, high), above)),
                        None => simd.splat_i32(0),
                    };
                    let line = &mut out.lines[line_of(vector, pair, vectors)];
                    simd.store_words(simd.pair(low, high), &mut line.0);
                }
            }
        }
    }
}

/// Smallest exponent `e` for which no value up to `largest` exceeds [`LARGEST_VALUE`] · 2^e.
#[inline(always)]
fn exponent_of(largest: f32) -> i32 {
    let bits = (largest * (1.0 / LARGEST_VALUE)).to_bits();
    let exponent = (bits >> 23) as i32 - 127 + i32::from(bits & 0x007f_ffff != 0);
    exponent.clamp(LEAST_EXPONENT, 100)
}

#[inline(always)]
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

/// Index of the line with 16 columns of a pair of tokens.
#[inline(always)]
pub(super) fn line_of(vector: usize, pair: usize, vectors: usize) -> usize {
    let first = vector / 2 * 2;
    let width = (vectors - first).min(2);
    first * PAIRS + pair * width + vector % 2
}

/// Queries as integers, tile by tile.
#[derive(Debug, Default)]
pub(crate) struct PairQueries {
    /// For each tile, `[head_dim / 2, width]`.
    pub(super) words: Vec<i32>,
    /// For each tile, `[width]`: the value of one product unit with a key of scale 1.
    pub(super) units: Vec<f32>,
}

impl PairQueries {
    pub(crate) fn clear(&mut self) {
        self.words.clear();
        self.units.clear();
    }

    /// Rounds the queries of a tile, `[head_dim]` each, and appends them. `scale` multiplies their products.
    pub(crate) fn push(&mut self, level: Level, rows: &[&[f32]], width: usize, scale: f32) {
        level.run(RoundPairQueries {
            rows,
            width,
            scale,
            out: self,
        });
    }
}

struct RoundPairQueries<'a> {
    rows: &'a [&'a [f32]],
    width: usize,
    scale: f32,
    out: &'a mut PairQueries,
}

impl Kernel for RoundPairQueries<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Some(head_dim) = self.rows.first().map(|row| row.len()) else {
            return;
        };
        let (out, width, largest_integer) = (self.out, self.width, largest_of(head_dim));
        let first = out.words.len();
        out.words.resize(first + head_dim / 2 * width, 0);
        let words = &mut out.words[first..];
        let first_unit = out.units.len();
        out.units.resize(first_unit + width, 0.0);
        for (r, row) in self.rows.iter().enumerate() {
            let row = row.as_chunks::<LANES>().0;
            let largest = row
                .iter()
                .fold(simd.splat(0.0), |most, x| simd.max_abs(most, simd.load(x)));
            let largest = simd.reduce_max(largest);
            let inverse = if largest >= LEAST {
                largest_integer / largest
            } else {
                0.0
            };
            out.units[first_unit + r] = largest / largest_integer * self.scale;
            for (sixteen, words) in row.iter().zip(words.chunks_exact_mut(LANES / 2 * width)) {
                let integers = simd.to_i32(simd.mul(simd.load(sixteen), simd.splat(inverse)));
                let mut pairs = [0; LANES / 2];
                simd.narrow(integers, &mut pairs);
                for (words, pair) in words.chunks_exact_mut(width).zip(pairs) {
                    words[r] = pair;
                }
            }
        }
    }
}
