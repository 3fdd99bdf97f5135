//! Largest logits of blocks of keys, from products of 8-bit integers.

use alloc::vec::Vec;

use super::{KEY_BLOCK, STRIPES, halves};
use crate::format::QUANT_BLOCK;
use crate::simd::{Kernel, Simd};

/// Queries multiplied with keys together.
pub(crate) const TOGETHER: usize = 8;

/// Largest magnitude of 8-bit integers for queries and keys.
const LARGEST_BYTE: f32 = 127.0;

/// Magnitude below which a query or key counts as zero: its inverse would overflow.
const LEAST: f32 = 1e-30;

/// Keys of one block as 8-bit integers relative to the largest of every 32 elements.
#[derive(Debug, Default)]
pub(crate) struct ByteKeys {
    /// `[stripes, head_dim / 4, 16, 4]`, with an offset of 128.
    bytes: Vec<u8>,
    /// `[stripes, head_dim / 32, 16]`: the value of one integer unit.
    scales: Vec<[f32; 16]>,
}

/// Rounds widened keys to 8 bits.
pub(crate) struct RoundKeys<'a> {
    /// `[stripes, head_dim, 16]`.
    pub(crate) keys: &'a [f32],
    pub(crate) head_dim: usize,
    pub(crate) out: &'a mut ByteKeys,
}

impl Kernel for RoundKeys<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let out = self.out;
        out.scales.clear();
        out.bytes.resize(KEY_BLOCK * self.head_dim, 0);
        let stripes = self.keys.chunks_exact(16 * self.head_dim);
        let mut fours = out.bytes.as_chunks_mut::<64>().0.iter_mut();
        for stripe in stripes {
            for block in stripe.as_chunks::<16>().0.chunks(QUANT_BLOCK) {
                let mut largest = [0.0f32; 16];
                for lanes in block {
                    for (largest, value) in largest.iter_mut().zip(lanes) {
                        *largest = largest.max(value.abs());
                    }
                }
                let inverse = largest.map(|largest| if largest > LEAST { LARGEST_BYTE / largest } else { 0.0 });
                let inverse = simd.load(&inverse);
                for (four, bytes) in block.as_chunks::<4>().0.iter().zip(&mut fours) {
                    let mut rounded = [[0.0; 16]; 4];
                    for (rounded, lanes) in rounded.iter_mut().zip(four) {
                        simd.store(simd.round(simd.mul(simd.load(lanes), inverse)), rounded);
                    }
                    for (lane, bytes) in bytes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                        *bytes = core::array::from_fn(|n| (rounded[n][lane] as i32 + 128) as u8);
                    }
                }
                out.scales.push(largest.map(|largest| largest / LARGEST_BYTE));
            }
        }
    }
}

impl ByteKeys {
    /// Copies `stripes` stripes of keys that are already 8-bit integers, from the start of a plane.
    pub(crate) fn take(&mut self, plane: &[u8], stripes: usize, head_dim: usize) {
        self.scales.clear();
        self.bytes.clear();
        let len = 16 * head_dim + 32 * head_dim.div_ceil(QUANT_BLOCK);
        for mut stripe in plane.chunks_exact(len).take(stripes) {
            while let Some((scales, rest)) = stripe.split_first_chunk::<32>() {
                let (bytes, rest) = rest.split_at(rest.len().min(16 * QUANT_BLOCK));
                self.scales.push(halves(scales).map(crate::half::f16_to_f32));
                self.bytes.extend_from_slice(bytes);
                stripe = rest;
            }
        }
    }
}

/// Queries as 8-bit integers relative to the largest element of each query.
#[derive(Debug, Default)]
pub(crate) struct ByteQueries {
    /// For every [`TOGETHER`] queries `[head_dim / 4, 2, TOGETHER]`: four integers, times 256, in two words.
    words: Vec<i32>,
    /// For every [`TOGETHER`] queries, `[head_dim / 32, TOGETHER]`: the correction for the keys' offset.
    offsets: Vec<[i32; TOGETHER]>,
    /// Value of one unit of a query's integer times a key's integer of scale 1.
    units: Vec<[f32; TOGETHER]>,
}

/// Rounds up to [`TOGETHER`] queries to 8 bits and appends them.
pub(crate) struct RoundQueries<'a> {
    pub(crate) rows: &'a [&'a [f32]],
    pub(crate) head_dim: usize,
    /// Factor on the products.
    pub(crate) scale: f32,
    pub(crate) out: &'a mut ByteQueries,
}

