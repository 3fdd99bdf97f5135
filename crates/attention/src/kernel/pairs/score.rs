use super::{Line, PairKeys, PairQueries};
use crate::LANES;
use crate::kernel::{Ahead, Fetch, KEY_BLOCK, Slot};
use crate::simd::{Kernel, Simd};

/// The integers of one tile of queries.
#[derive(Clone, Copy)]
pub(crate) struct PairTile<'a, const R: usize> {
    /// `[head_dim / 2]`.
    words: &'a [[i32; R]],
    units: [f32; R],
}

impl<'a, const R: usize> PairTile<'a, R> {
    /// The tile of `R` rows; `before` is the number of elements in earlier tiles.
    pub(crate) fn of(queries: &'a PairQueries, before: usize, head_dim: usize) -> Self {
        let words = &queries.words[before / 2..][..head_dim / 2 * R];
        let units = &queries.units[before / head_dim..][..R];
        Self {
            words: words.as_chunks().0,
            units: core::array::from_fn(|r| units[r]),
        }
    }
}

/// Logits of a tile: `scores[r][16 * slot + lane]`, from sums of integers.
pub(crate) struct ScorePairs<'a, const R: usize> {
    pub(crate) queries: PairTile<'a, R>,
    /// The original queries, `[head_dim]` each, for their product with the block's first key.
    pub(crate) rows: &'a [&'a [f32]],
    /// Factor on this product.
    pub(crate) scale: f32,
    pub(crate) keys: &'a PairKeys,
    pub(crate) slots: &'a [Slot],
    pub(crate) ahead: Ahead<'a>,
    pub(crate) scores: &'a mut [[f32; KEY_BLOCK]; R],
}

impl<const R: usize> Kernel for ScorePairs<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let mut with_first = [0.0; R];
        for (product, row) in with_first.iter_mut().zip(self.rows) {
            let pairs = row
                .as_chunks::<LANES>()
                .0
                .iter()
                .zip(self.keys.first.as_chunks::<LANES>().0);
            let sum = pairs.fold(simd.splat(0.0), |sum, (q, k)| simd.fma(simd.load(q), simd.load(k), sum));
            *product = simd.reduce_add(sum) * self.scale;
        }
        let slots = self.slots.len();
        let (mut slot, mut fetch) = (0, self.ahead.over(slots));
        while S::WIDE && slot + 2 <= slots {
            stripes::<S, R, R, 2>(simd, &mut self, &with_first, slot, &mut fetch);
            slot += 2;
        }
        while slot < slots {
            match (S::WIDE, R) {
                (false, 8) => stripes::<S, R, 4, 1>(simd, &mut self, &with_first, slot, &mut fetch),
                _ => stripes::<S, R, R, 1>(simd, &mut self, &with_first, slot, &mut fetch),
            }
            slot += 1;
        }
    }
}

/// Scores `N` stripes from `slot` on, `P` rows at a time.
#[inline(always)]
fn stripes<S: Simd, const R: usize, const P: usize, const N: usize>(
    simd: S,
    task: &mut ScorePairs<'_, R>,
    with_first: &[f32; R],
    slot: usize,
    fetch: &mut Fetch,
) {
    fetch.step(simd, N);
    let pairs = task.queries.words.len();
    let slots = &task.slots[slot..slot + N];
    let keys: [&[Line]; N] = core::array::from_fn(|n| &task.keys.lines[slots[n].stripe * pairs..][..pairs]);
    for first in (0..R).step_by(P) {
        let mut sums = [[simd.splat_i32(0); N]; P];
        for (i, words) in task.queries.words.iter().enumerate() {
            let key: [S::Pairs; N] = core::array::from_fn(|n| simd.load_pairs(&keys[n][i].0));
            for p in 0..P {
                for n in 0..N {
                    sums[p][n] = simd.dot2(sums[p][n], key[n], words[first + p]);
                }
            }
        }
        for n in 0..N {
            let scales = simd.load(&task.keys.scales[slots[n].stripe]);
            for p in 0..P {
                let sum = simd.mul(simd.i32_to_f32(sums[p][n]), scales);
                let unit = simd.splat(task.queries.units[first + p]);
                let logits = simd.fma(sum, unit, simd.splat(with_first[first + p]));
                simd.store(logits, &mut task.scores[first + p].as_chunks_mut::<LANES>().0[slot + n]);
            }
        }
    }
}
