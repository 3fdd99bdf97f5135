//! NEON: a block is four registers.

pub(super) mod dotprod;
pub(super) mod i8mm;
mod lookup;

use core::arch::aarch64::*;

use lookup::unpack;

use super::float::{float_kernels, half_kernels};
use super::quant::{for_stretches, quant_kernels, quant_tiles, share};
use crate::LANES;
use crate::float::{Element, F16, F32, FloatKind, GROUP_BLOCKS, GroupSums, PANEL};
use crate::quant::{
    ActivationBlock, BiasForm, Expanded, Halves, Quant, STRETCH, Shape, TILE_TOKENS, half_bits, tile_rows,
};

type Block = [float32x4_t; 4];

float_kernels!("neon", 4, 1, 1);
half_kernels!("neon");
quant_kernels!("neon", BiasForm::Whole);
quant_tiles!("neon");

#[inline]
#[target_feature(enable = "neon")]
fn zero() -> Block {
    [vdupq_n_f32(0.0); 4]
}

#[inline]
#[target_feature(enable = "neon")]
fn load<E: Element>(vector: &[E::Bits; LANES]) -> Block {
    match E::KIND {
        // Pairs need no conversion.
        FloatKind::F32 | FloatKind::Bf16 | FloatKind::RoundedBf16 => bytemuck::cast(*vector),
        FloatKind::F16 | FloatKind::F8 => bytemuck::cast(vector.map(|bits| E::widen(bits, 0))),
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn store(block: Block) -> [f32; LANES] {
    bytemuck::must_cast(block)
}

#[inline]
#[target_feature(enable = "neon")]
fn multiply_add<E: Element>(weights: Block, value: E::Value, sum: Block) -> Block {
    match E::KIND {
        FloatKind::F32 | FloatKind::F16 | FloatKind::F8 => {
            let value = vdupq_n_f32(bytemuck::cast(value));
            core::array::from_fn(|index| vfmaq_f32(sum[index], weights[index], value))
        }
        FloatKind::Bf16 => {
            let [left, right]: [f32; 2] = bytemuck::cast(value);
            core::array::from_fn(|index| {
                let sum = vfmaq_f32(sum[index], first(weights[index]), vdupq_n_f32(left));
                vfmaq_f32(sum, second(weights[index]), vdupq_n_f32(right))
            })
        }
        FloatKind::RoundedBf16 => {
            let value = vdupq_n_f32(bytemuck::cast(value));
            core::array::from_fn(|index| {
                let sum = vfmaq_f32(sum[index], second(weights[index]), second(value));
                vfmaq_f32(sum, first(weights[index]), first(value))
            })
        }
    }
}

/// The first number of each pair of bfloat16, widened.
#[inline]
#[target_feature(enable = "neon")]
fn first(pairs: float32x4_t) -> float32x4_t {
    vreinterpretq_f32_u32(vshlq_n_u32::<16>(vreinterpretq_u32_f32(pairs)))
}

/// The second number of each pair.
#[inline]
#[target_feature(enable = "neon")]
fn second(pairs: float32x4_t) -> float32x4_t {
    vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(pairs), vdupq_n_u32(0xffff_0000)))
}

#[inline]
#[target_feature(enable = "neon")]
fn add(left: Block, right: Block) -> Block {
    core::array::from_fn(|index| vaddq_f32(left[index], right[index]))
}

/// Stable Rust has no prefetch hint here; the hardware prefetcher follows a single stream.
#[inline]
#[target_feature(enable = "neon")]
fn prefetch<T>(_weights: &[T]) {}

#[inline]
#[target_feature(enable = "neon")]
fn prefetch_far<T>(_weights: &[T], _ahead_bytes: usize) {}

/// Signed quants. Quants of all 8 bits are stored plus 128; subtracting this makes the bias unnecessary.
#[inline]
#[target_feature(enable = "neon")]
fn signed<const WIDE: bool>(quants: uint8x16_t) -> int8x16_t {
    match WIDE {
        true => vreinterpretq_s8_u8(veorq_u8(quants, vdupq_n_u8(0x80))),
        false => vreinterpretq_s8_u8(quants),
    }
}

