//! o ← o·keep + weights · values over quantised values, for the rows of a tile.
//!
//! Both forms fold the values' scales into the weights. [`AccumulateQuantised`] widens the bytes and
//! multiplies in f32. [`AccumulateInt8`] rounds the scaled weights of a block of keys to 15 bits and a sign,
//! relative to the largest they could be, and sums integers: exact but for that rounding, which is below
//! 2⁻¹⁵ of the block's largest weight times its largest scale.

use super::accumulate::{load_sums, store_sums};
use super::{KEY_BLOCK, STRIPES, Slot, halves};
use crate::format::QUANT_BLOCK;
use crate::simd::{Kernel, Simd};
use crate::visible::low_bits;

/// By f32 multiply-adds.
pub(crate) struct AccumulateQuantised<'a, const R: usize, const FOUR_BITS: bool>(pub(crate) QuantisedTile<'a, R>);

/// By integer dot products.
pub(crate) struct AccumulateInt8<'a, const R: usize, const FOUR_BITS: bool>(pub(crate) QuantisedTile<'a, R>);

pub(crate) struct QuantisedTile<'a, const R: usize> {
    pub(crate) weights: &'a [[f32; KEY_BLOCK]; R],
    /// The block's stripes in the layout of a quantised value plane.
    pub(crate) values: &'a [u8],
    /// Stripes that will be accumulated next, to be fetched meanwhile; may be empty.
    pub(crate) ahead: &'a [u8],
    pub(crate) slots: &'a [Slot],
    pub(crate) keep: &'a [f32; R],
    /// `[rows, head_dim]`, rows ≤ R.
    pub(crate) o: &'a mut [f32],
    pub(crate) head_dim: usize,
}

impl<const R: usize> QuantisedTile<'_, R> {
    /// The 16 scales and the bytes of one block of columns of one stripe.
    #[inline(always)]
    fn block<const FOUR_BITS: bool>(&self, stripe: usize, block: usize) -> (&[u8; 32], &[[u8; 64]]) {
        let scales_len = 32 * self.head_dim.div_ceil(QUANT_BLOCK);
        let bytes_per_column = if FOUR_BITS { 8 } else { 16 };
        let len = scales_len + bytes_per_column * self.head_dim;
        let (scales, bytes) = self.values[stripe * len..][..len].split_at(scales_len);
        let width = (self.head_dim - block * QUANT_BLOCK).min(QUANT_BLOCK);
        let bytes = &bytes[block * QUANT_BLOCK * bytes_per_column..][..width * bytes_per_column];
        (&scales.as_chunks().0[block], bytes.as_chunks().0)
    }

    /// What lies at the place of the block's bytes in the stripes that come next; empty without any. Lines of
    /// `q8_0` are asked for one by one as the block's own are used, so that requests never queue.
    #[inline(always)]
    fn ahead<const FOUR_BITS: bool>(&self, stripe: usize, block: usize) -> &[u8] {
        let scales_len = 32 * self.head_dim.div_ceil(QUANT_BLOCK);
        let bytes_per_column = if FOUR_BITS { 8 } else { 16 };
        let len = scales_len + bytes_per_column * self.head_dim;
        // The first block's share begins with the scales of all.
        let first = stripe * len + block * (QUANT_BLOCK * bytes_per_column);
        self.ahead.get(first..).unwrap_or_default()
    }
}

/// Asks for the lines of the next stripe that its blocks do not: of `q8_0`, as many as its scales fill; of `q4_0`, all,
/// at once, since its work outlasts its reads.
#[inline(always)]
fn fetch_rest<S: Simd, const FOUR_BITS: bool>(simd: S, ahead: &[u8], head_dim: usize) {
    let end = 32 * head_dim.div_ceil(QUANT_BLOCK) + head_dim * if FOUR_BITS { 8 } else { 16 };
    let first = if FOUR_BITS { 0 } else { 16 * head_dim };
    for at in (first..end.min(ahead.len())).step_by(64) {
        simd.prefetch(ahead, at);
    }
}

/// Scales of a stripe's valid tokens, zero for the others, whose bytes mean nothing.
#[inline(always)]
fn valid_scales<S: Simd>(simd: S, scales: &[u8; 32], tokens: usize) -> S::V {
    let scales = simd.load_f16(&halves(scales));
    if tokens >= 16 {
        return scales;
    }
    simd.select(low_bits(tokens) as u16, scales, simd.splat(0.0))
}

