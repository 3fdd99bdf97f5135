//! o ← o + weights · values over a list of tokens of a page.

use core::marker::PhantomData;

use super::accumulate::{load_sums, store_sums};
use super::{Element, halves};
use crate::format::{PlaneKind, QUANT_BLOCK, Quant, block_of, stripe_bytes};
use crate::simd::{Kernel, Simd};

/// Tokens of one page, with the weights of `R` rows.
pub(crate) struct Gather<'a, const R: usize> {
    /// Slots in the page.
    pub(crate) tokens: &'a [usize],
    /// `[tokens, R]`.
    pub(crate) weights: &'a [[f32; R]],
    /// `[rows, head_dim]`, rows ≤ R.
    pub(crate) o: &'a mut [f32],
    pub(crate) head_dim: usize,
}

/// A [`Gather`] of values row by row.
pub(crate) struct GatherRows<'a, E: Element, const R: usize> {
    pub(crate) list: Gather<'a, R>,
    /// The page's values, `[tokens, head_dim]`.
    pub(crate) values: &'a [E::Raw],
    pub(crate) element: PhantomData<E>,
}

/// A [`Gather`] of quantised values.
pub(crate) struct GatherQuantised<'a, Q: Quant, const R: usize> {
    pub(crate) list: Gather<'a, R>,
    pub(crate) values: &'a [u8],
    pub(crate) format: PhantomData<Q>,
}

impl<E: Element, const R: usize> Kernel for GatherRows<'_, E, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let vectors = self.list.head_dim / 16;
        let mut at = 0;
        while R <= 4 && at + 4 <= vectors {
            columns::<S, E, R, 4>(simd, &mut self, at * 16);
            at += 4;
        }
        while at + 2 <= vectors {
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
    task: &mut GatherRows<'_, E, R>,
    column: usize,
) {
    let head_dim = task.list.head_dim;
    let rows = task.list.o.len() / head_dim;
    let mut sums = load_sums::<S, R, N>(simd, task.list.o, head_dim, rows, column, &[1.0; R]);
    for (token, weights) in task.list.tokens.iter().zip(task.list.weights) {
        let row = &task.values[token * head_dim + column..][..16 * N].as_chunks::<16>().0[..N];
        let value: [S::V; N] = simd.each(|n| E::load(simd, &row[n]));
        for r in 0..R {
            let weight = simd.splat(weights[r]);
            for n in 0..N {
                sums[r][n] = simd.fma(weight, value[n], sums[r][n]);
            }
        }
    }
    store_sums(simd, task.list.o, head_dim, rows, column, &sums);
}

impl<Q: Quant, const R: usize> Kernel for GatherQuantised<'_, Q, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let whole = self.list.head_dim / QUANT_BLOCK;
        for block in 0..whole {
            quantised_columns::<S, Q, R, 2>(simd, &mut self, block);
        }
        if !self.list.head_dim.is_multiple_of(QUANT_BLOCK) {
            quantised_columns::<S, Q, R, 1>(simd, &mut self, whole);
        }
    }
}

#[inline(always)]
fn quantised_columns<S: Simd, Q: Quant, const R: usize, const N: usize>(
    simd: S,
    task: &mut GatherQuantised<'_, Q, R>,
    block: usize,
) {
    let head_dim = task.list.head_dim;
    let len = stripe_bytes::<Q>(head_dim);
    let rows = task.list.o.len() / head_dim;
    let column = block * QUANT_BLOCK;
    let mut sums = load_sums::<S, R, N>(simd, task.list.o, head_dim, rows, column, &[1.0; R]);
    for (token, weights) in task.list.tokens.iter().zip(task.list.weights) {
        let stripe = &task.values[token / 16 * len..][..len];
        let (scales, bytes) = block_of::<Q>(PlaneKind::Values, stripe, head_dim, block);
        let mut lanes = [0.0; 16];
        simd.store(simd.load_f16(&halves(scales)), &mut lanes);
        let scale = lanes[token % 16];
        let offset = simd.splat(scale * -Q::OFFSET as f32);
        let value: [S::V; N] = simd.each(|n| {
            let four = Q::four_tokens::<S, N>(simd, bytes, token % 16 / 4, n);
            let whole = match token % 4 {
                0 => simd.byte_to_f32::<0>(four),
                1 => simd.byte_to_f32::<1>(four),
                2 => simd.byte_to_f32::<2>(four),
                _ => simd.byte_to_f32::<3>(four),
            };
            simd.fma(whole, simd.splat(scale), offset)
        });
        for r in 0..R {
            let weight = simd.splat(weights[r]);
            for n in 0..N {
                sums[r][n] = simd.fma(weight, value[n], sums[r][n]);
            }
        }
    }
    store_sums(simd, task.list.o, head_dim, rows, column, &sums);
}

/// Prefetches the values of tokens that will be gathered soon.
pub(crate) struct FetchTokens<'a, T> {
    /// The page's values.
    pub(crate) values: &'a [T],
    pub(crate) tokens: &'a [usize],
    pub(crate) head_dim: usize,
    /// Bytes of a stripe's scales, and of a column of 16 tokens; `None` for values that are not quantised.
    pub(crate) quantised: Option<(usize, usize)>,
}

impl<T> Kernel for FetchTokens<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Some((scales_len, per_column)) = self.quantised else {
            let line = 64 / size_of::<T>();
            for token in self.tokens {
                for at in (0..self.head_dim).step_by(line) {
                    simd.prefetch(self.values, token * self.head_dim + at);
                }
            }
            return;
        };
        let len = scales_len + per_column * self.head_dim;
        let mut last = usize::MAX;
        for token in self.tokens {
            let stripe = token / 16 * len;
            if token / 16 != last {
                last = token / 16;
                for at in (0..scales_len).step_by(64) {
                    simd.prefetch(self.values, stripe + at);
                }
            }
            for column in (0..self.head_dim).step_by(QUANT_BLOCK) {
                let width = (self.head_dim - column).min(QUANT_BLOCK);
                let part = token % 16 * per_column / 64 * 4 * width;
                for at in (0..4 * width).step_by(64) {
                    simd.prefetch(self.values, stripe + scales_len + column * per_column + part + at);
                }
            }
        }
    }
}