/// The initial biases of the sums of products, for each half of a stretch.
#[inline]
#[target_feature(enable = "neon")]
fn bias<const WIDE: bool>(activations: &ActivationBlock) -> [int32x4_t; 2] {
    let bias = if WIDE { [0; 2] } else { activations.bias };
    [vdupq_n_s32(bias[0]), vdupq_n_s32(bias[1])]
}

/// Four quants times four activations each, summed.
#[inline]
#[target_feature(enable = "neon")]
fn dot(sum: int32x4_t, quants: int8x16_t, activations: int8x16_t) -> int32x4_t {
    let low = vmull_s8(vget_low_s8(quants), vget_low_s8(activations));
    let high = vmull_high_s8(quants, activations);
    // Two products fit 16 bits: quants reach 128 and activations 127.
    let pairs = vpaddq_s16(low, high);
    vpadalq_s16(sum, pairs)
}

/// Adds the scaled sums of a stretch's halves to the total of rows 4 · `side` and on.
#[inline]
#[target_feature(enable = "neon")]
fn add_products<const HALVES: bool, const MINIMUMS: bool>(
    weights: &Expanded,
    side: usize,
    [low, high]: [int32x4_t; 2],
    activations: &ActivationBlock,
    mut total: float32x4_t,
) -> float32x4_t {
    let scales: [Block; 2] = bytemuck::must_cast(weights.scales);
    let minimums: [Block; 2] = bytemuck::must_cast(weights.minimums);
    let scale = vdupq_n_f32(activations.scale);
    if HALVES {
        total = vfmaq_f32(total, vcvtq_f32_s32(low), vmulq_f32(scales[0][side], scale));
        total = vfmaq_f32(total, vcvtq_f32_s32(high), vmulq_f32(scales[1][side], scale));
    } else {
        let both = vcvtq_f32_s32(vaddq_s32(low, high));
        total = vfmaq_f32(total, both, vmulq_f32(scales[0][side], scale));
    }
    if MINIMUMS {
        total = vfmaq_f32(total, minimums[0][side], vdupq_n_f32(activations.negative_sums[0]));
    }
    if MINIMUMS && HALVES {
        total = vfmaq_f32(total, minimums[1][side], vdupq_n_f32(activations.negative_sums[1]));
    }
    total
}

/// Expands to `stretches`, token by token, with `dot` in scope.
macro_rules! stretches_by_token {
    ($features:literal) => {
        #[target_feature(enable = $features)]
        pub(super) fn stretches<const HALVES: bool, const MINIMUMS: bool, const WIDE: bool, const ROWS: usize>(
            expanded: &[Expanded],
            rows: [&[ActivationBlock]; ROWS],
            sums: &mut [[f32; LANES]],
        ) {
            for (row, sums) in rows.iter().zip(sums) {
                let mut total: Block = bytemuck::must_cast(*sums);
                for (weights, activations) in expanded.iter().zip(*row) {
                    let quants: [[uint8x16_t; 4]; STRETCH / 4] = bytemuck::must_cast(weights.quants);
                    let words: [int8x16_t; STRETCH / 4] =
                        core::array::from_fn(|group| vreinterpretq_s8_u32(vdupq_n_u32(activations.words[group])));
                    for side in 0..4 {
                        let [mut low, mut high] = bias::<WIDE>(activations);
                        for group in 0..4 {
                            low = dot(low, signed::<WIDE>(quants[group][side]), words[group]);
                            high = dot(high, signed::<WIDE>(quants[group + 4][side]), words[group + 4]);
                        }
                        total[side] =
                            add_products::<HALVES, MINIMUMS>(weights, side, [low, high], activations, total[side]);
                    }
                }
                *sums = bytemuck::must_cast(total);
            }
        }
    };
}

use stretches_by_token;

stretches_by_token!("neon");
