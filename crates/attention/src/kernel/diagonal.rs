use super::exp;
use super::softmax::finish;
use crate::simd::{Kernel, Simd};

/// 16 rows, each with one key: row `i` beside key `i`.
///
/// A masked row keeps its bits, so that a row's result does not depend on its neighbours.
pub(crate) struct Diagonal<'a> {
    /// Scaled, `[key_dim, 16]`.
    pub(crate) queries: &'a [f32],
    /// `[key_dim, 16]`.
    pub(crate) keys: &'a [f32],
    pub(crate) mask: u16,
    pub(crate) soft_cap: Option<f32>,
    pub(crate) output: DiagonalOutput<'a>,
}

pub(crate) enum DiagonalOutput<'a> {
    /// Accumulates the keys' values, `[16, value_dim]`, into the rows; lane `i` is row `first + i·stride`.
    Partial {
        values: &'a [f32],
        m: &'a mut [f32],
        l: &'a mut [f32],
        o: &'a mut [f32],
        /// Row of lane 0, which may lie before the rows when it is masked.
        first: isize,
        stride: usize,
    },
    /// Computes each lane's softmax weight under its row's log-sum-exp.
    Mass {
        log_sum_exp: &'a [f32; 16],
        mass: &'a mut [f32; 16],
    },
}

impl Kernel for Diagonal<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let mut sums = [simd.splat(0.0); 4];
        let queries = self.queries.as_chunks::<64>().0.iter();
        for (query, key) in queries.zip(self.keys.as_chunks::<64>().0) {
            let (query, key) = (query.as_chunks::<16>().0, key.as_chunks::<16>().0);
            for n in 0..4 {
                sums[n] = simd.fma(simd.load(&query[n]), simd.load(&key[n]), sums[n]);
            }
        }
        let score = simd.add(simd.add(sums[0], sums[1]), simd.add(sums[2], sums[3]));
        let score = finish(simd, score, self.soft_cap, None, Some(self.mask));
        match self.output {
            DiagonalOutput::Partial {
                values,
                m,
                l,
                o,
                first,
                stride,
            } => {
                let row = |lane: usize| first.wrapping_add_unsigned(lane * stride) as usize;
                let lanes = || (0..16).filter(|lane| self.mask & (1 << lane) != 0);
                let (mut before, mut sum) = ([f32::NEG_INFINITY; 16], [0.0; 16]);
                for lane in lanes() {
                    (before[lane], sum[lane]) = (m[row(lane)], l[row(lane)]);
                }
                let top = simd.max(simd.load(&before), score);
                // A row that has read nothing yet: any finite shift makes its weight exp(−∞) = 0.
                let shift = simd.max(top, simd.splat(f32::MIN));
                let keep = exp(simd, simd.sub(simd.load(&before), shift));
                let weight = exp(simd, simd.sub(score, shift));
                let (mut tops, mut keeps, mut weights) = ([0.0; 16], [0.0; 16], [0.0; 16]);
                simd.store(top, &mut tops);
                simd.store(keep, &mut keeps);
                simd.store(weight, &mut weights);
                simd.store(simd.fma(simd.load(&sum), keep, weight), &mut sum);
                let value_dim = values.len() / 16;
                for lane in lanes() {
                    (m[row(lane)], l[row(lane)]) = (tops[lane], sum[lane]);
                    let o = &mut o[row(lane) * value_dim..][..value_dim];
                    let values = &values[lane * value_dim..][..value_dim];
                    let (keep, weight) = (simd.splat(keeps[lane]), simd.splat(weights[lane]));
                    for (o, value) in o.as_chunks_mut::<16>().0.iter_mut().zip(values.as_chunks::<16>().0) {
                        simd.store(simd.fma(weight, simd.load(value), simd.mul(simd.load(o), keep)), o);
                    }
                }
            }
            DiagonalOutput::Mass { log_sum_exp, mass } => {
                let total = simd.max(simd.load(log_sum_exp), simd.splat(f32::MIN));
                let weight = exp(simd, simd.sub(score, total));
                simd.store(simd.select(self.mask, weight, simd.splat(0.0)), mass);
            }
        }
    }
}
