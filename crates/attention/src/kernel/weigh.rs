//! Steps of a softmax over complete rows of logits in memory.

use super::exp;
use super::softmax::finish;
use crate::simd::{Kernel, Simd};

/// Vectors summed in single precision before they are added to a sum in double precision.
const SUMMED: usize = 64;

/// Applies the soft cap and finds the largest logit; −∞ if there is none.
pub(crate) struct Top<'a> {
    pub(crate) logits: &'a mut [f32],
    pub(crate) soft_cap: Option<f32>,
}

impl Kernel for Top<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let (whole, rest) = self.logits.as_chunks_mut::<16>();
        let mut top = simd.splat(f32::NEG_INFINITY);
        for lane in whole {
            let mut v = simd.load(lane);
            if self.soft_cap.is_some() {
                v = capped(simd, v, self.soft_cap);
                simd.store(v, lane);
            }
            top = simd.max(v, top);
        }
        let mut lanes = [f32::NEG_INFINITY; 16];
        lanes[..rest.len()].copy_from_slice(rest);
        if self.soft_cap.is_some() && !rest.is_empty() {
            simd.store(capped(simd, simd.load(&lanes), self.soft_cap), &mut lanes);
            rest.copy_from_slice(&lanes[..rest.len()]);
        }
        simd.reduce_max(simd.max(simd.load(&lanes), top))
    }
}

/// Applies the soft cap to logits; −∞ stays −∞.
#[inline(always)]
pub(super) fn capped<S: Simd>(simd: S, v: S::V, cap: Option<f32>) -> S::V {
    finish(simd, v, cap, None, Some(simd.at_least(v, simd.splat(f32::MIN))))
}

/// Turns logits into exp(logit − top) and returns their sum.
pub(crate) struct Exponentiate<'a> {
    pub(crate) logits: &'a mut [f32],
    pub(crate) top: f32,
}

impl Kernel for Exponentiate<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f64 {
        let top = simd.splat(self.top);
        let (whole, rest) = self.logits.as_chunks_mut::<16>();
        let mut total = 0.0;
        for lanes in whole.chunks_mut(SUMMED) {
            let mut sum = simd.splat(0.0);
            for lane in lanes {
                let weight = exp(simd, simd.sub(simd.load(lane), top));
                sum = simd.add(sum, weight);
                simd.store(weight, lane);
            }
            total += f64::from(simd.reduce_add(sum));
        }
        let mut lanes = [f32::NEG_INFINITY; 16];
        lanes[..rest.len()].copy_from_slice(rest);
        let weight = exp(simd, simd.sub(simd.load(&lanes), top));
        simd.store(weight, &mut lanes);
        rest.copy_from_slice(&lanes[..rest.len()]);
        total + f64::from(simd.reduce_add(weight))
    }
}

/// Adds Σ over rows of weight × factor to `first` and to `second`, both as long as the rows.
pub(crate) struct AddRows<'a> {
    pub(crate) rows: &'a [&'a [f32]],
    pub(crate) factors: &'a [f32],
    pub(crate) first: &'a mut [f32],
    pub(crate) second: &'a mut [f32],
}

impl Kernel for AddRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let whole = self.first.len() / 16 * 16;
        let (first, first_rest) = self.first.split_at_mut(whole);
        let (second, second_rest) = self.second.split_at_mut(whole);
        let pairs = first.as_chunks_mut::<16>().0.iter_mut().zip(second.as_chunks_mut().0);
        for (at, (first, second)) in pairs.enumerate() {
            let mut sum = simd.splat(0.0);
            for (row, factor) in self.rows.iter().zip(self.factors) {
                sum = simd.fma(simd.load(&row.as_chunks().0[at]), simd.splat(*factor), sum);
            }
            simd.store(simd.add(simd.load(first), sum), first);
            simd.store(simd.add(simd.load(second), sum), second);
        }
        for (at, (first, second)) in first_rest.iter_mut().zip(second_rest).enumerate() {
            let sum: f32 = self
                .rows
                .iter()
                .zip(self.factors)
                .map(|(row, factor)| row[whole + at] * factor)
                .sum();
            *first += sum;
            *second += sum;
        }
    }
}

/// Marks the tokens to which some row gives at least its threshold, 16 per number. Returns each row's weight on
/// unmarked tokens.
pub(crate) struct MarkHeavy<'a> {
    /// Weights by row; all rows have the same length.
    pub(crate) rows: &'a [&'a [f32]],
    pub(crate) thresholds: &'a [f32],
    /// Sum of the weights of unmarked tokens.
    pub(crate) left: &'a mut [f64],
    /// `[tokens / 16]`, rounded up.
    pub(crate) marks: &'a mut [u16],
}

impl Kernel for MarkHeavy<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let tokens = self.rows.first().map_or(0, |row| row.len());
        match self.rows.len() {
            1 => mark::<S, 1>(simd, &mut self, tokens / 16),
            2 => mark::<S, 2>(simd, &mut self, tokens / 16),
            4 => mark::<S, 4>(simd, &mut self, tokens / 16),
            8 => mark::<S, 8>(simd, &mut self, tokens / 16),
            _ => mark_any(simd, &mut self, tokens / 16),
        }
        let rest = tokens / 16 * 16..tokens;
        if rest.is_empty() {
            return;
        }
        let mut marks = 0;
        for (row, threshold) in self.rows.iter().zip(self.thresholds) {
            for (lane, weight) in row[rest.clone()].iter().enumerate() {
                marks |= u16::from(weight >= threshold) << lane;
            }
        }
        for (row, left) in self.rows.iter().zip(&mut *self.left) {
            for (lane, weight) in row[rest.clone()].iter().enumerate() {
                if marks & (1 << lane) == 0 {
                    *left += f64::from(*weight);
                }
            }
        }
        self.marks[tokens / 16] = marks;
    }
}

#[inline(always)]
fn mark<S: Simd, const R: usize>(simd: S, task: &mut MarkHeavy<'_>, whole: usize) {
    let rows: [&[[f32; 16]]; R] = core::array::from_fn(|r| task.rows[r].as_chunks().0);
    let thresholds: [S::V; R] = simd.each(|r| simd.splat(task.thresholds[r]));
    for first in (0..whole).step_by(SUMMED) {
        let mut left = [simd.splat(0.0); R];
        for at in first..(first + SUMMED).min(whole) {
            let weights: [S::V; R] = simd.each(|r| simd.load(&rows[r][at]));
            let mut marks = 0;
            for r in 0..R {
                marks |= simd.at_least(weights[r], thresholds[r]);
            }
            for r in 0..R {
                left[r] = simd.add(left[r], simd.select(marks, simd.splat(0.0), weights[r]));
            }
            task.marks[at] = marks;
        }
        for r in 0..R {
            task.left[r] += f64::from(simd.reduce_add(left[r]));
        }
    }
}

#[inline(always)]
fn mark_any<S: Simd>(simd: S, task: &mut MarkHeavy<'_>, whole: usize) {
    for at in 0..whole {
        let mut marks = 0;
        for (row, threshold) in task.rows.iter().zip(task.thresholds) {
            marks |= simd.at_least(simd.load(&row.as_chunks().0[at]), simd.splat(*threshold));
        }
        for (row, left) in task.rows.iter().zip(&mut *task.left) {
            let weights = simd.load(&row.as_chunks().0[at]);
            *left += f64::from(simd.reduce_add(simd.select(marks, simd.splat(0.0), weights)));
        }
        task.marks[at] = marks;
    }
}
