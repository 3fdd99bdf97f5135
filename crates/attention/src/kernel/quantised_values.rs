//! o ← o·keep + weights · values over quantised values, for the rows of a tile.
//!
//! Both forms fold the values' scales into the weights. [`AccumulateQuantised`] widens the bytes and
//! multiplies in f32. [`AccumulateInt8`] rounds the scaled weights of a block of keys to 15 bits and a sign,
//! relative to the largest they could be, and sums integers: exact but for that rounding, which is below
//! 2⁻¹⁵ of the block's largest weight times its largest scale.

use super::accumulate::{WeighedRows, load_sums, store_sums};
use super::ahead::{Ahead, Fetch};
use super::{KEY_BLOCK, LARGEST_INTEGER, STRIPES, halves};
use crate::format::QUANT_BLOCK;
use crate::simd::{Kernel, Simd};
use crate::visible::low_bits;

/// By f32 multiply-adds.
pub(crate) struct AccumulateQuantised<'a, const R: usize, const FOUR_BITS: bool>(pub(crate) QuantisedTile<'a, R>);

/// By integer dot products.
pub(crate) struct AccumulateInt8<'a, const R: usize, const FOUR_BITS: bool>(pub(crate) QuantisedTile<'a, R>);

pub(crate) struct QuantisedTile<'a, const R: usize> {
    pub(crate) rows: WeighedRows<'a, R>,
    /// The block's stripes in the layout of a quantised value plane.
    pub(crate) values: &'a [u8],
}

impl<const R: usize> QuantisedTile<'_, R> {
    /// The 16 scales and the bytes of one block of columns of one stripe.
    #[inline(always)]
    fn block<const FOUR_BITS: bool>(&self, stripe: usize, block: usize) -> (&[u8; 32], &[[u8; 64]]) {
        let scales_len = 32 * self.rows.head_dim.div_ceil(QUANT_BLOCK);
        let bytes_per_column = if FOUR_BITS { 8 } else { 16 };
        let len = scales_len + bytes_per_column * self.rows.head_dim;
        let (scales, bytes) = self.values[stripe * len..][..len].split_at(scales_len);
        let width = (self.rows.head_dim - block * QUANT_BLOCK).min(QUANT_BLOCK);
        let bytes = &bytes[block * QUANT_BLOCK * bytes_per_column..][..width * bytes_per_column];
        (&scales.as_chunks().0[block], bytes.as_chunks().0)
    }

    fn blocks(&self) -> usize {
        self.rows.head_dim.div_ceil(QUANT_BLOCK)
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
        let whole = self.0.rows.head_dim / QUANT_BLOCK;
        let mut fetch = self.0.rows.ahead.over(self.0.rows.slots.len() * self.0.blocks());
        for block in 0..whole {
            widened_columns::<S, R, FOUR_BITS, 2>(simd, &mut self.0, block, &mut fetch);
        }
        if self.0.rows.head_dim > whole * QUANT_BLOCK {
            widened_columns::<S, R, FOUR_BITS, 1>(simd, &mut self.0, whole, &mut fetch);
        }
    }
}

