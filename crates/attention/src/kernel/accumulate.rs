use super::ahead::{Ahead, Fetch};
use super::{Element, KEY_BLOCK, STRIPES, Slot};
use crate::simd::{Kernel, Simd};

/// The rows of a tile, and each row's weights for the tokens of a block.
pub(crate) struct WeighedRows<'a, const R: usize> {
    /// Weights; a kernel may overwrite them.
    pub(crate) weights: &'a mut [[f32; KEY_BLOCK]; R],
    /// Visible lanes per row and slot; `None` if all are visible.
    pub(crate) masks: Option<&'a [[u16; STRIPES]; R]>,
    pub(crate) ahead: Ahead<'a>,
    pub(crate) slots: &'a [Slot],
    /// Factor on each row's earlier sums.
    pub(crate) keep: &'a [f32; R],
    /// `[rows, head_dim]`, rows ≤ R.
    pub(crate) o: &'a mut [f32],
    pub(crate) head_dim: usize,
}

impl<const R: usize> WeighedRows<'_, R> {
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.o.len() / self.head_dim
    }
}

/// o ← o·keep + weights · values, for the rows of a tile.
pub(crate) struct Accumulate<'a, E: Element, const R: usize> {
    pub(crate) rows: WeighedRows<'a, R>,
    /// The block's values, `[tokens, head_dim]`.
    pub(crate) values: &'a [E::Raw],
}

impl<E: Element, const R: usize> Kernel for Accumulate<'_, E, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let together = match (S::WIDE, R) {
            (true, 1 | 2) => 8,
            (true, 3..=6) | (false, 1) => 4,
            (true, _) | (false, 2) => 2,
            (false, _) => 1,
        };
        let vectors = self.rows.head_dim / 16;
        // Narrow columns over many tokens read memory in short, distant pieces. Values from memory are therefore read
        // two stripes at a time.
        let chunk = if S::WIDE || self.rows.ahead.is_empty() {
            STRIPES
        } else {
            2
        };
        let mut fetch = self.rows.ahead.over(self.rows.slots.len() * 4 * vectors);
        for first in (0..self.rows.slots.len()).step_by(chunk) {
            let slots = first..(first + chunk).min(self.rows.slots.len());
            let mut at = 0;
            while together >= 8 && at + 8 <= vectors {
                columns::<S, E, R, R, 8>(simd, &mut self, slots.clone(), at * 16, &mut fetch);
                at += 8;
            }
            while together >= 4 && at + 4 <= vectors {
                columns::<S, E, R, R, 4>(simd, &mut self, slots.clone(), at * 16, &mut fetch);
                at += 4;
            }
            while together >= 2 && at + 2 <= vectors {
                columns::<S, E, R, R, 2>(simd, &mut self, slots.clone(), at * 16, &mut fetch);
                at += 2;
            }
            while at < vectors {
                match (S::WIDE, R) {
                    (false, 8) => columns::<S, E, R, 4, 1>(simd, &mut self, slots.clone(), at * 16, &mut fetch),
                    _ => columns::<S, E, R, R, 1>(simd, &mut self, slots.clone(), at * 16, &mut fetch),
                }
                at += 1;
            }
        }
    }
}

/// `N` vectors of columns for the tokens of some slots, `P` rows at a time.
#[inline(always)]
fn columns<S: Simd, E: Element, const R: usize, const P: usize, const N: usize>(
    simd: S,
    tile: &mut Accumulate<'_, E, R>,
    slots: core::ops::Range<usize>,
    column: usize,
    fetch: &mut Fetch,
) {
    let (head_dim, rows) = (tile.rows.head_dim, tile.rows.len());
    for part in (0..R).step_by(P) {
        if part >= rows {
            break;
        }
        let keep: [f32; P] = match slots.start {
            0 => core::array::from_fn(|p| tile.rows.keep[part + p]),
            _ => [1.0; P],
        };
        let o = &mut tile.rows.o[part * head_dim..];
        let mut sums = load_sums::<S, P, N>(simd, o, head_dim, rows - part, column, &keep);
        let Some(weights) = tile.rows.weights[part..].first_chunk::<P>() else {
            break;
        };
        for slot in slots.clone() {
            let place = tile.rows.slots[slot];
            let (tokens, lane) = (place.tokens.min(16), slot % STRIPES * 16);
            let values = &tile.values[place.stripe * 16 * head_dim + column..];
            if tokens < 16 {
                for j in 0..tokens {
                    token::<S, E, P, N>(simd, &values[j * head_dim..], weights, lane + j, &mut sums);
                }
                continue;
            }
            for first in [0, 4, 8, 12] {
                if part == 0 {
                    fetch.step(simd, N);
                }
                // Four tokens without a branch between them.
                let values = &values[first * head_dim..][..3 * head_dim + 16 * N];
                for j in 0..4 {
                    token::<S, E, P, N>(simd, &values[j * head_dim..], weights, lane + first + j, &mut sums);
                }
            }
        }
        store_sums(simd, o, head_dim, rows - part, column, &sums);
    }
}

/// Adds `16·N` columns of one token's value, times its weights.
#[inline(always)]
fn token<S: Simd, E: Element, const P: usize, const N: usize>(
    simd: S,
    value: &[E::Raw],
    weights: &[[f32; KEY_BLOCK]; P],
    lane: usize,
    sums: &mut [[S::V; N]; P],
) {
    let value = &value[..16 * N].as_chunks::<16>().0[..N];
    let mut loaded = [simd.splat(0.0); N];
    for n in 0..N {
        loaded[n] = E::load(simd, &value[n]);
    }
    for p in 0..P {
        let weight = simd.splat(weights[p][lane]);
        for n in 0..N {
            sums[p][n] = simd.fma(weight, loaded[n], sums[p][n]);
        }
    }
}

/// The rows' sums in `16·N` columns, times `keep`.
#[inline(always)]
pub(super) fn load_sums<S: Simd, const R: usize, const N: usize>(
    simd: S,
    o: &[f32],
    head_dim: usize,
    rows: usize,
    column: usize,
    keep: &[f32; R],
) -> [[S::V; N]; R] {
    let mut sums = [[simd.splat(0.0); N]; R];
    for r in 0..R {
        if r < rows {
            let o = &o[r * head_dim + column..][..16 * N].as_chunks::<16>().0[..N];
            for n in 0..N {
                sums[r][n] = simd.mul(simd.load(&o[n]), simd.splat(keep[r]));
            }
        }
    }
    sums
}

#[inline(always)]
pub(super) fn store_sums<S: Simd, const R: usize, const N: usize>(
    simd: S,
    o: &mut [f32],
    head_dim: usize,
    rows: usize,
    column: usize,
    sums: &[[S::V; N]; R],
) {
    for r in 0..R {
        if r < rows {
            let o = &mut o[r * head_dim + column..][..16 * N].as_chunks_mut::<16>().0[..N];
            for n in 0..N {
                simd.store(sums[r][n], &mut o[n]);
            }
        }
    }
}
