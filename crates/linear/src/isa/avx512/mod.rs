//! AVX-512: 16 lanes in a register.

mod one_token;

use core::arch::x86_64::*;

use one_token::one_token;

use super::float::float_kernels;
use super::quant::{for_stretches, quant_kernels, share};
use crate::LANES;
use crate::float::{Element, F16, F32, GROUP_BLOCKS, GroupSums, Kind, PANEL};
use crate::quant::{ActivationBlock, Expanded, Halves, Quant, STRETCH, Shape, half_bits};

type Block = __m512;

float_kernels!("avx512f,avx512bw,avx512vl", 4, 4, 2);
quant_kernels!("avx512f,avx512bw,avx512vl,avx512vnni", one_token);

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

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn stretches<const HALVES: bool, const MINIMUMS: bool, const WIDE: bool, const ROWS: usize>(
    expanded: &[Expanded],
    rows: [&[ActivationBlock]; ROWS],
    sums: &mut [[f32; LANES]],
) {
    bands::<HALVES, MINIMUMS, ROWS, 1>([expanded], rows, [sums]);
}

/// Two bands of 16 outputs at once: an activation is broadcast once for both.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn quant_pair(
    shape: Shape,
    expanded: [&[Expanded]; 2],
    rows: &[&[ActivationBlock]],
    sums: [&mut [[f32; LANES]]; 2],
) {
    match (shape.halves, shape.minimums) {
        (false, false) => pair::<false, false>(expanded, rows, sums),
        (false, true) => pair::<false, true>(expanded, rows, sums),
        (true, false) => pair::<true, false>(expanded, rows, sums),
        (true, true) => pair::<true, true>(expanded, rows, sums),
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn pair<const HALVES: bool, const MINIMUMS: bool>(
    expanded: [&[Expanded]; 2],
    rows: &[&[ActivationBlock]],
    sums: [&mut [[f32; LANES]]; 2],
) {
    match *rows {
        [a] => bands::<HALVES, MINIMUMS, 1, 2>(expanded, [a], sums),
        [a, b] => bands::<HALVES, MINIMUMS, 2, 2>(expanded, [a, b], sums),
        [a, b, c] => bands::<HALVES, MINIMUMS, 3, 2>(expanded, [a, b, c], sums),
        [a, b, c, d] => bands::<HALVES, MINIMUMS, 4, 2>(expanded, [a, b, c, d], sums),
        _ => unreachable!("a pair of bands takes 1 to {} tokens", crate::quant::PAIR_TOKENS),
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn bands<const HALVES: bool, const MINIMUMS: bool, const ROWS: usize, const BANDS: usize>(
    expanded: [&[Expanded]; BANDS],
    rows: [&[ActivationBlock]; ROWS],
    sums: [&mut [[f32; LANES]]; BANDS],
) {
    let mut totals = [[_mm512_setzero_ps(); BANDS]; ROWS];
    for (row, totals) in totals.iter_mut().enumerate() {
        for (band, total) in totals.iter_mut().enumerate() {
            *total = bytemuck::must_cast(sums[band][row]);
        }
    }
    for index in 0..expanded[0].len() {
        let mut quants = [[_mm512_setzero_si512(); STRETCH / 4]; BANDS];
        let mut scales = [[_mm512_setzero_ps(); 2]; BANDS];
        let mut minimums = [[_mm512_setzero_ps(); 2]; BANDS];
        for band in 0..BANDS {
            let weights = &expanded[band][index];
            quants[band] = bytemuck::must_cast(weights.quants);
            scales[band] = bytemuck::must_cast(weights.scales);
            minimums[band] = bytemuck::must_cast(weights.minimums);
        }
        for (row, totals) in rows.iter().zip(&mut totals) {
            let activations = &row[index];
            let mut low = [_mm512_set1_epi32(activations.bias[0]); BANDS];
            let mut high = [_mm512_set1_epi32(activations.bias[1]); BANDS];
            for group in 0..4 {
                let word = _mm512_set1_epi32(activations.words[group].cast_signed());
                for band in 0..BANDS {
                    low[band] = _mm512_dpbusd_epi32(low[band], quants[band][group], word);
                }
                let word = _mm512_set1_epi32(activations.words[group + 4].cast_signed());
                for band in 0..BANDS {
                    high[band] = _mm512_dpbusd_epi32(high[band], quants[band][group + 4], word);
                }
            }
            let scale = _mm512_set1_ps(activations.scale);
            for (band, total) in totals.iter_mut().enumerate() {
                if HALVES {
                    let low = _mm512_cvtepi32_ps(low[band]);
                    *total = _mm512_fmadd_ps(low, _mm512_mul_ps(scales[band][0], scale), *total);
                    let high = _mm512_cvtepi32_ps(high[band]);
                    *total = _mm512_fmadd_ps(high, _mm512_mul_ps(scales[band][1], scale), *total);
                } else {
                    let both = _mm512_cvtepi32_ps(_mm512_add_epi32(low[band], high[band]));
                    *total = _mm512_fmadd_ps(both, _mm512_mul_ps(scales[band][0], scale), *total);
                }
                if MINIMUMS {
                    let sums = _mm512_set1_ps(activations.negative_sums[0]);
                    *total = _mm512_fmadd_ps(minimums[band][0], sums, *total);
                }
                if MINIMUMS && HALVES {
                    let sums = _mm512_set1_ps(activations.negative_sums[1]);
                    *total = _mm512_fmadd_ps(minimums[band][1], sums, *total);
                }
            }
        }
    }
    for (row, totals) in totals.iter().enumerate() {
        for (band, total) in totals.iter().enumerate() {
            sums[band][row] = bytemuck::must_cast(*total);
        }
    }
}