#[inline(always)]
fn widened_columns<S: Simd, const R: usize, const FOUR_BITS: bool, const N: usize>(
    simd: S,
    tile: &mut QuantisedTile<'_, R>,
    block: usize,
    fetch: &mut Fetch,
) {
    let (head_dim, rows) = (tile.rows.head_dim, tile.rows.len());
    let offset = simd.splat(if FOUR_BITS { 8.0 } else { 128.0 });
    let mut sums: [[S::V; N]; R] = load_sums(simd, tile.rows.o, head_dim, rows, block * QUANT_BLOCK, tile.rows.keep);
    for (slot, place) in tile.rows.slots.iter().enumerate() {
        let (scales, bytes) = tile.block::<FOUR_BITS>(place.stripe, block);
        fetch.step(simd, 1);
        let scales = valid_scales(simd, scales, place.tokens);
        let mut scaled = [[0.0; 16]; R];
        for r in 0..R {
            let weight = simd.load(&tile.rows.weights[r].as_chunks().0[slot]);
            simd.store(simd.mul(weight, scales), &mut scaled[r]);
        }
        for four in 0..place.tokens.min(16).div_ceil(4) {
            for n in 0..N {
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
    store_sums(simd, tile.rows.o, head_dim, rows, block * QUANT_BLOCK, &sums);
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
    /// As integers, four tokens in the first two words of every four.
    words: [[[i32; 16]; R]; STRIPES],
    /// What one of the integers stands for.
    unit: [f32; R],
    /// What the values' offset adds to every sum.
    offset: [i32; R],
}

impl<const R: usize, const FOUR_BITS: bool> Kernel for AccumulateInt8<'_, R, FOUR_BITS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let tile = &mut self.0;
        let mut scratch = Scratch {
            scaled: [[[0.0; 16]; R]; STRIPES],
            words: [[[0; 16]; R]; STRIPES],
            unit: [0.0; R],
            offset: [0; R],
        };
        let mut fetch = tile
            .rows
            .ahead
            .over(tile.rows.slots.len() * 4 * (tile.rows.head_dim / 16));
        for block in 0..tile.blocks() {
            round_weights::<S, R, FOUR_BITS>(simd, tile, &mut scratch, block);
            if tile.rows.head_dim - block * QUANT_BLOCK > 16 {
                integer_columns::<S, R, FOUR_BITS, 2>(simd, tile, &scratch, block, &mut fetch);
            } else {
                integer_columns::<S, R, FOUR_BITS, 1>(simd, tile, &scratch, block, &mut fetch);
            }
        }
    }
}

/// Fills the scratch with the rows' weights of a block of keys, times the values' scales of a block of columns.
#[inline(always)]
fn round_weights<S: Simd, const R: usize, const FOUR_BITS: bool>(
    simd: S,
    tile: &QuantisedTile<'_, R>,
    scratch: &mut Scratch<R>,
    block: usize,
) {
    // Largest over what each row sees, so that a token it does not see changes none of its bits.
    let mut largest = [simd.splat(0.0); R];
    for ((slot, place), scaled) in tile.rows.slots.iter().enumerate().zip(&mut scratch.scaled) {
        let (scales, _) = tile.block::<FOUR_BITS>(place.stripe, block);
        let scales = valid_scales(simd, scales, place.tokens);
        for r in 0..R {
            let product = simd.mul(simd.load(&tile.rows.weights[r].as_chunks().0[slot]), scales);
            largest[r] = simd.max(simd.max(product, simd.sub(simd.splat(0.0), product)), largest[r]);
            simd.store(product, &mut scaled[r]);
        }
    }
    let mut inverse = [simd.splat(0.0); R];
    for r in 0..R {
        // A block whose every product is below 1e-30 adds nothing that a sum of weights ≥ 1 would keep.
        let largest = simd.reduce_max(largest[r]);
        scratch.unit[r] = largest / LARGEST_INTEGER;
        inverse[r] = simd.splat(if largest > 1e-30 {
            LARGEST_INTEGER / largest
        } else {
            0.0
        });
    }
    let mut totals = [simd.splat_i32(0); R];
    let words = scratch.words.iter_mut().zip(&scratch.scaled);
    for ((words, scaled), place) in words.zip(tile.rows.slots) {
        // By the token's own place, so that the stripes which rows beside see change none of a row's bits.
        let dither = simd.load(&DITHER[place.stripe % STRIPES]);
        for r in 0..R {
            let whole = simd.to_i32(simd.fma(simd.load(&scaled[r]), inverse[r], dither));
            totals[r] = simd.add_i32(totals[r], whole);
            simd.pack_words(whole, &mut words[r]);
        }
    }
    for r in 0..R {
        scratch.offset[r] = if FOUR_BITS { -8 } else { -128 } * simd.reduce_add_i32(totals[r]);
    }
}

/// Adds a block of `N` vectors of columns, as many rows and vectors at once as have room for their sums in registers.
#[inline(always)]
fn integer_columns<S: Simd, const R: usize, const FOUR_BITS: bool, const N: usize>(
    simd: S,
    tile: &mut QuantisedTile<'_, R>,
    scratch: &Scratch<R>,
    block: usize,
    fetch: &mut Fetch,
) {
    if S::WIDE {
        return integer_part::<S, R, FOUR_BITS, N, R, N>(simd, tile, scratch, block, (0, 0), fetch);
    }
    let mut idle = Ahead::default().over(1);
    for vector in 0..N {
        let at = |row: usize| (row, vector);
        match R {
            8 => {
                integer_part::<S, R, FOUR_BITS, N, 4, 1>(simd, tile, scratch, block, at(0), fetch);
                integer_part::<S, R, FOUR_BITS, N, 4, 1>(simd, tile, scratch, block, at(4), &mut idle);
            }
            6 => {
                integer_part::<S, R, FOUR_BITS, N, 3, 1>(simd, tile, scratch, block, at(0), fetch);
                integer_part::<S, R, FOUR_BITS, N, 3, 1>(simd, tile, scratch, block, at(3), &mut idle);
            }
            _ => integer_part::<S, R, FOUR_BITS, N, R, 1>(simd, tile, scratch, block, at(0), fetch),
        }
    }
}

/// `P` rows and `M` vectors of columns, from the row and the vector given on, of a block of `N` vectors.
#[inline(always)]
fn integer_part<S: Simd, const R: usize, const FOUR_BITS: bool, const N: usize, const P: usize, const M: usize>(
    simd: S,
    tile: &mut QuantisedTile<'_, R>,
    scratch: &Scratch<R>,
    block: usize,
    (row, vector): (usize, usize),
    fetch: &mut Fetch,
) {
    let (head_dim, rows) = (tile.rows.head_dim, tile.rows.len());
    let Some(rows) = rows.checked_sub(row) else { return };
    let mut sums = [[simd.zero_sums(); M]; P];
    for (slot, place) in tile.rows.slots.iter().enumerate() {
        let (_, bytes) = tile.block::<FOUR_BITS>(place.stripe, block);
        let words = &scratch.words[slot];
        for four in 0..4usize {
            fetch.step(simd, M);
            for m in 0..M {
                let values = simd.factors(four_tokens::<S, FOUR_BITS, N>(simd, bytes, four, vector + m));
                for p in 0..P {
                    let words = [words[row + p][4 * four], words[row + p][4 * four + 1]];
                    sums[p][m] = simd.dot4(sums[p][m], values, words);
                }
            }
        }
    }
    let keep: [f32; P] = core::array::from_fn(|p| tile.rows.keep[row + p]);
    let column = block * QUANT_BLOCK + 16 * vector;
    let o = &mut tile.rows.o[row * head_dim..];
    let mut out: [[S::V; M]; P] = load_sums(simd, o, head_dim, rows, column, &keep);
    for p in 0..P {
        for m in 0..M {
            let sum = simd.add_i32(simd.sums_to_i32(sums[p][m]), simd.splat_i32(scratch.offset[row + p]));
            out[p][m] = simd.fma(simd.i32_to_f32(sum), simd.splat(scratch.unit[row + p]), out[p][m]);
        }
    }
    store_sums(simd, o, head_dim, rows, column, &out);
}
