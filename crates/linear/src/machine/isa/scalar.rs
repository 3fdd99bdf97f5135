//! Plain code: defines the bits that every other instruction set must compute.

use riffle_system::arithmetic::fused_multiply_add;

use crate::LANES;
use crate::float::{Element, GroupSums, PANEL};
use crate::half::{f16_to_f32, f32_to_bf16};
use crate::quant::{ActivationBlock, BiasForm, Expanded, Quant, STRETCH, Shape, half_bits};

pub(super) fn float_tile<E: Element>(
    weights: &[[E::Bits; LANES]],
    blocks: usize,
    rows: &[&[E::Value]],
    sums: &mut [GroupSums],
) {
    for (row, sums) in rows.iter().zip(sums) {
        for (values, weights) in row.chunks(PANEL).zip(weights.chunks(PANEL * blocks)) {
            let mut panel = GroupSums::default();
            for (value, vectors) in values.iter().zip(weights.chunks_exact(blocks)) {
                for (sums, vector) in panel.iter_mut().zip(vectors) {
                    for (sum, &weight) in sums.iter_mut().zip(vector) {
                        *sum = E::multiply_add(weight, *value, *sum);
                    }
                }
            }
            for (total, part) in sums.as_flattened_mut().iter_mut().zip(panel.as_flattened()) {
                *total += part;
            }
        }
    }
}

pub(super) fn widen<E: Element>(weights: &[[E::Bits; LANES]], widened: &mut [[f32; LANES]]) {
    for (wide, narrow) in widened.iter_mut().zip(weights) {
        *wide = narrow.map(|bits| E::widen(bits, 0));
    }
}

#[inline(always)]
pub(super) fn round(values: &[f32], rounded: &mut [u16]) {
    for (rounded, value) in rounded.iter_mut().zip(values) {
        *rounded = f32_to_bf16(*value);
    }
}

pub(super) fn quantise(values: &[f32], shape: Shape, blocks: &mut [ActivationBlock]) {
    crate::quant::quantise(values, shape, BiasForm::Whole, blocks);
}

pub(super) fn quant_band<Q: Quant>(weights: &[u8], activations: &[ActivationBlock], sums: &mut [[f32; LANES]]) {
    let mut expanded = vec![Expanded::default(); activations.len() / sums.len()];
    let blocks = weights.chunks_exact(LANES * Q::BYTES);
    for (block, expanded) in blocks.zip(expanded.chunks_exact_mut(Q::WEIGHTS / STRETCH)) {
        let halves = Q::HALVES.map(|offset| half_bits(block, offset).map(f16_to_f32));
        for (stretch, expanded) in expanded.iter_mut().enumerate() {
            Q::expand(block, stretch, &halves, expanded);
        }
    }
    for (row, sums) in activations.chunks_exact(expanded.len()).zip(sums) {
        quant_row(Q::SHAPE, &expanded, row, sums);
    }
}

fn quant_row(shape: Shape, expanded: &[Expanded], row: &[ActivationBlock], sums: &mut [f32; LANES]) {
    for (weights, activations) in expanded.iter().zip(row) {
        for (lane, sum) in sums.iter_mut().enumerate() {
            let mut products = activations.bias;
            for (group, quants) in weights.quants.iter().enumerate() {
                let four = activations.words[group].to_le_bytes();
                for (quant, activation) in quants[4 * lane..].iter().zip(four) {
                    products[group / 4] += i32::from(*quant) * i32::from(activation.cast_signed());
                }
            }
            let parts = if shape.halves { 2 } else { 1 };
            if !shape.halves {
                products[0] += products[1];
            }
            for part in 0..parts {
                let scale = weights.scales[part][lane] * activations.scale;
                *sum = fused_multiply_add(products[part] as f32, scale, *sum);
            }
            if shape.minimums {
                for part in 0..parts {
                    *sum = fused_multiply_add(weights.minimums[part][lane], activations.negative_sums[part], *sum);
                }
            }
        }
    }
}
