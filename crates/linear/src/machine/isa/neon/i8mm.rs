//! Quantised weights with the matrix products of Armv8.6 (`smmla`): two rows times two tokens per instruction.

use core::arch::aarch64::*;
use core::arch::asm;

use super::super::quant::{for_stretches, quant_tiles, share};
use super::{Block, add_products, bias, dotprod, prefetch, signed, unpack, widen_halves};
use crate::LANES;
use crate::quant::{ActivationBlock, Expanded, Quant, STRETCH, Shape, TILE_TOKENS, tile_rows};

quant_tiles!("neon,dotprod,i8mm");

/// Two tokens at a time; an odd last token uses dot products.
#[target_feature(enable = "neon,dotprod,i8mm")]
fn stretches<const HALVES: bool, const MINIMUMS: bool, const WIDE: bool, const ROWS: usize>(
    expanded: &[Expanded],
    rows: [&[ActivationBlock]; ROWS],
    sums: &mut [[f32; LANES]],
) {
    for pair in 0..ROWS / 2 {
        let sums = &mut sums[2 * pair..2 * pair + 2];
        two_tokens::<HALVES, MINIMUMS, WIDE>(expanded, [rows[2 * pair], rows[2 * pair + 1]], sums);
    }
    if ROWS % 2 == 1 {
        dotprod::stretches::<HALVES, MINIMUMS, WIDE, 1>(expanded, [rows[ROWS - 1]], &mut sums[ROWS - 1..ROWS]);
    }
}

#[target_feature(enable = "neon,dotprod,i8mm")]
fn two_tokens<const HALVES: bool, const MINIMUMS: bool, const WIDE: bool>(
    expanded: &[Expanded],
    rows: [&[ActivationBlock]; 2],
    sums: &mut [[f32; LANES]],
) {
    let mut totals: [Block; 2] = [bytemuck::must_cast(sums[0]), bytemuck::must_cast(sums[1])];
    for (index, weights) in expanded.iter().enumerate() {
        let activations = [&rows[0][index], &rows[1][index]];
        let quants: [[uint8x16_t; 4]; STRETCH / 4] = bytemuck::must_cast(weights.quants);
        let words: [[uint32x4_t; 2]; 2] = activations.map(|activations| bytemuck::must_cast(activations.words));
        // Eight activations of the first token, then the same eight of the second.
        let mut eights = [vdupq_n_s8(0); STRETCH / 8];
        for half in 0..2 {
            let words = words.map(|words| vreinterpretq_u64_u32(words[half]));
            eights[2 * half] = vreinterpretq_s8_u64(vzip1q_u64(words[0], words[1]));
            eights[2 * half + 1] = vreinterpretq_s8_u64(vzip2q_u64(words[0], words[1]));
        }
        for side in 0..4 {
            // [half][rows 0 and 1, rows 2 and 3][row, token]
            let mut products = [[vdupq_n_s32(0); 2]; 2];
            for eight in 0..STRETCH / 8 {
                let left = vreinterpretq_u32_s8(signed::<WIDE>(quants[2 * eight][side]));
                let right = vreinterpretq_u32_s8(signed::<WIDE>(quants[2 * eight + 1][side]));
                let [low, high] = &mut products[eight / 2];
                *low = matrix(*low, vreinterpretq_s8_u32(vzip1q_u32(left, right)), eights[eight]);
                *high = matrix(*high, vreinterpretq_s8_u32(vzip2q_u32(left, right)), eights[eight]);
            }
            for token in 0..2 {
                let [low, high] = bias::<WIDE>(activations[token]);
                let of_token = |[left, right]: [int32x4_t; 2]| match token {
                    0 => vuzp1q_s32(left, right),
                    _ => vuzp2q_s32(left, right),
                };
                let halves = [
                    vaddq_s32(low, of_token(products[0])),
                    vaddq_s32(high, of_token(products[1])),
                ];
                let total = &mut totals[token][side];
                *total = add_products::<HALVES, MINIMUMS>(weights, side, halves, activations[token], *total);
            }
        }
    }
    for (sums, total) in sums.iter_mut().zip(totals) {
        *sums = bytemuck::must_cast(total);
    }
}

/// Adds the products of two rows of eight quants with two rows of eight activations, `[quants, activations]`.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn matrix(mut sums: int32x4_t, quants: int8x16_t, activations: int8x16_t) -> int32x4_t {
    // SAFETY: the instruction touches these registers alone. The intrinsic is not stable yet.
    unsafe {
        asm!(
            "smmla {sums:v}.4s, {quants:v}.16b, {activations:v}.16b",
            sums = inout(vreg) sums,
            quants = in(vreg) quants,
            activations = in(vreg) activations,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}
