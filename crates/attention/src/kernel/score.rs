use core::marker::PhantomData;

use super::{Element, KEY_BLOCK, Slot};
use crate::simd::{Kernel, Level, Simd};

/// Logits of a tile: `scores[r][16 * slot + lane] = queries[·][r] · keys[stripe][·][lane]`.
pub(crate) struct Score<'a, E: Element, const R: usize> {
    /// `[head_dim, R]`, already multiplied with the scale.
    pub(crate) queries: &'a [[f32; R]],
    /// The block's stripes, `[stripes, head_dim, 16]`.
    pub(crate) keys: &'a [E::Raw],
    /// Stripes that will be scored next, to be fetched meanwhile; may be empty.
    pub(crate) ahead: &'a [E::Raw],
    pub(crate) slots: &'a [Slot],
    pub(crate) scores: &'a mut [[f32; KEY_BLOCK]; R],
    pub(crate) element: PhantomData<E>,
}

impl<E: Element, const R: usize> Kernel for Score<'_, E, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self {
            queries,
            keys,
            ahead,
            slots,
            scores,
            ..
        } = self;
        // Independent sums enough to hide the latency of a multiply-add, as registers allow.
        let together = match (S::WIDE, R) {
            (true, 1) => 8,
            (true, 2 | 4) => 4,
            (true, _) | (false, 2) => 2,
            (false, 1) => 4,
            (false, _) => 1,
        };
        let mut slot = 0;
        while together >= 8 && slot + 8 <= slots.len() {
            stripes::<S, E, R, 8>(simd, queries, keys, ahead, slots, slot, scores);
            slot += 8;
        }
        while together >= 4 && slot + 4 <= slots.len() {
            stripes::<S, E, R, 4>(simd, queries, keys, ahead, slots, slot, scores);
            slot += 4;
        }
        while together >= 2 && slot + 2 <= slots.len() {
            stripes::<S, E, R, 2>(simd, queries, keys, ahead, slots, slot, scores);
            slot += 2;
        }
        while slot < slots.len() {
            stripes::<S, E, R, 1>(simd, queries, keys, ahead, slots, slot, scores);
            slot += 1;
        }
    }
}

#[inline(always)]
fn stripes<S: Simd, E: Element, const R: usize, const N: usize>(
    simd: S,
    queries: &[[f32; R]],
    keys: &[E::Raw],
    ahead: &[E::Raw],
    slots: &[Slot],
    slot: usize,
    scores: &mut [[f32; KEY_BLOCK]; R],
) {
    let head_dim = queries.len();
    let slots = &slots[slot..slot + N];
    let keys: [&[[E::Raw; 16]]; N] = core::array::from_fn(|n| {
        keys[slots[n].stripe * 16 * head_dim..]
            .as_chunks()
            .0
            .split_at(head_dim)
            .0
    });
    // Without anything ahead the lines asked for are those being read, which costs next to nothing.
    let ahead: [&[E::Raw]; N] = core::array::from_fn(|n| {
        let stripe = ahead.get(slots[n].stripe * 16 * head_dim..);
        stripe.unwrap_or(keys[n].as_flattened())
    });
    let mut sums = [[simd.splat(0.0); N]; R];
    for (d, query) in queries.iter().enumerate() {
        let key: [S::V; N] = core::array::from_fn(|n| E::load(simd, &keys[n][d]));
        for ahead in ahead {
            simd.prefetch(ahead, 16 * d);
        }
        for r in 0..R {
            let q = simd.splat(query[r]);
            for n in 0..N {
                sums[r][n] = simd.fma(q, key[n], sums[r][n]);
            }
        }
    }
    for r in 0..R {
        let out = &mut scores[r].as_chunks_mut::<16>().0[slot..slot + N];
        for n in 0..N {
            simd.store(sums[r][n], &mut out[n]);
        }
    }
}

/// Runs [`Score`].
pub(crate) fn score<E: Element, const R: usize>(
    level: Level,
    queries: &[[f32; R]],
    keys: &[E::Raw],
    ahead: &[E::Raw],
    slots: &[Slot],
    scores: &mut [[f32; KEY_BLOCK]; R],
) {
    level.run(Score::<E, R> {
        queries,
        keys,
        ahead,
        slots,
        scores,
        element: PhantomData,
    });
}
