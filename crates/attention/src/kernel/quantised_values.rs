//! o ← o·keep + weights · values over quantised values, for the rows of a tile.
//!
//! Both forms fold the values' scales into the weights. [`AccumulateQuantised`] widens the bytes and multiplies in f32.
//! [`AccumulateInt8`] rounds the scaled weights of a block of keys to 15 bits and a sign, and sums integers. The
//! rounding is relative to the block's largest weight times its largest scale. Only this rounding is inexact; its error
//! is below 2⁻¹⁵ of the product.

use core::marker::PhantomData;

use super::accumulate::{WeighedRows, load_sums, store_sums};
use super::ahead::{Ahead, Fetch};
use super::int8::rows_at_once;
use super::{KEY_BLOCK, LARGEST_INTEGER, STRIPES, halves};
use crate::format::{PlaneKind, QUANT_BLOCK, Quant, block_of, stripe_bytes};
use crate::simd::{Kernel, Simd};
use crate::visible::low_bits;

/// Accumulates quantised values by f32 multiply-adds.
pub(crate) struct AccumulateQuantised<'a, Q: Quant, const R: usize>(pub(crate) QuantisedTile<'a, Q, R>);

/// Accumulates quantised values by integer dot products.
pub(crate) struct AccumulateInt8<'a, Q: Quant, const R: usize>(pub(crate) QuantisedTile<'a, Q, R>);

pub(crate) struct QuantisedTile<'a, Q: Quant, const R: usize> {
    pub(crate) rows: WeighedRows<'a, R>,
    /// The block's stripes in the layout of a quantised value plane.
    pub(crate) values: &'a [u8],
    pub(crate) format: PhantomData<Q>,
}

impl<Q: Quant, const R: usize> QuantisedTile<'_, Q, R> {
    /// The 16 scales and the bytes of one column block of one stripe.
    #[inline(always)]
    fn block(&self, stripe: usize, block: usize) -> (&[u8; 32], &[u8]) {
        let len = stripe_bytes::<Q>(self.rows.head_dim);
        let stripe = &self.values[stripe * len..][..len];
        block_of::<Q>(PlaneKind::Values, stripe, self.rows.head_dim, block)
    }

    fn blocks(&self) -> usize {
        self.rows.head_dim.div_ceil(QUANT_BLOCK)
    }
}

/// Scales of a stripe's valid tokens; zero for the others, whose bytes are undefined.
#[inline(always)]
fn valid_scales<S: Simd>(simd: S, scales: &[u8; 32], tokens: usize) -> S::V {
    let scales = simd.load_f16(&halves(scales));
    if tokens >= 16 {
        return scales;
    }
    simd.select(low_bits(tokens) as u16, scales, simd.splat(0.0))
}

impl<Q: Quant, const R: usize> Kernel for AccumulateQuantised<'_, Q, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let whole = self.0.rows.head_dim / QUANT_BLOCK;
        let mut fetch = self.0.rows.ahead.over(self.0.rows.slots.len() * self.0.blocks());
        for block in 0..whole {
            widened_columns::<S, Q, R, 2>(simd, &mut self.0, block, &mut fetch);
        }
        if self.0.rows.head_dim > whole * QUANT_BLOCK {
            widened_columns::<S, Q, R, 1>(simd, &mut self.0, whole, &mut fetch);
        }
    }
}

