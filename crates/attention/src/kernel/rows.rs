//! Kernels over row-major keys and values, one slice per token.

use super::accumulate::{load_sums, store_sums};
use super::{Element, KEY_BLOCK, LONE_ROWS};
use crate::LANES;
use crate::simd::{Kernel, Simd};

/// Memory that is read soon: addresses of its rows, and bytes per row.
#[derive(Clone, Copy, Default)]
pub(crate) struct AheadRows<'a> {
    pub(crate) rows: &'a [*const u8],
    pub(crate) row_bytes: usize,
}

impl AheadRows<'_> {
    /// Prefetches rows `range`.
    #[inline(always)]
    fn ask<S: Simd>(&self, simd: S, range: core::ops::Range<usize>) {
        for row in self.rows.iter().take(range.end).skip(range.start) {
            for at in (0..self.row_bytes).step_by(64) {
                simd.prefetch_line(row.wrapping_add(at));
            }
        }
    }
}

/// Logits of a tile with row-major keys: `scores[r][token] = queries[r] · keys[token]`.
///
/// Lanes are dimensions: each key has a vector of sums, and a transposition adds up the sums of 16 keys together.
pub(crate) struct ScoreRows<'a, E: Element, const R: usize> {
    /// `[R, head_dim]`, already multiplied with the scale.
    pub(crate) queries: &'a [f32],
    pub(crate) head_dim: usize,
    /// Keys of at most one block, `[head_dim]` each.
    pub(crate) keys: &'a [&'a [E::Raw]],
    pub(crate) ahead: AheadRows<'a>,
    pub(crate) scores: &'a mut [[f32; KEY_BLOCK]; R],
}

impl<E: Element, const R: usize> Kernel for ScoreRows<'_, E, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        for slot in 0..self.keys.len().div_ceil(LANES) {
            self.ahead.ask(simd, slot * LANES..(slot + 1) * LANES);
            // Keys per step, as registers allow.
            match (S::WIDE, R) {
                (true, 1) => stripe::<S, E, R, R, 8>(simd, &mut self, slot),
                (true, 2 | 4) | (false, 1) => stripe::<S, E, R, R, 4>(simd, &mut self, slot),
                (true, _) | (false, 2) => stripe::<S, E, R, R, 2>(simd, &mut self, slot),
                (false, LONE_ROWS) => stripe::<S, E, R, 4, 1>(simd, &mut self, slot),
                (false, _) => stripe::<S, E, R, R, 1>(simd, &mut self, slot),
            }
        }
    }
}

/// Sixteen keys, `K` at a time, for `P` rows at a time.
#[inline(always)]
fn stripe<S: Simd, E: Element, const R: usize, const P: usize, const K: usize>(
    simd: S,
    task: &mut ScoreRows<'_, E, R>,
    slot: usize,
) {
    let (head_dim, vectors) = (task.head_dim, task.head_dim / LANES);
    let keys = &task.keys[slot * LANES..];
    let count = keys.len().min(LANES);
    // Lanes without a key repeat the last key; readers of the scores mask them.
    let keys: [&[[E::Raw; LANES]]; LANES] =
        core::array::from_fn(|lane| &keys[lane.min(count - 1)].as_chunks().0[..vectors]);
    for first in (0..R).step_by(P) {
        let queries: [&[[f32; LANES]]; P] = core::array::from_fn(|p| {
            let query = &task.queries[(first + p) * head_dim..][..head_dim];
            &query.as_chunks().0[..vectors]
        });
        let mut sums = [[simd.splat(0.0); LANES]; P];
        for lane in (0..count).step_by(K) {
            let keys: [&[[E::Raw; LANES]]; K] = core::array::from_fn(|k| keys[lane + k]);
            let mut products = [[simd.splat(0.0); K]; P];
            for d in 0..vectors {
                let key: [S::V; K] = simd.each(|k| E::load(simd, &keys[k][d]));
                for p in 0..P {
                    let query = simd.load(&queries[p][d]);
                    for k in 0..K {
                        products[p][k] = simd.fma(query, key[k], products[p][k]);
                    }
                }
            }
            for p in 0..P {
                sums[p][lane..lane + K].copy_from_slice(&products[p]);
            }
        }
        for p in 0..P {
            let mut columns = simd.transpose(sums[p]);
            for half in [8, 4, 2, 1] {
                for column in 0..half {
                    columns[column] = simd.add(columns[column], columns[column + half]);
                }
            }
            simd.store(columns[0], &mut task.scores[first + p].as_chunks_mut().0[slot]);
        }
    }
}

