//! Quantised weights with the dot products of Armv8.2 (`sdot`).

use core::arch::aarch64::*;
use core::arch::asm;

use super::super::quant::{for_stretches, quant_tiles, share};
use super::{Block, add_products, bias, prefetch, signed, stretches_by_token, unpack, widen_halves};
use crate::LANES;
use crate::quant::{ActivationBlock, Expanded, Quant, STRETCH, Shape, TILE_TOKENS, tile_rows};

quant_tiles!("neon,dotprod");
stretches_by_token!("neon,dotprod");

/// Four quants times four activations each, summed.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot(mut sum: int32x4_t, quants: int8x16_t, activations: int8x16_t) -> int32x4_t {
    // SAFETY: the instruction touches these registers alone. The intrinsic is not stable yet.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {quants:v}.16b, {activations:v}.16b",
            sum = inout(vreg) sum,
            quants = in(vreg) quants,
            activations = in(vreg) activations,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}
