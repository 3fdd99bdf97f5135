//! AVX2 with FMA and F16C: a block is two registers.

pub(super) mod few_tokens;
pub(super) mod grids;
pub(super) mod lookup;
mod numbers;
pub(super) mod pairs;
pub(super) mod tiles;

use core::arch::x86_64::*;

use few_tokens::{FEW, few_token_kernels};
use grids::one_token;
use lookup::{eights, fours, marked, values};
use pairs::{add_minimums, add_products, add_scaled, bias, chain, groups, parts, whole, word};
use tiles::{tile_kernels, tile_tokens};

use super::float::{float_kernels, half_kernels};
use super::quant::{expand_kernel, for_stretches, quant_kernels, share, unpack_kernel};
use super::vendor::is_amd;
use super::{SHARED, SHARED_STRETCHES};
use crate::LANES;
use crate::float::{Element, F16, F32, FloatKind, GROUP_BLOCKS, GroupSums, PANEL};
use crate::quant::{
    ActivationBlock, BiasForm, Codes, Expanded, Halves, Quant, STRETCH, Shape, half_bits, tile_rows, words,
};

pub(super) type Block = [__m256; 2];

/// Prefetch distance of quantised weights, in bytes. Distances of whole pages collide in the caches.
pub(super) const AHEAD_BYTES: usize = 7168;

float_kernels!("avx2,fma,f16c", 4, 1, 1);
half_kernels!("avx2,fma,f16c");
quant_kernels!("avx2,fma,f16c", BiasForm::Pairs);
few_token_kernels!("avx2,fma,f16c");
tile_kernels!("avx2,fma,f16c");
unpack_kernel!("avx2,fma,f16c", true);
expand_kernel!("avx2,fma,f16c");

#[inline]
#[target_feature(enable = "avx2")]
fn zero() -> Block {
    [_mm256_setzero_ps(); 2]
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn load<E: Element>(vector: &[E::Bits; LANES]) -> Block {
    match E::KIND {
        FloatKind::F32 => bytemuck::cast(*vector),
        FloatKind::F16 => {
            let [low, high]: [__m128i; 2] = bytemuck::cast(*vector);
            [_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)]
        }
        FloatKind::F8 => {
            let codes = _mm256_cvtepi8_epi16(bytemuck::cast(*vector));
            let halves = _mm256_and_si256(
                _mm256_slli_epi16::<7>(codes),
                _mm256_set1_epi16(0xbfff_u16.cast_signed()),
            );
            let [low, high]: [__m128i; 2] = bytemuck::cast(halves);
            [_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)]
        }
        // Pairs need no conversion.
        FloatKind::Bf16 | FloatKind::RoundedBf16 => bytemuck::cast(*vector),
    }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn store(block: Block) -> [f32; LANES] {
    bytemuck::must_cast(block)
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn multiply_add<E: Element>(weights: Block, value: E::Value, sum: Block) -> Block {
    let [low, high] = weights;
    match E::KIND {
        FloatKind::F32 | FloatKind::F16 | FloatKind::F8 => {
            let value = _mm256_set1_ps(bytemuck::cast(value));
            [
                _mm256_fmadd_ps(low, value, sum[0]),
                _mm256_fmadd_ps(high, value, sum[1]),
            ]
        }
        FloatKind::Bf16 => {
            let [left, right]: [f32; 2] = bytemuck::cast(value);
            let (left, right) = (_mm256_set1_ps(left), _mm256_set1_ps(right));
            let sum = [
                _mm256_fmadd_ps(first(low), left, sum[0]),
                _mm256_fmadd_ps(first(high), left, sum[1]),
            ];
            [
                _mm256_fmadd_ps(second(low), right, sum[0]),
                _mm256_fmadd_ps(second(high), right, sum[1]),
            ]
        }
        FloatKind::RoundedBf16 => {
            let value = _mm256_set1_ps(bytemuck::cast(value));
            let sum = [
                _mm256_fmadd_ps(second(low), second(value), sum[0]),
                _mm256_fmadd_ps(second(high), second(value), sum[1]),
            ];
            [
                _mm256_fmadd_ps(first(low), first(value), sum[0]),
                _mm256_fmadd_ps(first(high), first(value), sum[1]),
            ]
        }
    }
}

/// The first number of each pair of bfloat16, widened.
#[inline]
#[target_feature(enable = "avx2")]
fn first(pairs: __m256) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_castps_si256(pairs)))
}

/// The second number of each pair.
#[inline]
#[target_feature(enable = "avx2")]
fn second(pairs: __m256) -> __m256 {
    let upper = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
    _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(pairs), upper))
}

#[inline]
#[target_feature(enable = "avx2")]
fn add(left: Block, right: Block) -> Block {
    [_mm256_add_ps(left[0], right[0]), _mm256_add_ps(left[1], right[1])]
}

/// Prefetches weights a few KiB ahead; addresses past the end are never read.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn prefetch<T>(weights: &[T]) {
    let ahead = weights.as_ptr().cast::<i8>().wrapping_add(PREFETCH_BYTES);
    for line in (0..size_of_val(weights)).step_by(64) {
        _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(line));
    }
}
const PREFETCH_BYTES: usize = 8192;

/// Prefetches weights `ahead_bytes` ahead into the second-level cache.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn prefetch_far<T>(weights: &[T], ahead_bytes: usize) {
    let ahead = weights.as_ptr().cast::<i8>().wrapping_add(ahead_bytes);
    for line in (0..size_of_val(weights)).step_by(64) {
        _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(line));
    }
}
