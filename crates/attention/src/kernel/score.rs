use super::ahead::{Ahead, Fetch};
use super::{Element, KEY_BLOCK, Slot};
use crate::simd::{Kernel, Level, Simd};

/// Logits of a tile: `scores[r][16 * slot + lane] = queries[·][r] · keys[stripe][·][lane]`.
pub(crate) struct Score<'a, E: Element, const R: usize> {
    /// `[head_dim, R]`, already multiplied with the scale.
    pub(crate) queries: &'a [[f32; R]],
    /// The block's stripes, `[stripes, head_dim, 16]`.
    pub(crate) keys: &'a [E::Raw],
    pub(crate) ahead: Ahead<'a>,
    pub(crate) slots: &'a [Slot],
    pub(crate) scores: &'a mut [[f32; KEY_BLOCK]; R],
}

impl<E: Element, const R: usize> Kernel for Score<'_, E, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        // As far as registers allow, there are enough independent sums to hide the latency of a multiply-add.
        let together = match (S::WIDE, R) {
            (true, 1) => 8,
            (true, 2..=6) => 4,
            (true, _) | (false, 2) => 2,
            (false, 1) => 4,
            (false, _) => 1,
        };
        let slots = self.slots.len();
        let mut fetch = self.ahead.over(slots * self.queries.len().div_ceil(8));
        let mut slot = 0;
        while together >= 8 && slot + 8 <= slots {
            stripes::<S, E, R, R, 8, 1>(simd, &mut self, slot, &mut fetch);
            slot += 8;
        }
        while together >= 4 && slot + 4 <= slots {
            stripes::<S, E, R, R, 4, 2>(simd, &mut self, slot, &mut fetch);
            slot += 4;
        }
        while together >= 2 && slot + 2 <= slots {
            stripes::<S, E, R, R, 2, 4>(simd, &mut self, slot, &mut fetch);
            slot += 2;
        }
        while slot < slots {
            match (S::WIDE, R) {
                (false, 8) => stripes::<S, E, R, 4, 1, 8>(simd, &mut self, slot, &mut fetch),
                _ => stripes::<S, E, R, R, 1, 8>(simd, &mut self, slot, &mut fetch),
            }
            slot += 1;
        }
    }
}

/// Scores `N` stripes from `slot` on, `P` rows at a time, with a prefetch every `D` dimensions.
#[inline(always)]
fn stripes<S: Simd, E: Element, const R: usize, const P: usize, const N: usize, const D: usize>(
    simd: S,
    task: &mut Score<'_, E, R>,
    slot: usize,
    fetch: &mut Fetch,
) {
    let head_dim = task.queries.len();
    let slots = &task.slots[slot..slot + N];
    let keys: [&[[E::Raw; 16]]; N] = core::array::from_fn(|n| {
        task.keys[slots[n].stripe * 16 * head_dim..]
            .as_chunks()
            .0
            .split_at(head_dim)
            .0
    });
    for first in (0..R).step_by(P) {
        let mut sums = [[simd.splat(0.0); N]; P];
        for (group, queries) in task.queries.chunks(D).enumerate() {
            if first == 0 {
                fetch.step(simd, 1);
            }
            let keys: [&[[E::Raw; 16]]; N] = core::array::from_fn(|n| &keys[n][group * D..][..queries.len()]);
            for (i, query) in queries.iter().enumerate() {
                let key: [S::V; N] = simd.each(|n| E::load(simd, &keys[n][i]));
                for p in 0..P {
                    let q = simd.splat(query[first + p]);
                    for n in 0..N {
                        sums[p][n] = simd.fma(q, key[n], sums[p][n]);
                    }
                }
            }
        }
        for p in 0..P {
            let out = &mut task.scores[first + p].as_chunks_mut::<16>().0[slot..slot + N];
            for n in 0..N {
                simd.store(sums[p][n], &mut out[n]);
            }
        }
    }
}

/// Runs [`Score`].
pub(crate) fn score<E: Element, const R: usize>(
    level: Level,
    queries: &[[f32; R]],
    keys: &[E::Raw],
    ahead: Ahead,
    slots: &[Slot],
    scores: &mut [[f32; KEY_BLOCK]; R],
) {
    level.run(Score::<E, R> {
        queries,
        keys,
        ahead,
        slots,
        scores,
    });
}
