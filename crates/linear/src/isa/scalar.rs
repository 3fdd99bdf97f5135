//! Plain code: defines what every other instruction set must compute, to the bit.

use crate::LANES;
use crate::float::{Element, GroupSums, PANEL};

pub(super) fn float_tile<E: Element>(
    weights: &[[E::Bits; LANES]],
    blocks: usize,
    rows: &[&[f32]],
    sums: &mut [GroupSums],
) {
    for (row, sums) in rows.iter().zip(sums) {
        for (values, weights) in row.chunks(PANEL).zip(weights.chunks(PANEL * blocks)) {
            let mut panel = GroupSums::default();
            for (value, vectors) in values.iter().zip(weights.chunks_exact(blocks)) {
                for (sums, vector) in panel.iter_mut().zip(vectors) {
                    for (sum, &weight) in sums.iter_mut().zip(vector) {
                        *sum = E::widen(weight).mul_add(*value, *sum);
                    }
                }
            }
            for (total, part) in sums.as_flattened_mut().iter_mut().zip(panel.as_flattened()) {
                *total += part;
            }
        }
    }
}

#[inline(always)]
pub(super) fn widen<E: Element>(weights: &[[E::Bits; LANES]], widened: &mut [[f32; LANES]]) {
    for (wide, narrow) in widened.iter_mut().zip(weights) {
        for (wide, narrow) in wide.iter_mut().zip(narrow) {
            *wide = E::widen(*narrow);
        }
    }
}