impl Kernel for RoundQueries<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (out, head_dim) = (self.out, self.head_dim);
        let (first_word, first_block) = (out.words.len(), out.offsets.len());
        out.words.resize(first_word + head_dim / 2 * TOGETHER, 0);
        out.offsets
            .resize(first_block + head_dim.div_ceil(QUANT_BLOCK), [0; TOGETHER]);
        let mut units = [0.0; TOGETHER];
        for (r, row) in self.rows.iter().enumerate() {
            let largest = row.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
            let inverse = if largest > LEAST { LARGEST_BYTE / largest } else { 0.0 };
            units[r] = largest / LARGEST_BYTE * self.scale;
            let words = out.words[first_word..].chunks_exact_mut(8 * TOGETHER);
            for (n, (sixteen, words)) in row.as_chunks::<16>().0.iter().zip(words).enumerate() {
                let rounded = simd.round(simd.mul(simd.load(sixteen), simd.splat(inverse)));
                let sum = simd.reduce_add_i32(simd.to_i32(rounded));
                out.offsets[first_block + n * 16 / QUANT_BLOCK][r] -= (128 - S::FACTOR_BIAS) * S::HIGH_UNIT * sum;
                let mut packed = [0; 16];
                simd.pack_words(simd.to_i32(simd.mul(rounded, simd.splat(256.0))), &mut packed);
                for four in 0..4 {
                    words[2 * four * TOGETHER + r] = packed[4 * four];
                    words[(2 * four + 1) * TOGETHER + r] = packed[4 * four + 1];
                }
            }
        }
        out.units.push(units.map(|unit| unit / S::HIGH_UNIT as f32));
    }
}

impl ByteQueries {
    pub(crate) fn clear(&mut self) {
        self.words.clear();
        self.offsets.clear();
        self.units.clear();
    }
}

/// The largest logits of [`TOGETHER`] queries in each block of some stripes; −∞ if a query sees no key of a block.
pub(crate) struct Maxima<'a> {
    pub(crate) queries: &'a ByteQueries,
    /// Index of the set of queries.
    pub(crate) set: usize,
    pub(crate) keys: &'a ByteKeys,
    pub(crate) head_dim: usize,
    /// Number of keys that each query sees, from the first on.
    pub(crate) visible: [usize; TOGETHER],
    /// Stripes in a block.
    pub(crate) stripes: usize,
    /// Stripes of the first block before these.
    pub(crate) before: usize,
    /// `[TOGETHER][blocks]`.
    pub(crate) out: &'a mut [[f32; STRIPES]; TOGETHER],
}

impl Kernel for Maxima<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        // Process as many queries at once as keep their sums in registers.
        if S::WIDE {
            maxima::<S, TOGETHER>(simd, &mut self, 0)
        } else {
            maxima::<S, { TOGETHER / 2 }>(simd, &mut self, 0);
            maxima::<S, { TOGETHER / 2 }>(simd, &mut self, TOGETHER / 2);
        }
    }
}

/// The products of `P` queries from `first` on.
#[inline(always)]
fn maxima<S: Simd, const P: usize>(simd: S, task: &mut Maxima<'_>, first: usize) {
    let (head_dim, blocks) = (task.head_dim, task.head_dim.div_ceil(QUANT_BLOCK));
    let (queries, keys) = (task.queries, task.keys);
    let words = &queries.words[task.set * head_dim / 2 * TOGETHER..][..head_dim / 2 * TOGETHER];
    let words = words.as_chunks::<TOGETHER>().0;
    let offsets = &queries.offsets[task.set * blocks..][..blocks];
    let units = &queries.units[task.set];
    let lowest = simd.splat(f32::NEG_INFINITY);
    let mut best = [lowest; P];
    let stripes = task
        .keys
        .scales
        .chunks_exact(blocks)
        .zip(keys.bytes.chunks_exact(16 * head_dim));
    let count = stripes.len();
    for (stripe, (scales, bytes)) in stripes.enumerate() {
        let mut sums = [simd.splat(0.0); P];
        let bytes = bytes.as_chunks::<64>().0.chunks(QUANT_BLOCK / 4);
        let words = words.chunks(QUANT_BLOCK / 2);
        for (((scale, bytes), words), offsets) in scales.iter().zip(bytes).zip(words).zip(offsets) {
            let mut dots: [S::I; P] = core::array::from_fn(|p| simd.splat_i32(offsets[first + p]));
            for (bytes, words) in bytes.iter().zip(words.as_chunks::<2>().0) {
                let bytes = simd.factors(simd.load_bytes(bytes));
                for p in 0..P {
                    dots[p] = simd.dot4_high(dots[p], bytes, [words[0][first + p], words[1][first + p]]);
                }
            }
            let scale = simd.load(scale);
            for p in 0..P {
                // Multiplication and addition are separate, because some machines have no fused operation.
                sums[p] = simd.add(simd.mul(simd.i32_to_f32(dots[p]), scale), sums[p]);
            }
        }
        for p in 0..P {
            let seen = task.visible[first + p].saturating_sub(16 * stripe);
            let sum = if seen < 16 {
                simd.select((1u16 << seen) - 1, sums[p], lowest)
            } else {
                sums[p]
            };
            best[p] = simd.max(best[p], sum);
        }
        let place = task.before + stripe;
        if (place + 1).is_multiple_of(task.stripes) || stripe + 1 == count {
            for p in 0..P {
                // The unit is positive, so scaling after the maximum is equal.
                let largest = simd.reduce_max(best[p]);
                task.out[first + p][place / task.stripes] = if largest == f32::NEG_INFINITY {
                    largest
                } else {
                    largest * units[first + p]
                };
            }
            best = [lowest; P];
        }
    }
}
