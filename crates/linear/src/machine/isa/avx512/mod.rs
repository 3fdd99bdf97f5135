//! AVX-512: 16 lanes per register.

pub(super) mod bf16;
mod lookup;
mod one_token;
mod tiles;
pub(super) mod vbmi;

use core::arch::x86_64::*;

use one_token::one_token;

use super::float::{float_kernels, half_kernels};
use super::quant::quant_kernels;
use crate::LANES;
use crate::float::{Element, F16, F32, FloatKind, GROUP_BLOCKS, GroupSums, PANEL};
use crate::quant::{ActivationBlock, BiasForm, Halves, Quant, Shape, TILE_TOKENS, half_bits, tile_rows};

type Block = __m512;

/// Prefetch distance of quantised weights, in bytes, as measured. Distances of whole pages collide in the caches.
const AHEAD_BYTES: usize = 7168;

float_kernels!("avx512f,avx512bw,avx512vl", 4, 4, 2);
half_kernels!("avx512f,avx512bw,avx512vl");
quant_kernels!("avx512f,avx512bw,avx512vl,avx512vnni", BiasForm::Whole);

/// Every tile unpacks the weights itself, which takes fewer operations than reading unpacked weights. Grid formats
/// are the exception: with more than one token, all share unpacked weights.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn quant_band<Q: Quant>(weights: &[u8], activations: &[ActivationBlock], sums: &mut [[f32; LANES]]) {
    if const { Q::CODES.is_costly() } && sums.len() > 1 {
        return tiles::many_tokens::<Q>(weights, activations, sums);
    }
    let stretches = activations.len() / sums.len();
    let tiles = activations.chunks(TILE_TOKENS * stretches);
    for (sums, activations) in sums.chunks_mut(TILE_TOKENS).zip(tiles) {
        match sums {
            [sums] => one_token::<Q>(weights, activations, sums),
            _ => {
                let rows = tile_rows(activations, stretches, 0..stretches);
                tiles::few_tokens::<Q>(weights, &rows[..sums.len()], sums);
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn zero() -> Block {
    _mm512_setzero_ps()
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load<E: Element>(vector: &[E::Bits; LANES]) -> Block {
    match E::KIND {
        FloatKind::F32 => bytemuck::cast(*vector),
        FloatKind::F16 => _mm512_cvtph_ps(bytemuck::cast(*vector)),
        FloatKind::F8 => {
            let codes = _mm256_cvtepi8_epi16(bytemuck::cast(*vector));
            let sign_and_rest = _mm256_set1_epi16(0xbfff_u16.cast_signed());
            _mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16::<7>(codes), sign_and_rest))
        }
        // Pairs need no conversion.
        FloatKind::Bf16 | FloatKind::RoundedBf16 => bytemuck::cast(*vector),
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(block: Block) -> [f32; LANES] {
    bytemuck::must_cast(block)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn multiply_add<E: Element>(weights: Block, value: E::Value, sum: Block) -> Block {
    match E::KIND {
        FloatKind::F32 | FloatKind::F16 | FloatKind::F8 => {
            _mm512_fmadd_ps(weights, _mm512_set1_ps(bytemuck::cast(value)), sum)
        }
        FloatKind::Bf16 => {
            let [left, right]: [f32; 2] = bytemuck::cast(value);
            let sum = _mm512_fmadd_ps(first(weights), _mm512_set1_ps(left), sum);
            _mm512_fmadd_ps(second(weights), _mm512_set1_ps(right), sum)
        }
        FloatKind::RoundedBf16 => {
            let value = _mm512_set1_ps(bytemuck::cast(value));
            let sum = _mm512_fmadd_ps(second(weights), second(value), sum);
            _mm512_fmadd_ps(first(weights), first(value), sum)
        }
    }
}

/// The first number of each pair of bfloat16, widened.
#[inline]
#[target_feature(enable = "avx512f")]
fn first(pairs: __m512) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_castps_si512(pairs)))
}

/// The second of each pair.
#[inline]
#[target_feature(enable = "avx512f")]
fn second(pairs: __m512) -> __m512 {
    let upper = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
    _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pairs), upper))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn add(left: Block, right: Block) -> Block {
    _mm512_add_ps(left, right)
}

/// Prefetches weights a few KiB ahead; addresses past the end are never read.
#[inline]
#[target_feature(enable = "avx512f")]
fn prefetch<T>(weights: &[T]) {
    prefetch_near(weights, PREFETCH_BYTES);
}
const PREFETCH_BYTES: usize = 8192;

/// Prefetches weights `ahead_bytes` ahead into the first-level cache.
#[inline]
#[target_feature(enable = "avx512f")]
fn prefetch_near<T>(weights: &[T], ahead_bytes: usize) {
    let ahead = weights.as_ptr().cast::<i8>().wrapping_add(ahead_bytes);
    for line in (0..size_of_val(weights)).step_by(64) {
        _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(line));
    }
}

/// Prefetches weights `ahead_bytes` ahead into the second-level cache, because some processors have too few
/// first-level buffers.
#[inline]
#[target_feature(enable = "avx512f")]
fn prefetch_far<T>(weights: &[T], ahead_bytes: usize) {
    let ahead = weights.as_ptr().cast::<i8>().wrapping_add(ahead_bytes);
    for line in (0..size_of_val(weights)).step_by(64) {
        _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(line));
    }
}
