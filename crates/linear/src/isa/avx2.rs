//! AVX2 with FMA and F16C: a block is two registers.

use core::arch::x86_64::*;

use super::float::float_kernels;
use crate::LANES;
use crate::float::{Element, F32, GROUP_BLOCKS, GroupSums, Kind, PANEL};

type Block = [__m256; 2];

float_kernels!("avx2,fma,f16c", 4, 1, 1);

#[inline]
#[target_feature(enable = "avx2")]
fn zero() -> Block {
    [_mm256_setzero_ps(); 2]
}

#[inline]
#[target_feature(enable = "avx2")]
fn splat(value: f32) -> __m256 {
    _mm256_set1_ps(value)
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn load<E: Element>(vector: &[E::Bits; LANES]) -> Block {
    match E::KIND {
        Kind::F32 => bytemuck::cast(*vector),
        Kind::F16 => {
            let [low, high]: [__m128i; 2] = bytemuck::cast(*vector);
            [_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)]
        }
        Kind::Bf16 => {
            let [low, high]: [__m128i; 2] = bytemuck::cast(*vector);
            [widen_bf16(low), widen_bf16(high)]
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn widen_bf16(bits: __m128i) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits)))
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(block: Block) -> [f32; LANES] {
    bytemuck::must_cast(block)
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn multiply_add(weights: Block, value: __m256, sum: Block) -> Block {
    [
        _mm256_fmadd_ps(weights[0], value, sum[0]),
        _mm256_fmadd_ps(weights[1], value, sum[1]),
    ]
}

#[inline]
#[target_feature(enable = "avx2")]
fn add(left: Block, right: Block) -> Block {
    [_mm256_add_ps(left[0], right[0]), _mm256_add_ps(left[1], right[1])]
}

/// Asks for the weights a few KiB ahead; addresses past the end are never read.
#[inline]
#[target_feature(enable = "avx2")]
fn prefetch<T>(weights: &[T]) {
    let ahead = weights.as_ptr().cast::<i8>().wrapping_add(PREFETCH_BYTES);
    for line in (0..size_of_val(weights)).step_by(64) {
        _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(line));
    }
}
const PREFETCH_BYTES: usize = 4096;
