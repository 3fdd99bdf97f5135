//! Tiles of bfloat16 pairs, two multiply-adds per instruction.

use core::arch::x86_64::*;

use super::super::float::float_kernels;
use super::{Block, add, load, prefetch, prefetch_far, store, zero};
use crate::LANES;
use crate::float::{Element, F32, GROUP_BLOCKS, GroupSums, PANEL};

float_kernels!("avx512f,avx512bw,avx512vl,avx512bf16", 4, 4, 2);

/// Adds the second product of a pair before the first, each with one rounding.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn multiply_add<E: Element>(weights: Block, value: E::Value, sum: Block) -> Block {
    let value = _mm512_set1_ps(bytemuck::cast(value));
    _mm512_dpbf16_ps(sum, bytemuck::must_cast(weights), bytemuck::must_cast(value))
}