impl<const R: usize, const FOUR_BITS: bool> Kernel for AccumulateQuantised<'_, R, FOUR_BITS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let whole = self.0.head_dim / QUANT_BLOCK;
        for block in 0..whole {
            widened_columns::<S, R, FOUR_BITS, 2>(simd, &mut self.0, block);
        }
        if self.0.head_dim > whole * QUANT_BLOCK {
            widened_columns::<S, R, FOUR_BITS, 1>(simd, &mut self.0, whole);
        }
    }
}

#[inline(always)]
fn widened_columns<S: Simd, const R: usize, const FOUR_BITS: bool, const N: usize>(
    simd: S,
    tile: &mut QuantisedTile<'_, R>,
    block: usize,
) {
    let (head_dim, rows) = (tile.head_dim, tile.o.len() / tile.head_dim);
    let offset = simd.splat(if FOUR_BITS { 8.0 } else { 128.0 });
    let mut sums: [[S::V; N]; R] = load_sums(simd, tile.o, head_dim, rows, block * QUANT_BLOCK, tile.keep);
    for (slot, place) in tile.slots.iter().enumerate() {
        let (scales, bytes) = tile.block::<FOUR_BITS>(place.stripe, block);
        let ahead = tile.ahead::<FOUR_BITS>(place.stripe, block);
        if block == 0 {
            fetch_rest::<S, FOUR_BITS>(simd, ahead, head_dim);
        }
        let scales = valid_scales(simd, scales, place.tokens);
        let mut scaled = [[0.0; 16]; R];
        for r in 0..R {
            let weight = simd.load(&tile.weights[r].as_chunks().0[slot]);
            simd.store(simd.mul(weight, scales), &mut scaled[r]);
        }
        for four in 0..place.tokens.min(16).div_ceil(4) {
            for n in 0..N {
                if !FOUR_BITS {
                    simd.prefetch(ahead, 64 * (four * N + n));
                }
                let bytes = four_tokens::<S, FOUR_BITS, N>(simd, bytes, four, n);
                let values = [
                    simd.byte_to_f32::<0>(bytes),
                    simd.byte_to_f32::<1>(bytes),
                    simd.byte_to_f32::<2>(bytes),
                    simd.byte_to_f32::<3>(bytes),
                ];
                for (t, value) in values.into_iter().enumerate() {
                    let value = simd.sub(value, offset);
                    for r in 0..R {
                        sums[r][n] = simd.fma(simd.splat(scaled[r][4 * four + t]), value, sums[r][n]);
                    }
                }
            }
        }
    }
    store_sums(simd, tile.o, head_dim, rows, block * QUANT_BLOCK, &sums);
}

/// Columns `16·n..` of a block for tokens `4·four..`, unsigned with their offset.
#[inline(always)]
pub(super) fn four_tokens<S: Simd, const FOUR_BITS: bool, const N: usize>(
    simd: S,
    bytes: &[[u8; 64]],
    four: usize,
    n: usize,
) -> S::B {
    if !FOUR_BITS {
        return simd.load_bytes(&bytes[four * N + n]);
    }
    let both = simd.load_bytes(&bytes[four / 2 * N + n]);
    if four.is_multiple_of(2) {
        simd.low_nibbles(both)
    } else {
        simd.high_nibbles(both)
    }
}

/// Integers of this magnitude, and one more, split into two signed bytes.
const LARGEST_WEIGHT: f32 = 32511.0;

/// Added before rounding, multiples of the golden ratio: many small weights beside a large one then keep
/// their sum, where plain rounding would lose them all. Zero stays zero.
const DITHER: [[f32; 16]; STRIPES] = {
    let mut dither = [[0.0; 16]; STRIPES];
    let mut token = 0;
    while token < KEY_BLOCK {
        let turn = (token as u32).wrapping_mul(0x9e37_79b9) >> 16;
        dither[token / 16][token % 16] = (turn as f32 / 65536.0 - 0.5) * 0.99;
        token += 1;
    }
    dither
};

/// The weights of a block of keys for one block of columns, by stripe and row.
struct Scratch<const R: usize> {
    /// Times the values' scales.
    scaled: [[[f32; 16]; R]; STRIPES],
    /// As integers, four tokens to a word.
    words: [[[i32; 16]; R]; STRIPES],
}

