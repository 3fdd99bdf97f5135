use core::marker::PhantomData;

use super::{Element, KEY_BLOCK, Slot, halves};
use crate::format::QUANT_BLOCK;
use crate::simd::{Kernel, Simd};

/// o ← o·keep + weights · values, for the rows of a tile.
pub(crate) struct Accumulate<'a, E: Element, const R: usize> {
    pub(crate) weights: &'a [[f32; KEY_BLOCK]; R],
    /// The block's values, `[tokens, head_dim]`.
    pub(crate) values: &'a [E::Raw],
    /// Values that will be accumulated next, to be fetched meanwhile; may be empty.
    pub(crate) ahead: &'a [E::Raw],
    pub(crate) slots: &'a [Slot],
    pub(crate) keep: &'a [f32; R],
    /// `[rows, head_dim]`, rows ≤ R.
    pub(crate) o: &'a mut [f32],
    pub(crate) head_dim: usize,
    pub(crate) element: PhantomData<E>,
}

impl<E: Element, const R: usize> Kernel for Accumulate<'_, E, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let together = match (S::WIDE, R) {
            (true, 1 | 2) => 8,
            (true, 4) | (false, 1) => 4,
            (true, _) | (false, 2) => 2,
            (false, _) => 1,
        };
        let vectors = self.head_dim / 16;
        let mut at = 0;
        while together >= 8 && at + 8 <= vectors {
            columns::<S, E, R, 8>(simd, &mut self, at * 16);
            at += 8;
        }
        while together >= 4 && at + 4 <= vectors {
            columns::<S, E, R, 4>(simd, &mut self, at * 16);
            at += 4;
        }
        while together >= 2 && at + 2 <= vectors {
            columns::<S, E, R, 2>(simd, &mut self, at * 16);
            at += 2;
        }
        while at < vectors {
            columns::<S, E, R, 1>(simd, &mut self, at * 16);
            at += 1;
        }
    }
}

#[inline(always)]
fn columns<S: Simd, E: Element, const R: usize, const N: usize>(
    simd: S,
    tile: &mut Accumulate<'_, E, R>,
    column: usize,
) {
    let head_dim = tile.head_dim;
    let rows = tile.o.len() / head_dim;
    let mut sums = load_sums::<S, R, N>(simd, tile.o, head_dim, rows, column, tile.keep);
    for (slot, place) in tile.slots.iter().enumerate() {
        let first = place.stripe * 16 * head_dim;
        let values = &tile.values[first..first + place.tokens.min(16) * head_dim];
        let ahead = tile.ahead.get(first..).unwrap_or(values);
        let weights: [&[f32; 16]; R] = core::array::from_fn(|r| &tile.weights[r].as_chunks().0[slot]);
        for (j, row) in values.chunks_exact(head_dim).enumerate().take(16) {
            let row = &row[column..column + 16 * N].as_chunks::<16>().0[..N];
            for n in 0..N {
                simd.prefetch(ahead, j * head_dim + column + 16 * n);
            }
            let value: [S::V; N] = core::array::from_fn(|n| E::load(simd, &row[n]));
            for r in 0..R {
                let weight = simd.splat(weights[r][j]);
                for n in 0..N {
                    sums[r][n] = simd.fma(weight, value[n], sums[r][n]);
                }
            }
        }
    }
    store_sums(simd, tile.o, head_dim, rows, column, &sums);
}

#[inline(always)]
fn load_sums<S: Simd, const R: usize, const N: usize>(
    simd: S,
    o: &[f32],
    head_dim: usize,
    rows: usize,
    column: usize,
    keep: &[f32; R],
) -> [[S::V; N]; R] {
    let mut sums = [[simd.splat(0.0); N]; R];
    for r in 0..R {
        if r < rows {
            let o = &o[r * head_dim + column..][..16 * N].as_chunks::<16>().0[..N];
            for n in 0..N {
                sums[r][n] = simd.mul(simd.load(&o[n]), simd.splat(keep[r]));
            }
        }
    }
    sums
}

#[inline(always)]
fn store_sums<S: Simd, const R: usize, const N: usize>(
    simd: S,
    o: &mut [f32],
    head_dim: usize,
    rows: usize,
    column: usize,
    sums: &[[S::V; N]; R],
) {
    for r in 0..R {
        if r < rows {
            let o = &mut o[r * head_dim + column..][..16 * N].as_chunks_mut::<16>().0[..N];
            for n in 0..N {
                simd.store(sums[r][n], &mut o[n]);
            }
        }
    }
}

/// As [`Accumulate`] over quantised values; each block of 32 columns folds its scales into the weights.
pub(crate) struct AccumulateQuantised<'a, const R: usize, const FOUR_BITS: bool> {
    pub(crate) weights: &'a [[f32; KEY_BLOCK]; R],
    /// The block's stripes in the layout of a quantised value plane.
    pub(crate) values: &'a [u8],
    /// Stripes that will be accumulated next, to be fetched meanwhile; may be empty.
    pub(crate) ahead: &'a [u8],
    pub(crate) slots: &'a [Slot],
    pub(crate) keep: &'a [f32; R],
    pub(crate) o: &'a mut [f32],
    pub(crate) head_dim: usize,
}

impl<const R: usize, const FOUR_BITS: bool> Kernel for AccumulateQuantised<'_, R, FOUR_BITS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let whole = self.head_dim / QUANT_BLOCK;
        let mut block = 0;
        while R <= 4 && block + 2 <= whole {
            quantised_columns::<S, R, FOUR_BITS, 2>(simd, &mut self, block);
            block += 2;
        }
        while block < whole {
            quantised_columns::<S, R, FOUR_BITS, 1>(simd, &mut self, block);
            block += 1;
        }
        if self.head_dim > whole * QUANT_BLOCK {
            quantised_tail::<S, R, FOUR_BITS>(simd, &mut self, whole);
        }
    }
}