/// o ← o·keep + weights · values, for row-major values.
pub(crate) struct AccumulateRows<'a, E: Element, const R: usize> {
    /// Values of at most one block, `[head_dim]` each.
    pub(crate) values: &'a [&'a [E::Raw]],
    pub(crate) weights: &'a [[f32; KEY_BLOCK]; R],
    /// Factor on each row's earlier sums.
    pub(crate) keep: &'a [f32; R],
    /// `[rows, head_dim]`, rows ≤ R.
    pub(crate) o: &'a mut [f32],
    pub(crate) head_dim: usize,
    pub(crate) ahead: AheadRows<'a>,
}

impl<E: Element, const R: usize> Kernel for AccumulateRows<'_, E, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let vectors = self.head_dim / LANES;
        let together = match (S::WIDE, R) {
            (true, 1 | 2) => 8,
            (true, 4) | (false, 1) => 4,
            (true, _) | (false, 2) => 2,
            (false, _) => 1,
        };
        // Narrow columns read their tokens often: a few tokens at a time stay in the nearest cache.
        let chunk = if S::WIDE { KEY_BLOCK } else { 2 * LANES };
        for first in (0..self.values.len()).step_by(chunk) {
            let tokens = first..(first + chunk).min(self.values.len());
            self.ahead.ask(simd, tokens.clone());
            let mut at = 0;
            while together >= 8 && at + 8 <= vectors {
                columns::<S, E, R, R, 8>(simd, &mut self, tokens.clone(), at * LANES);
                at += 8;
            }
            while together >= 4 && at + 4 <= vectors {
                columns::<S, E, R, R, 4>(simd, &mut self, tokens.clone(), at * LANES);
                at += 4;
            }
            while together >= 2 && at + 2 <= vectors {
                columns::<S, E, R, R, 2>(simd, &mut self, tokens.clone(), at * LANES);
                at += 2;
            }
            while at < vectors {
                match (S::WIDE, R) {
                    (false, LONE_ROWS) => columns::<S, E, R, 4, 1>(simd, &mut self, tokens.clone(), at * LANES),
                    _ => columns::<S, E, R, R, 1>(simd, &mut self, tokens.clone(), at * LANES),
                }
                at += 1;
            }
        }
    }
}

/// Accumulates `N` vectors of columns over some tokens, `P` rows at a time.
#[inline(always)]
fn columns<S: Simd, E: Element, const R: usize, const P: usize, const N: usize>(
    simd: S,
    task: &mut AccumulateRows<'_, E, R>,
    tokens: core::ops::Range<usize>,
    column: usize,
) {
    let (head_dim, rows) = (task.head_dim, task.o.len() / task.head_dim);
    for part in (0..R).step_by(P) {
        if part >= rows {
            break;
        }
        let keep: [f32; P] = match tokens.start {
            0 => core::array::from_fn(|p| task.keep[part + p]),
            _ => [1.0; P],
        };
        let o = &mut task.o[part * head_dim..];
        let mut sums = load_sums::<S, P, N>(simd, o, head_dim, rows - part, column, &keep);
        for token in tokens.clone() {
            let value = &task.values[token][column..][..LANES * N].as_chunks::<LANES>().0[..N];
            let value: [S::V; N] = simd.each(|n| E::load(simd, &value[n]));
            for p in 0..P {
                let weight = simd.splat(task.weights[part + p][token]);
                for n in 0..N {
                    sums[p][n] = simd.fma(weight, value[n], sums[p][n]);
                }
            }
        }
        store_sums(simd, o, head_dim, rows - part, column, &sums);
    }
}

/// Interleaves keys into stripes of f32: rows of `[head_dim]` become `[stripes, head_dim, 16]`. Lanes without a key
/// are zero.
pub(crate) struct StripeRows<'a, E: Element> {
    pub(crate) rows: &'a [&'a [E::Raw]],
    pub(crate) head_dim: usize,
    pub(crate) out: &'a mut [f32],
}

impl<E: Element> Kernel for StripeRows<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let stripes = self.out.chunks_exact_mut(LANES * self.head_dim);
        for (rows, stripe) in self.rows.chunks(LANES).zip(stripes) {
            for (at, out) in stripe.as_chunks_mut::<LANES>().0.chunks_exact_mut(LANES).enumerate() {
                let mut block = [simd.splat(0.0); LANES];
                for (block, row) in block.iter_mut().zip(rows) {
                    *block = E::load(simd, &row.as_chunks().0[at]);
                }
                for (out, column) in out.iter_mut().zip(simd.transpose(block)) {
                    simd.store(column, out);
                }
            }
        }
    }
}

/// Widens values to f32: rows of `[head_dim]` become `[tokens, head_dim]`.
pub(crate) struct WidenRows<'a, E: Element> {
    pub(crate) rows: &'a [&'a [E::Raw]],
    pub(crate) head_dim: usize,
    pub(crate) out: &'a mut [f32],
}

impl<E: Element> Kernel for WidenRows<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (row, out) in self.rows.iter().zip(self.out.chunks_exact_mut(self.head_dim)) {
            for (value, out) in row.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
                simd.store(E::load(simd, value), out);
            }
        }
    }
}
