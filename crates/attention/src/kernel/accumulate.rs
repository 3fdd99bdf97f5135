use core::marker::PhantomData;

use super::{Element, KEY_BLOCK, Slot};
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

/// The rows' sums in `16·N` columns, times `keep`.
#[inline(always)]
pub(super) fn load_sums<S: Simd, const R: usize, const N: usize>(
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
pub(super) fn store_sums<S: Simd, const R: usize, const N: usize>(
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
