//! NEON: a block is four registers.

use core::arch::aarch64::*;

use super::float::float_kernels;
use crate::LANES;
use crate::float::{Element, F32, GROUP_BLOCKS, GroupSums, Kind, PANEL};

type Block = [float32x4_t; 4];

float_kernels!("neon", 4, 1, 1);

#[inline]
#[target_feature(enable = "neon")]
fn zero() -> Block {
    [vdupq_n_f32(0.0); 4]
}

#[inline]
#[target_feature(enable = "neon")]
fn splat(value: f32) -> float32x4_t {
    vdupq_n_f32(value)
}

#[inline]
#[target_feature(enable = "neon")]
fn load<E: Element>(vector: &[E::Bits; LANES]) -> Block {
    match E::KIND {
        Kind::F32 => bytemuck::cast(*vector),
        Kind::F16 | Kind::Bf16 => bytemuck::cast(vector.map(E::widen)),
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn store(block: Block) -> [f32; LANES] {
    bytemuck::must_cast(block)
}

#[inline]
#[target_feature(enable = "neon")]
fn multiply_add(weights: Block, value: float32x4_t, sum: Block) -> Block {
    core::array::from_fn(|index| vfmaq_f32(sum[index], weights[index], value))
}

#[inline]
#[target_feature(enable = "neon")]
fn add(left: Block, right: Block) -> Block {
    core::array::from_fn(|index| vaddq_f32(left[index], right[index]))
}

/// No stable prefetch hint here: the hardware's own follows a single stream.
#[inline]
#[target_feature(enable = "neon")]
fn prefetch<T>(_weights: &[T]) {}
