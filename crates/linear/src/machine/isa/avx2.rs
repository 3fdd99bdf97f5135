//! AVX2 with FMA and F16C: a block is two registers.

use core::arch::x86_64::*;

use super::float::{float_kernels, half_kernels};
use super::quant::{for_stretches, quant_kernels, quant_tiles, share};
use crate::LANES;
use crate::float::{Element, F16, F32, GROUP_BLOCKS, GroupSums, Kind, PANEL};
use crate::quant::{ActivationBlock, Expanded, Halves, Quant, STRETCH, Shape, TILE_TOKENS, half_bits, tile_rows};

type Block = [__m256; 2];

float_kernels!("avx2,fma,f16c", 4, 1, 1);
half_kernels!("avx2,fma,f16c");
quant_kernels!("avx2,fma,f16c");
quant_tiles!("avx2,fma,f16c");

#[inline]
#[target_feature(enable = "avx2")]
fn zero() -> Block {
    [_mm256_setzero_ps(); 2]
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
        // Pairs stay as they are.
        Kind::Bf16 | Kind::RoundedBf16 => bytemuck::cast(*vector),
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(block: Block) -> [f32; LANES] {
    bytemuck::must_cast(block)
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn multiply_add<E: Element>(weights: Block, value: E::Value, sum: Block) -> Block {
    let [low, high] = weights;
    match E::KIND {
        Kind::F32 | Kind::F16 => {
            let value = _mm256_set1_ps(bytemuck::cast(value));
            [
                _mm256_fmadd_ps(low, value, sum[0]),
                _mm256_fmadd_ps(high, value, sum[1]),
            ]
        }
        Kind::Bf16 => {
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
        Kind::RoundedBf16 => {
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

/// The first of each pair of bfloat16, widened.
#[inline]
#[target_feature(enable = "avx2")]
fn first(pairs: __m256) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_castps_si256(pairs)))
}

/// The second of each pair.
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

/// Asks for the weights a few KiB ahead; addresses past the end are never read.
#[inline]
#[target_feature(enable = "avx2")]
fn prefetch<T>(weights: &[T]) {
    let ahead = weights.as_ptr().cast::<i8>().wrapping_add(PREFETCH_BYTES);
    for line in (0..size_of_val(weights)).step_by(64) {
        _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(line));
    }
}
const PREFETCH_BYTES: usize = 8192;

/// Asks for the weights `ahead_bytes` ahead, for the second cache.
#[inline]
#[target_feature(enable = "avx2")]
fn prefetch_far<T>(weights: &[T], ahead_bytes: usize) {
    let ahead = weights.as_ptr().cast::<i8>().wrapping_add(ahead_bytes);
    for line in (0..size_of_val(weights)).step_by(64) {
        _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(line));
    }
}

/// Products of four quants with four activations each, added up: `WIDE` quants are signed bytes plus 128, whose
/// products would overflow 16 bits; they are multiplied by magnitude with the sign moved to the activations, which
/// makes the bias unnecessary.
#[inline]
#[target_feature(enable = "avx2")]
fn dot<const WIDE: bool>(sum: __m256i, quants: __m256i, activations: __m256i) -> __m256i {
    let pairs = if WIDE {
        let signed = _mm256_xor_si256(quants, _mm256_set1_epi8(-128));
        _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(activations, signed))
    } else {
        _mm256_maddubs_epi16(quants, activations)
    };
    _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn stretches<const HALVES: bool, const MINIMUMS: bool, const WIDE: bool, const ROWS: usize>(
    expanded: &[Expanded],
    rows: [&[ActivationBlock]; ROWS],
    sums: &mut [[f32; LANES]],
) {
    let mut totals: [Block; ROWS] = core::array::from_fn(|row| bytemuck::must_cast(sums[row]));
    for (index, weights) in expanded.iter().enumerate() {
        let quants: [[__m256i; 2]; STRETCH / 4] = bytemuck::must_cast(weights.quants);
        let scales: [Block; 2] = bytemuck::must_cast(weights.scales);
        let minimums: [Block; 2] = bytemuck::must_cast(weights.minimums);
        for (row, total) in rows.iter().zip(&mut totals) {
            let activations = &row[index];
            let scale = _mm256_set1_ps(activations.scale);
            let bias = if WIDE { [0; 2] } else { activations.bias };
            for side in 0..2 {
                let mut low = _mm256_set1_epi32(bias[0]);
                let mut high = _mm256_set1_epi32(bias[1]);
                for group in 0..4 {
                    let word = |group: usize| activations.words[group].cast_signed();
                    low = dot::<WIDE>(low, quants[group][side], _mm256_set1_epi32(word(group)));
                    high = dot::<WIDE>(high, quants[group + 4][side], _mm256_set1_epi32(word(group + 4)));
                }
                let total = &mut total[side];
                if HALVES {
                    let low = _mm256_cvtepi32_ps(low);
                    *total = _mm256_fmadd_ps(low, _mm256_mul_ps(scales[0][side], scale), *total);
                    let high = _mm256_cvtepi32_ps(high);
                    *total = _mm256_fmadd_ps(high, _mm256_mul_ps(scales[1][side], scale), *total);
                } else {
                    let both = _mm256_cvtepi32_ps(_mm256_add_epi32(low, high));
                    *total = _mm256_fmadd_ps(both, _mm256_mul_ps(scales[0][side], scale), *total);
                }
                if MINIMUMS {
                    *total = _mm256_fmadd_ps(minimums[0][side], _mm256_set1_ps(activations.negative_sums[0]), *total);
                }
                if MINIMUMS && HALVES {
                    *total = _mm256_fmadd_ps(minimums[1][side], _mm256_set1_ps(activations.negative_sums[1]), *total);
                }
            }
        }
    }
    for (sums, total) in sums.iter_mut().zip(totals) {
        *sums = bytemuck::must_cast(total);
    }
}
