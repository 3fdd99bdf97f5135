use alloc::vec::Vec;

use super::{KEY_BLOCK, Slot, halves};
use crate::format::QUANT_BLOCK;
use crate::simd::{Kernel, Simd};

/// Queries as two planes of signed bytes per block of 32: q = scale·(high + low/254), 15 bits in all, so
/// that the integer dot product loses nothing that single precision would keep of an 8-bit key.
#[derive(Debug, Default)]
pub(crate) struct Int8Queries {
    /// `[head_dim / 4, 2, R]`: four bytes of the high plane, then of the low plane.
    words: Vec<i32>,
    /// `[blocks, R]`: scale, Σ high, Σ low.
    blocks: Vec<(f32, i32, i32)>,
}

impl Int8Queries {
    /// Quantises `[head_dim, R]`.
    pub(crate) fn pack<const R: usize>(&mut self, queries: &[[f32; R]]) {
        self.words.clear();
        self.words.resize(queries.len() / 2 * R, 0);
        self.blocks.clear();
        for (b, block) in queries.chunks(QUANT_BLOCK).enumerate() {
            for r in 0..R {
                let largest = block.iter().fold(0.0f32, |m, q| m.max(q[r].abs()));
                let scale = largest / 127.0;
                let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
                let (mut high_sum, mut low_sum) = (0, 0);
                for (g, four) in block.chunks_exact(4).enumerate() {
                    let (mut high, mut low) = ([0u8; 4], [0u8; 4]);
                    for (i, q) in four.iter().enumerate() {
                        let exact = q[r] * inverse;
                        let top = round(exact);
                        let rest = round((exact - top) * 254.0);
                        high_sum += top as i32;
                        low_sum += rest as i32;
                        (high[i], low[i]) = (top as i8 as u8, rest as i8 as u8);
                    }
                    let at = (b * QUANT_BLOCK / 4 + g) * 2 * R + r;
                    self.words[at] = i32::from_le_bytes(high);
                    self.words[at + R] = i32::from_le_bytes(low);
                }
                self.blocks.push((scale, high_sum, low_sum));
            }
        }
    }
}

fn round(x: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0;
    (x + MAGIC) - MAGIC
}

/// Logits of a tile over quantised keys by integer dot products.
pub(crate) struct ScoreInt8<'a, const R: usize, const FOUR_BITS: bool> {
    pub(crate) queries: &'a Int8Queries,
    /// The block's stripes in the layout of a quantised key plane.
    pub(crate) keys: &'a [u8],
    /// Stripes that will be scored next, to be fetched meanwhile; may be empty.
    pub(crate) ahead: &'a [u8],
    pub(crate) slots: &'a [Slot],
    pub(crate) head_dim: usize,
    pub(crate) scores: &'a mut [[f32; KEY_BLOCK]; R],
}

impl<const R: usize, const FOUR_BITS: bool> Kernel for ScoreInt8<'_, R, FOUR_BITS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let bytes_per_dim = if FOUR_BITS { 8 } else { 16 };
        let len = 32 * self.head_dim.div_ceil(QUANT_BLOCK) + bytes_per_dim * self.head_dim;
        let offset = if FOUR_BITS { -8 } else { -128 };
        let words = self.queries.words.as_chunks::<R>().0;
        let blocks = self.queries.blocks.as_chunks::<R>().0;
        for (slot, place) in self.slots.iter().enumerate() {
            let mut data = &self.keys[place.stripe * len..][..len];
            let first = place.stripe * len;
            let mut ahead = self.ahead.get(first..first + len).unwrap_or_default();
            let mut words = words;
            let mut sums = [simd.splat(0.0); R];
            for (b, block) in blocks.iter().enumerate() {
                let width = (self.head_dim - b * QUANT_BLOCK).min(QUANT_BLOCK);
                let (scale, rest) = data.split_first_chunk::<32>().expect("a block begins with its scales");
                let (bytes, rest) = rest.split_at(width * bytes_per_dim);
                data = rest;
                let (block_words, rest) = words.split_at(width / 2);
                words = rest;
                let mut high: [S::I; R] = core::array::from_fn(|r| simd.splat_i32(offset * block[r].1));
                let mut low: [S::I; R] = core::array::from_fn(|r| simd.splat_i32(offset * block[r].2));
                let bytes = bytes.as_chunks::<64>().0;
                let (now, later) = ahead.split_at((32 + width * bytes_per_dim).min(ahead.len()));
                ahead = later;
                for at in (0..now.len()).step_by(64) {
                    simd.prefetch(now, at);
                }
                if FOUR_BITS {
                    for (bytes, words) in bytes.iter().zip(block_words.as_chunks::<4>().0) {
                        let bytes = simd.load_bytes(bytes);
                        let (first, second) = (simd.low_nibbles(bytes), simd.high_nibbles(bytes));
                        for r in 0..R {
                            high[r] = simd.dot4(high[r], first, words[0][r]);
                            low[r] = simd.dot4(low[r], first, words[1][r]);
                        }
                        for r in 0..R {
                            high[r] = simd.dot4(high[r], second, words[2][r]);
                            low[r] = simd.dot4(low[r], second, words[3][r]);
                        }
                    }
                } else {
                    for (bytes, words) in bytes.iter().zip(block_words.as_chunks::<2>().0) {
                        let bytes = simd.load_bytes(bytes);
                        for r in 0..R {
                            high[r] = simd.dot4(high[r], bytes, words[0][r]);
                            low[r] = simd.dot4(low[r], bytes, words[1][r]);
                        }
                    }
                }
                let scale = simd.load_f16(&halves(scale));
                for r in 0..R {
                    let low = simd.i32_to_f32(low[r]);
                    let dot = simd.fma(low, simd.splat(1.0 / 254.0), simd.i32_to_f32(high[r]));
                    sums[r] = simd.fma(simd.mul(dot, simd.splat(block[r].0)), scale, sums[r]);
                }
            }
            for r in 0..R {
                simd.store(sums[r], &mut self.scores[r].as_chunks_mut::<16>().0[slot]);
            }
        }
    }
}
