use super::round::line_of;
use super::{PairValues, PairWeights};
use crate::LANES;
use crate::kernel::{Ahead, Fetch, Slot};
use crate::simd::{Kernel, Simd};

/// o ← o·keep + unit · Σ weights · values, in sums of integers over the tokens of a block.
pub(crate) struct AccumulatePairs<'a, const R: usize> {
    pub(crate) weights: &'a [PairWeights; R],
    pub(crate) values: &'a PairValues,
    pub(crate) slots: &'a [Slot],
    pub(crate) ahead: Ahead<'a>,
    pub(crate) keep: &'a [f32; R],
    pub(crate) unit: &'a [f32; R],
    /// `[rows, head_dim]`, rows ≤ R.
    pub(crate) o: &'a mut [f32],
    pub(crate) head_dim: usize,
}

impl<const R: usize> Kernel for AccumulatePairs<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let vectors = self.head_dim / LANES;
        let (mut vector, mut fetch) = (0, self.ahead.over(vectors));
        while S::WIDE && vector + 2 <= vectors {
            columns::<S, R, R, 2>(simd, &mut self, vector, &mut fetch);
            vector += 2;
        }
        while vector < vectors {
            match (S::WIDE, R) {
                (false, 6) => columns::<S, R, 3, 1>(simd, &mut self, vector, &mut fetch),
                (false, 8) => columns::<S, R, 4, 1>(simd, &mut self, vector, &mut fetch),
                _ => columns::<S, R, R, 1>(simd, &mut self, vector, &mut fetch),
            }
            vector += 1;
        }
    }
}

/// Accumulates `N` vectors of columns, `P` rows at a time.
#[inline(always)]
fn columns<S: Simd, const R: usize, const P: usize, const N: usize>(
    simd: S,
    task: &mut AccumulatePairs<'_, R>,
    vector: usize,
    fetch: &mut Fetch,
) {
    fetch.step(simd, N);
    let (head_dim, rows) = (task.head_dim, task.o.len() / task.head_dim);
    let (first_line, next) = (
        line_of(vector, 0, head_dim / LANES),
        line_of(vector, 1, head_dim / LANES),
    );
    let step = next - first_line;
    for part in (0..R).step_by(P) {
        let (Some(weights), true) = (task.weights[part..].first_chunk::<P>(), part < rows) else {
            break;
        };
        let mut sums = [[simd.splat_i32(0); N]; P];
        for (number, slot) in task.slots.iter().enumerate() {
            let begin = first_line + slot.stripe * LANES / 2 * step;
            let lines = &task.values.lines[begin..][..(LANES / 2 - 1) * step + N];
            let words: [&[i32; LANES / 2]; P] =
                core::array::from_fn(|p| &weights[p].0.as_chunks::<{ LANES / 2 }>().0[number]);
            for i in 0..LANES / 2 {
                let values: [S::Pairs; N] = core::array::from_fn(|n| simd.load_pairs(&lines[i * step + n].0));
                for p in 0..P {
                    for n in 0..N {
                        sums[p][n] = simd.dot2(sums[p][n], values[n], words[p][i]);
                    }
                }
            }
        }
        // Initialise all sums at once: otherwise the compiler keeps them in memory, in the loop above too.
        let sums: [[S::V; N]; P] = core::array::from_fn(|p| core::array::from_fn(|n| simd.i32_to_f32(sums[p][n])));
        for p in 0..P {
            if part + p >= rows {
                break;
            }
            let (keep, unit) = (simd.splat(task.keep[part + p]), simd.splat(task.unit[part + p]));
            let o = &mut task.o[(part + p) * head_dim + vector * LANES..][..N * LANES]
                .as_chunks_mut::<LANES>()
                .0[..N];
            for n in 0..N {
                let before = simd.mul(simd.load(&o[n]), keep);
                simd.store(simd.fma(sums[p][n], unit, before), &mut o[n]);
            }
        }
    }
}