#[inline(always)]
fn widened_columns<S: Simd, Q: Quant, const R: usize, const N: usize>(
    simd: S,
    tile: &mut QuantisedTile<'_, Q, R>,
    block: usize,
    fetch: &mut Fetch,
) {
    let (head_dim, rows) = (tile.rows.head_dim, tile.rows.len());
    let offset = simd.splat(Q::OFFSET as f32);
    let mut sums: [[S::V; N]; R] = load_sums(simd, tile.rows.o, head_dim, rows, block * QUANT_BLOCK, tile.rows.keep);
    for (slot, place) in tile.rows.slots.iter().enumerate() {
        let (scales, bytes) = tile.block(place.stripe, block);
        fetch.step(simd, 1);
        let scales = valid_scales(simd, scales, place.tokens);
        let mut scaled = [[0.0; 16]; R];
        for r in 0..R {
            let weight = simd.load(&tile.rows.weights[r].as_chunks().0[slot]);
            simd.store(simd.mul(weight, scales), &mut scaled[r]);
        }
        for four in 0..place.tokens.min(16).div_ceil(4) {
            for n in 0..N {
                let bytes = Q::four_tokens::<S, N>(simd, bytes, four, n);
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

/// Dither, added before rounding: multiples of the golden ratio. Many small weights beside a large one keep their
/// sum, which plain rounding would lose. Zero stays zero.
pub(super) const DITHER: [[f32; 16]; STRIPES] = {
    let mut dither = [[0.0; 16]; STRIPES];
    let mut token = 0;
    while token < KEY_BLOCK {
        let turn = (token as u32).wrapping_mul(0x9e37_79b9) >> 16;
        dither[token / 16][token % 16] = (turn as f32 / 65536.0 - 0.5) * 0.99;
        token += 1;
    }
    dither
};

/// The integer weights of a block of keys, by slot and row: four tokens in the first two words of every four.
type Words<const R: usize> = [[[i32; 16]; R]; STRIPES];

/// Rounding of the weights of a block of keys for one column block.
struct Rounding<S: Simd, const R: usize> {
    block: usize,
    /// Factor of a scale that maps the largest scale the row sees to the largest integer. Equal for all rows if all
    /// see the same tokens.
    factor: [S::V; R],
    /// Value of one integer unit.
    unit: [f32; R],
    /// Sums of the integers, by lane.
    totals: [S::I; R],
}

impl<Q: Quant, const R: usize> Kernel for AccumulateInt8<'_, Q, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let tile = &mut self.0;
        let largest = make_relative(simd, &mut tile.rows);
        let mut words: Words<R> = [[[0; 16]; R]; STRIPES];
        let mut fetch = tile
            .rows
            .ahead
            .over(tile.rows.slots.len() * 4 * (tile.rows.head_dim / 16));
        for block in 0..tile.blocks() {
            let rounding = Rounding::new(simd, tile, &largest, block);
            if tile.rows.head_dim - block * QUANT_BLOCK > 16 {
                integer_columns::<S, Q, R, 2>(simd, tile, &mut words, rounding, &mut fetch);
            } else {
                integer_columns::<S, Q, R, 1>(simd, tile, &mut words, rounding, &mut fetch);
            }
        }
    }
}

/// Divides each row's weights by the row's largest, and returns the largest weights.
#[inline(always)]
fn make_relative<S: Simd, const R: usize>(simd: S, rows: &mut WeighedRows<'_, R>) -> [f32; R] {
    let mut all = [0.0; R];
    for r in 0..R {
        let lanes = &mut rows.weights[r].as_chunks_mut::<16>().0[..rows.slots.len()];
        let mut largest = simd.splat(0.0);
        for lane in lanes.iter() {
            largest = simd.max(simd.load(lane), largest);
        }
        all[r] = simd.reduce_max(largest);
        // A block with all weights below 1e-30 adds nothing to a sum of weights ≥ 1.
        let inverse = simd.splat(if all[r] > 1e-30 { 1.0 / all[r] } else { 0.0 });
        for lane in lanes {
            simd.store(simd.mul(simd.load(lane), inverse), lane);
        }
    }
    all
}

impl<S: Simd, const R: usize> Rounding<S, R> {
    #[inline(always)]
    fn new<Q: Quant>(simd: S, tile: &QuantisedTile<'_, Q, R>, largest_weights: &[f32; R], block: usize) -> Self {
        let zero = simd.splat(0.0);
        // Maximum over the tokens that each row sees, so that unseen tokens change none of its bits.
        let mut largest = [zero; R];
        for (slot, place) in tile.rows.slots.iter().enumerate() {
            let (scales, _) = tile.block(place.stripe, block);
            let scales = valid_scales(simd, scales, place.tokens);
            let size = simd.max(scales, simd.sub(zero, scales));
            let Some(masks) = tile.rows.masks else {
                largest[0] = simd.max(size, largest[0]);
                continue;
            };
            for r in 0..R {
                largest[r] = simd.max(simd.select(masks[r][slot], size, zero), largest[r]);
            }
        }
        let mut rounding = Self {
            block,
            factor: [zero; R],
            unit: [0.0; R],
            totals: [simd.splat_i32(0); R],
        };
        let mut scale = simd.reduce_max(largest[0]);
        for r in 0..R {
            if r > 0 && tile.rows.masks.is_some() {
                scale = simd.reduce_max(largest[r]);
            }
            rounding.factor[r] = simd.splat(if scale > 0.0 { LARGEST_INTEGER / scale } else { 0.0 });
            rounding.unit[r] = largest_weights[r] * (scale / LARGEST_INTEGER);
        }
        rounding
    }

    /// Rounds the rows' weights of a slot.
    #[inline(always)]
    fn round<Q: Quant>(&mut self, simd: S, tile: &QuantisedTile<'_, Q, R>, slot: usize, words: &mut [[i32; 16]; R]) {
        let place = tile.rows.slots[slot];
        let (scales, _) = tile.block(place.stripe, self.block);
        let scales = valid_scales(simd, scales, place.tokens);
        // Dither depends on the token's own stripe, so that stripes of other rows change no bits of this row.
        let dither = simd.load(&DITHER[place.stripe % STRIPES]);
        let mut scaled = simd.mul(scales, self.factor[0]);
        for r in 0..R {
            if r > 0 && tile.rows.masks.is_some() {
                scaled = simd.mul(scales, self.factor[r]);
            }
            let relative = simd.load(&tile.rows.weights[r].as_chunks().0[slot]);
            let whole = simd.to_i32(simd.fma(relative, scaled, dither));
            self.totals[r] = simd.add_i32(self.totals[r], whole);
            simd.pack_words(whole, &mut words[r]);
        }
    }
}

/// Adds a block of `N` vectors of columns. It takes as many rows and vectors at once as have room for their sums in
/// registers.
#[inline(always)]
fn integer_columns<S: Simd, Q: Quant, const R: usize, const N: usize>(
    simd: S,
    tile: &mut QuantisedTile<'_, Q, R>,
    words: &mut Words<R>,
    mut rounding: Rounding<S, R>,
    fetch: &mut Fetch,
) {
    let rounding = &mut rounding;
    if S::WIDE && R < 8 {
        return integer_part::<S, Q, R, N, R, N>(simd, tile, words, rounding, (0, 0), fetch);
    }
    let mut idle = Ahead::default().over(1);
    let at_once = rows_at_once(S::INTEGER_ROWS, R);
    for vector in 0..N {
        for row in (0..R).step_by(at_once) {
            let (at, fetch) = ((row, vector), if row == 0 { &mut *fetch } else { &mut idle });
            match at_once {
                1 => integer_part::<S, Q, R, N, 1, 1>(simd, tile, words, rounding, at, fetch),
                2 => integer_part::<S, Q, R, N, 2, 1>(simd, tile, words, rounding, at, fetch),
                3 => integer_part::<S, Q, R, N, 3, 1>(simd, tile, words, rounding, at, fetch),
                4 => integer_part::<S, Q, R, N, 4, 1>(simd, tile, words, rounding, at, fetch),
                _ => integer_part::<S, Q, R, N, R, 1>(simd, tile, words, rounding, at, fetch),
            }
        }
    }
}

/// `P` rows and `M` vectors of columns, from the given row and vector on, of a block of `N` vectors.
///
/// The first part of a block also rounds the weights of all rows. If registers suffice, it does so one slot ahead of
/// the product, so that the processor overlaps both.
#[inline(always)]
fn integer_part<S: Simd, Q: Quant, const R: usize, const N: usize, const P: usize, const M: usize>(
    simd: S,
    tile: &mut QuantisedTile<'_, Q, R>,
    words: &mut Words<R>,
    rounding: &mut Rounding<S, R>,
    (row, vector): (usize, usize),
    fetch: &mut Fetch,
) {
    let (head_dim, rows, slots) = (tile.rows.head_dim, tile.rows.len(), tile.rows.slots.len());
    let first = row == 0 && vector == 0;
    let lead = if S::WIDE { 1 } else { slots };
    for slot in (0..lead.min(slots)).filter(|_| first) {
        rounding.round(simd, tile, slot, &mut words[slot]);
    }
    let mut sums = [[simd.zero_sums(); M]; P];
    for slot in 0..slots {
        if first && slot + lead < slots {
            rounding.round(simd, tile, slot + lead, &mut words[slot + lead]);
        }
        fetch.step(simd, 4 * M);
        let (_, bytes) = tile.block(tile.rows.slots[slot].stripe, rounding.block);
        let words = &words[slot];
        for four in 0..4usize {
            for m in 0..M {
                let bytes = Q::four_tokens::<S, N>(simd, bytes, four, vector + m);
                let values = Q::factors(simd, bytes);
                for p in 0..P {
                    let words = [words[row + p][4 * four], words[row + p][4 * four + 1]];
                    sums[p][m] = simd.dot4(sums[p][m], values, words);
                }
            }
        }
    }
    let Some(rows) = rows.checked_sub(row) else { return };
    let keep: [f32; P] = core::array::from_fn(|p| tile.rows.keep[row + p]);
    let column = rounding.block * QUANT_BLOCK + 16 * vector;
    let o = &mut tile.rows.o[row * head_dim..];
    let mut out: [[S::V; M]; P] = load_sums(simd, o, head_dim, rows, column, &keep);
    for p in 0..P {
        // The share of every sum that comes from the values' offset.
        let offset = Q::bias::<S>() * simd.reduce_add_i32(rounding.totals[row + p]);
        for m in 0..M {
            let sum = simd.add_i32(simd.sums_to_i32(sums[p][m]), simd.splat_i32(offset));
            out[p][m] = simd.fma(simd.i32_to_f32(sum), simd.splat(rounding.unit[row + p]), out[p][m]);
        }
    }
    store_sums(simd, o, head_dim, rows, column, &out);
}
