use core::f32::consts::LOG2_E;

use super::{LARGEST_WEIGHT, PairValues, PairWeights};
use crate::LANES;
use crate::kernel::quantised_values::DITHER;
use crate::kernel::softmax::finish;
use crate::kernel::{KEY_BLOCK, STRIPES, Slot, exp};
use crate::simd::{Kernel, Simd};

/// One block's step of the online softmax: turns logits into integer weights, and updates m and l.
///
/// The integer of a key is 2^(logit·log₂e + exponent of its value − the row's largest of these), times
/// [`LARGEST_WEIGHT`].
pub(crate) struct WeighPairs<'a, const R: usize> {
    pub(crate) scores: &'a mut [[f32; KEY_BLOCK]; R],
    pub(crate) slots: &'a [Slot],
    /// Visible lanes per row and slot; `None` if all are visible.
    pub(crate) masks: Option<&'a [[u16; STRIPES]; R]>,
    pub(crate) soft_cap: Option<f32>,
    pub(crate) values: &'a PairValues,
    /// `[rows]`, rows ≤ R.
    pub(crate) m: &'a mut [f32],
    pub(crate) l: &'a mut [f32],
    pub(crate) weights: &'a mut [PairWeights; R],
    /// Factor on each row's earlier sums, and the value of one integer unit.
    pub(crate) keep: &'a mut [f32; R],
    pub(crate) unit: &'a mut [f32; R],
}

impl<const R: usize> Kernel for WeighPairs<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let rows = self.m.len().min(R);
        // Largest logit, and largest logit·log₂e + exponent.
        let mut tops = [[f32::NEG_INFINITY; LANES]; 2];
        for r in 0..rows {
            let (top, bound) = self.largest(simd, r);
            (tops[0][r], tops[1][r]) = (simd.reduce_max(top), simd.reduce_max(bound));
        }
        let [mut before, mut relative] = [[0.0; LANES]; 2];
        for r in 0..rows {
            let m = self.m[r].max(tops[0][r]);
            if self.m[r] != m {
                (before[r], self.m[r]) = (self.m[r] - m, m);
            }
            let shift = if m == f32::NEG_INFINITY { 0.0 } else { m };
            relative[r] = tops[1][r] - shift * LOG2_E;
        }
        let [mut keep, mut factor] = [[0.0; LANES]; 2];
        simd.store(exp(simd, simd.load(&before)), &mut keep);
        simd.store(exp2(simd, simd.load(&relative)), &mut factor);
        for r in 0..rows {
            let bound = tops[1][r];
            let bound = if bound == f32::NEG_INFINITY { 0.0 } else { bound };
            let sum = self.round(simd, r, bound);
            self.l[r] = self.l[r] * keep[r] + simd.reduce_add(sum) * factor[r];
            (self.keep[r], self.unit[r]) = (keep[r], factor[r] / LARGEST_WEIGHT);
        }
    }
}

impl<const R: usize> WeighPairs<'_, R> {
    /// By lane: the largest logit of row `r`, and the largest logit plus exponent of the value. Tokens that the row
    /// does not see become −∞.
    #[inline(always)]
    fn largest<S: Simd>(&mut self, simd: S, r: usize) -> (S::V, S::V) {
        let lanes = &mut self.scores[r].as_chunks_mut::<LANES>().0[..self.slots.len()];
        let plain = self.masks.is_none() && self.soft_cap.is_none();
        let [mut top, mut bound] = [simd.splat(f32::NEG_INFINITY); 2];
        for (number, (lane, slot)) in lanes.iter_mut().zip(self.slots).enumerate() {
            let mut logits = simd.load(lane);
            if !plain {
                let mask = self.masks.map(|masks| masks[r][number]);
                logits = finish(simd, logits, self.soft_cap, None, mask);
                simd.store(logits, lane);
            }
            top = simd.max(logits, top);
            let exponents = simd.load(&self.values.exponents[slot.stripe]);
            bound = simd.max(simd.fma(logits, simd.splat(LOG2_E), exponents), bound);
        }
        (top, bound)
    }

    /// Rounds the weights of row `r`; returns Σ 2^(logit·log₂e − bound) by lane.
    #[inline(always)]
    fn round<S: Simd>(&mut self, simd: S, r: usize, bound: f32) -> S::V {
        let lanes = &self.scores[r].as_chunks::<LANES>().0[..self.slots.len()];
        let words = self.weights[r].0.as_chunks_mut::<{ LANES / 2 }>().0;
        let (bound, mut sum) = (simd.splat(bound), simd.splat(0.0));
        for ((lane, slot), words) in lanes.iter().zip(self.slots).zip(words) {
            let exponents = simd.load(&self.values.exponents[slot.stripe]);
            let power = simd.fma(simd.load(lane), simd.splat(LOG2_E), exponents);
            let weight = exp2(simd, simd.sub(power, bound));
            sum = simd.fma(weight, simd.load(&self.values.inverses[slot.stripe]), sum);
            // Dither depends on the token's own stripe, so that stripes of other rows change no bits of this row.
            let dither = simd.load(&DITHER[slot.stripe]);
            let whole = simd.to_i32(simd.fma(weight, simd.splat(LARGEST_WEIGHT), dither));
            simd.narrow(whole, words);
        }
        sum
    }
}

/// Minimax polynomial of 2^f on −0.5..0.5 with value 1 at 0, relative error 3e-6. Its linear term is fitted, not ln
/// 2.
#[allow(clippy::approx_constant)]
const EXP2: [f32; 5] = [0.009_582_854, 0.055_906_43, 0.240_240_99, 0.693_124_2, 1.0];

/// 2^x, exactly 1 at 0 and exactly 0 where [`exp`](super::super::exp) is. Relative error below 4e-6, less than the
/// rounding of weights.
#[inline(always)]
fn exp2<S: Simd>(simd: S, x: S::V) -> S::V {
    let t = simd.max(x, simd.splat(-160.0));
    let n = simd.round(t);
    let f = simd.sub(t, n);
    let mut p = simd.splat(EXP2[0]);
    for c in &EXP2[1..] {
        p = simd.fma(p, f, simd.splat(*c));
    }
    super::super::weight(simd, p, n)
}