/// Asks for the lines of one stripe.
#[inline(always)]
fn fetch<S: Simd>(simd: S, ahead: &[u8], first: usize, len: usize) {
    if let Some(stripe) = ahead.get(first..first + len) {
        for at in (0..len).step_by(64) {
            simd.prefetch(stripe, at);
        }
    }
}

/// The stripe's scales and the rows of its tokens.
#[inline(always)]
fn quantised_stripe<const FOUR_BITS: bool>(values: &[u8], head_dim: usize, stripe: usize) -> (&[u8], &[u8], usize) {
    let scales_len = 32 * head_dim.div_ceil(QUANT_BLOCK);
    let row_len = if FOUR_BITS { head_dim / 2 } else { head_dim };
    let len = scales_len + 16 * row_len;
    let (scales, rows) = values[stripe * len..][..len].split_at(scales_len);
    (scales, rows, row_len)
}

#[inline(always)]
fn scaled_weights<S: Simd, const R: usize>(
    simd: S,
    weights: &[[f32; KEY_BLOCK]; R],
    scales: &[u8],
    slot: usize,
    block: usize,
) -> [[f32; 16]; R] {
    let scale = simd.load_f16(&halves(&scales.as_chunks().0[block]));
    let mut scaled = [[0.0; 16]; R];
    for r in 0..R {
        let weight = simd.load(&weights[r].as_chunks().0[slot]);
        simd.store(simd.mul(weight, scale), &mut scaled[r]);
    }
    scaled
}

#[inline(always)]
fn quantised_columns<S: Simd, const R: usize, const FOUR_BITS: bool, const N: usize>(
    simd: S,
    tile: &mut AccumulateQuantised<'_, R, FOUR_BITS>,
    block: usize,
) {
    let (head_dim, rows) = (tile.head_dim, tile.o.len() / tile.head_dim);
    let mut sums: [[[S::V; 2]; R]; N] = core::array::from_fn(|n| {
        load_sums::<S, R, 2>(simd, tile.o, head_dim, rows, (block + n) * QUANT_BLOCK, tile.keep)
    });
    for (slot, place) in tile.slots.iter().enumerate() {
        let (scales, bytes, row_len) = quantised_stripe::<FOUR_BITS>(tile.values, head_dim, place.stripe);
        let scaled: [[[f32; 16]; R]; N] =
            core::array::from_fn(|n| scaled_weights(simd, tile.weights, scales, slot, block + n));
        if block == 0 {
            fetch(
                simd,
                tile.ahead,
                place.stripe * (scales.len() + bytes.len()),
                scales.len() + bytes.len(),
            );
        }
        for (j, row) in bytes.chunks_exact(row_len).enumerate().take(place.tokens.min(16)) {
            let chunks = row.as_chunks::<16>().0;
            for n in 0..N {
                let value = if FOUR_BITS {
                    simd.load_nibbles(&chunks[block + n])
                } else {
                    [
                        simd.load_i8(&chunks[2 * (block + n)]),
                        simd.load_i8(&chunks[2 * (block + n) + 1]),
                    ]
                };
                for r in 0..R {
                    let weight = simd.splat(scaled[n][r][j]);
                    for half in 0..2 {
                        sums[n][r][half] = simd.fma(weight, value[half], sums[n][r][half]);
                    }
                }
            }
        }
    }
    for n in 0..N {
        store_sums(simd, tile.o, head_dim, rows, (block + n) * QUANT_BLOCK, &sums[n]);
    }
}

/// The last 16 columns when `head_dim` is not a multiple of 32.
#[inline(always)]
fn quantised_tail<S: Simd, const R: usize, const FOUR_BITS: bool>(
    simd: S,
    tile: &mut AccumulateQuantised<'_, R, FOUR_BITS>,
    block: usize,
) {
    let (head_dim, rows) = (tile.head_dim, tile.o.len() / tile.head_dim);
    let column = block * QUANT_BLOCK;
    let mut sums = load_sums::<S, R, 1>(simd, tile.o, head_dim, rows, column, tile.keep);
    for (slot, place) in tile.slots.iter().enumerate() {
        let (scales, bytes, row_len) = quantised_stripe::<FOUR_BITS>(tile.values, head_dim, place.stripe);
        let scaled = scaled_weights(simd, tile.weights, scales, slot, block);
        for (j, row) in bytes.chunks_exact(row_len).enumerate().take(place.tokens.min(16)) {
            let value = quantised_tail_values::<S, FOUR_BITS>(simd, row, block);
            for r in 0..R {
                sums[r][0] = simd.fma(simd.splat(scaled[r][j]), value, sums[r][0]);
            }
        }
    }
    store_sums(simd, tile.o, head_dim, rows, column, &sums);
}

/// A tail block of 16 columns, not yet scaled.
#[inline(always)]
pub(super) fn quantised_tail_values<S: Simd, const FOUR_BITS: bool>(simd: S, row: &[u8], block: usize) -> S::V {
    if FOUR_BITS {
        let bytes = &row[16 * block..][..8];
        simd.load(&core::array::from_fn(|d| {
            let byte = bytes[d % 8];
            f32::from((if d < 8 { byte & 15 } else { byte >> 4 }) as i8 - 8)
        }))
    } else {
        simd.load_i8(&row.as_chunks().0[2 * block])
    }
}