impl<const R: usize, const FOUR_BITS: bool> Kernel for AccumulateInt8<'_, R, FOUR_BITS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let tile = &mut self.0;
        let mut scratch = Scratch {
            scaled: [[[0.0; 16]; R]; STRIPES],
            words: [[[0; 16]; R]; STRIPES],
        };
        let whole = tile.head_dim / QUANT_BLOCK;
        for block in 0..whole {
            integer_columns::<S, R, FOUR_BITS, 2>(simd, tile, &mut scratch, block);
        }
        if tile.head_dim > whole * QUANT_BLOCK {
            integer_columns::<S, R, FOUR_BITS, 1>(simd, tile, &mut scratch, whole);
        }
    }
}

#[inline(always)]
fn integer_columns<S: Simd, const R: usize, const FOUR_BITS: bool, const N: usize>(
    simd: S,
    tile: &mut QuantisedTile<'_, R>,
    scratch: &mut Scratch<R>,
    block: usize,
) {
    let (head_dim, rows) = (tile.head_dim, tile.o.len() / tile.head_dim);
    // Largest over what each row sees, so that a token it does not see changes none of its bits.
    let mut largest = [simd.splat(0.0); R];
    for ((slot, place), scaled) in tile.slots.iter().enumerate().zip(&mut scratch.scaled) {
        let (scales, _) = tile.block::<FOUR_BITS>(place.stripe, block);
        let scales = valid_scales(simd, scales, place.tokens);
        for r in 0..R {
            let product = simd.mul(simd.load(&tile.weights[r].as_chunks().0[slot]), scales);
            largest[r] = simd.max(simd.max(product, simd.sub(simd.splat(0.0), product)), largest[r]);
            simd.store(product, &mut scaled[r]);
        }
    }
    let mut unit = [0.0; R];
    let mut inverse = [simd.splat(0.0); R];
    for r in 0..R {
        // A block whose every product is below 1e-30 adds nothing that a sum of weights ≥ 1 would keep.
        let largest = simd.reduce_max(largest[r]);
        unit[r] = largest / LARGEST_WEIGHT;
        inverse[r] = simd.splat(if largest > 1e-30 { LARGEST_WEIGHT / largest } else { 0.0 });
    }
    let mut totals = [simd.splat_i32(0); R];
    let words = scratch.words.iter_mut().zip(&scratch.scaled).zip(&DITHER);
    for ((words, scaled), dither) in words.take(tile.slots.len()) {
        let dither = simd.load(dither);
        for r in 0..R {
            let whole = simd.to_i32(simd.fma(simd.load(&scaled[r]), inverse[r], dither));
            totals[r] = simd.add_i32(totals[r], whole);
            simd.byte_planes(whole, &mut words[r]);
        }
    }

    let mut sums = [[[simd.splat_i32(0); N]; 2]; R];
    for (slot, place) in tile.slots.iter().enumerate() {
        let (_, bytes) = tile.block::<FOUR_BITS>(place.stripe, block);
        let ahead = tile.ahead::<FOUR_BITS>(place.stripe, block);
        if block == 0 {
            fetch_rest::<S, FOUR_BITS>(simd, ahead, head_dim);
        }
        for four in 0..4usize {
            if !FOUR_BITS {
                for n in 0..N {
                    simd.prefetch(ahead, 64 * (four * N + n));
                }
            }
            let values: [S::B; N] = core::array::from_fn(|n| four_tokens::<S, FOUR_BITS, N>(simd, bytes, four, n));
            for r in 0..R {
                for plane in 0..2 {
                    let weights = scratch.words[slot][r][4 * four + plane];
                    for n in 0..N {
                        sums[r][plane][n] = simd.dot4(sums[r][plane][n], values[n], weights);
                    }
                }
            }
        }
    }
    let offset = if FOUR_BITS { 8.0 } else { 128.0 };
    let mut o: [[S::V; N]; R] = load_sums(simd, tile.o, head_dim, rows, block * QUANT_BLOCK, tile.keep);
    for r in 0..R {
        // Below 2²⁴: exact.
        let total = simd.reduce_add_i32(totals[r]) as f32;
        for n in 0..N {
            let low = simd.sub(simd.i32_to_f32(sums[r][1][n]), simd.splat(offset * total));
            let sum = simd.fma(simd.i32_to_f32(sums[r][0][n]), simd.splat(256.0), low);
            o[r][n] = simd.fma(sum, simd.splat(unit[r]), o[r][n]);
        }
    }
    store_sums(simd, tile.o, head_dim, rows, block * QUANT_BLOCK, &o);
}
