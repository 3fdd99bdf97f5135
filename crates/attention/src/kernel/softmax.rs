use super::{KEY_BLOCK, STRIPES, exp};
use crate::simd::{Kernel, Simd};

/// One block's step of the online softmax: turns scores into weights exp(score − m) and updates m and l.
pub(crate) struct Softmax<'a, const R: usize> {
    pub(crate) scores: &'a mut [[f32; KEY_BLOCK]; R],
    pub(crate) slots: usize,
    /// Visible lanes per row and slot; `None` if all are visible.
    pub(crate) masks: Option<&'a [[u16; STRIPES]; R]>,
    /// Bias on the logits, by slot and lane.
    pub(crate) bias: Option<&'a [f32; KEY_BLOCK]>,
    pub(crate) soft_cap: Option<f32>,
    /// Indices of gathered keys in their block. Weights are summed by the lanes of these indices, so that `l` has the
    /// same bits as for the whole block.
    pub(crate) places: Option<&'a [usize]>,
    /// `[rows]`, rows ≤ R.
    pub(crate) m: &'a mut [f32],
    pub(crate) l: &'a mut [f32],
    /// Factor on each row's earlier sums.
    pub(crate) keep: &'a mut [f32; R],
}

/// Applies soft cap, bias and mask to one vector of logits.
#[inline(always)]
pub(super) fn finish<S: Simd>(
    simd: S,
    mut v: S::V,
    cap: Option<f32>,
    bias: Option<&[f32; 16]>,
    mask: Option<u16>,
) -> S::V {
    if let Some(cap) = cap {
        // tanh x = (1 − e) / (1 + e) with e = exp(−2|x|); with |x| the exponent is never positive.
        let zero = simd.splat(0.0);
        let x = simd.mul(v, simd.splat(1.0 / cap));
        let magnitude = simd.max(x, simd.sub(zero, x));
        let e = exp(simd, simd.mul(magnitude, simd.splat(-2.0)));
        let one = simd.splat(1.0);
        let tanh = simd.div(simd.sub(one, e), simd.add(one, e));
        // Near zero 1 − e loses digits; there tanh x = x − x³/3 + 2x⁵/15 is exact to single precision.
        let square = simd.mul(x, x);
        let mut series = simd.fma(square, simd.splat(-17.0 / 315.0), simd.splat(2.0 / 15.0));
        series = simd.fma(square, series, simd.splat(-1.0 / 3.0));
        series = simd.fma(simd.mul(square, series), magnitude, magnitude);
        let mut lanes = [0.0; 16];
        simd.store(magnitude, &mut lanes);
        let small = lanes
            .iter()
            .enumerate()
            .fold(0, |bits, (i, x)| bits | (u16::from(*x < 0.25) << i));
        let size = simd.mul(simd.select(small, series, tanh), simd.splat(cap));
        simd.store(v, &mut lanes);
        let negative = lanes
            .iter()
            .enumerate()
            .fold(0, |bits, (i, x)| bits | (u16::from(*x < 0.0) << i));
        v = simd.select(negative, simd.sub(zero, size), size);
    }
    if let Some(bias) = bias {
        v = simd.add(v, simd.load(bias));
    }
    if let Some(mask) = mask {
        v = simd.select(mask, v, simd.splat(f32::NEG_INFINITY));
    }
    v
}

impl<const R: usize> Kernel for Softmax<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let rows = self.m.len().min(R);
        for r in 0..rows {
            let lanes = &mut self.scores[r].as_chunks_mut::<16>().0[..self.slots];
            let mut top = simd.splat(f32::NEG_INFINITY);
            if self.masks.is_none() && self.bias.is_none() && self.soft_cap.is_none() {
                for lane in lanes.iter() {
                    top = simd.max(simd.load(lane), top);
                }
            } else {
                for (slot, lane) in lanes.iter_mut().enumerate() {
                    let bias = self.bias.map(|bias| &bias.as_chunks().0[slot]);
                    let mask = self.masks.map(|masks| masks[r][slot]);
                    let v = finish(simd, simd.load(lane), self.soft_cap, bias, mask);
                    simd.store(v, lane);
                    top = simd.max(v, top);
                }
            }
            let before = self.m[r];
            let m = before.max(simd.reduce_max(top));
            // A row that has read nothing yet: any finite shift makes its weights exp(−∞) = 0.
            let shift = if m == f32::NEG_INFINITY { 0.0 } else { m };
            let mut keep = 1.0;
            if before != m {
                let mut all = [0.0; 16];
                simd.store(exp(simd, simd.splat(before - shift)), &mut all);
                keep = all[0];
            }
            let mut sum = simd.splat(0.0);
            for lane in lanes {
                let weight = exp(simd, simd.sub(simd.load(lane), simd.splat(shift)));
                sum = simd.add(sum, weight);
                simd.store(weight, lane);
            }
            if let Some(places) = self.places {
                let mut sums = [0.0; 16];
                for (weight, place) in self.scores[r].iter().zip(places) {
                    sums[place % 16] += weight;
                }
                sum = simd.load(&sums);
            }
            self.m[r] = m;
            self.l[r] = self.l[r] * keep + simd.reduce_add(sum);
            self.keep[r] = keep;
        }
    }
}

/// Adds Σ over rows of exp(score − log_sum_exp) to each key's mass.
pub(crate) struct AddMass<'a, const R: usize> {
    pub(crate) scores: &'a [[f32; KEY_BLOCK]; R],
    pub(crate) slots: usize,
    pub(crate) masks: Option<&'a [[u16; STRIPES]; R]>,
    pub(crate) soft_cap: Option<f32>,
    /// Final log-sum-exp of each row; a row that read nothing adds no mass.
    pub(crate) log_sum_exp: &'a [f32],
    /// Mass by slot and lane.
    pub(crate) mass: &'a mut [f32; KEY_BLOCK],
}

impl<const R: usize> Kernel for AddMass<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (r, &total) in self.log_sum_exp.iter().enumerate().take(R) {
            if total == f32::NEG_INFINITY {
                continue;
            }
            let lanes = &self.scores[r].as_chunks::<16>().0[..self.slots];
            let mass = &mut self.mass.as_chunks_mut::<16>().0[..self.slots];
            for (slot, (lane, mass)) in lanes.iter().zip(mass).enumerate() {
                let mask = self.masks.map(|masks| masks[r][slot]);
                let v = finish(simd, simd.load(lane), self.soft_cap, None, mask);
                let weight = exp(simd, simd.sub(v, simd.splat(total)));
                simd.store(simd.add(simd.load(mass), weight), mass);
            }
        }
    }
}
