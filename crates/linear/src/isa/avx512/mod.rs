//! AVX-512: 16 lanes in a register.

mod one_token;
mod tiles;

use core::arch::x86_64::*;

use one_token::one_token;
pub(super) use tiles::quant_pair;

use super::float::float_kernels;
use super::quant::{for_stretches, quant_kernels, share};
use crate::LANES;
use crate::float::{Element, F16, F32, GROUP_BLOCKS, GroupSums, Kind, PANEL};
use crate::quant::{ActivationBlock, Expanded, Halves, Quant, STRETCH, Shape, half_bits};

type Block = __m512;

float_kernels!("avx512f,avx512bw,avx512vl", 4, 4, 2);
quant_kernels!("avx512f,avx512bw,avx512vl,avx512vnni");

/// Unpacks `weights` and adds their products with 1 to 8 tokens to `sums`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn quant_pass<Q: Quant>(weights: &[u8], rows: &[&[ActivationBlock]], sums: &mut [[f32; LANES]]) {
    match rows.len() {
        1 => one_token::<Q>(weights, rows, sums),
        _ => tiles::few_tokens::<Q>(weights, rows, sums),
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn zero() -> Block {
    _mm512_setzero_ps()
}

#[inline]
#[target_feature(enable = "avx512f")]
fn splat(value: f32) -> __m512 {
    _mm512_set1_ps(value)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load<E: Element>(vector: &[E::Bits; LANES]) -> Block {
    match E::KIND {
        Kind::F32 => bytemuck::cast(*vector),
        Kind::F16 => _mm512_cvtph_ps(bytemuck::cast(*vector)),
        Kind::Bf16 => _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bytemuck::cast(*vector)))),
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(block: Block) -> [f32; LANES] {
    bytemuck::must_cast(block)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn multiply_add(weights: Block, value: __m512, sum: Block) -> Block {
    _mm512_fmadd_ps(weights, value, sum)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn add(left: Block, right: Block) -> Block {
    _mm512_add_ps(left, right)
}

/// Asks for the weights a few KiB ahead; addresses past the end are never read.
#[inline]
#[target_feature(enable = "avx512f")]
fn prefetch<T>(weights: &[T]) {
    let ahead = weights.as_ptr().cast::<i8>().wrapping_add(PREFETCH_BYTES);
    for line in (0..size_of_val(weights)).step_by(64) {
        _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(line));
    }
}
const PREFETCH_BYTES: usize = 8192;
