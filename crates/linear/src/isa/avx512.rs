//! AVX-512: 16 lanes in a register.

use core::arch::x86_64::*;

use super::float::float_kernels;
use super::quant::quant_kernels;
use crate::LANES;
use crate::float::{Element, F32, GROUP_BLOCKS, GroupSums, Kind, PANEL};
use crate::quant::{ActivationBlock, Expanded, Quant, STRETCH, Shape};

type Block = __m512;

float_kernels!("avx512f,avx512bw,avx512vl", 4, 4, 2);
quant_kernels!("avx512f,avx512bw,avx512vl,avx512vnni");

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
    let mut totals: [__m512; ROWS] = core::array::from_fn(|row| bytemuck::must_cast(sums[row]));
    for (index, weights) in expanded.iter().enumerate() {
        let quants: [__m512i; STRETCH / 4] = bytemuck::must_cast(weights.quants);
        let scales: [__m512; 2] = bytemuck::must_cast(weights.scales);
        let minimums: [__m512; 2] = bytemuck::must_cast(weights.minimums);
        for (row, total) in rows.iter().zip(&mut totals) {
            let activations = &row[index];
            let mut low = _mm512_set1_epi32(activations.bias[0]);
            let mut high = _mm512_set1_epi32(activations.bias[1]);
            for group in 0..4 {
                let word = |group: usize| activations.words[group].cast_signed();
                low = _mm512_dpbusd_epi32(low, quants[group], _mm512_set1_epi32(word(group)));
                high = _mm512_dpbusd_epi32(high, quants[group + 4], _mm512_set1_epi32(word(group + 4)));
            }
            let scale = _mm512_set1_ps(activations.scale);
            if HALVES {
                let low = _mm512_cvtepi32_ps(low);
                *total = _mm512_fmadd_ps(low, _mm512_mul_ps(scales[0], scale), *total);
                let high = _mm512_cvtepi32_ps(high);
                *total = _mm512_fmadd_ps(high, _mm512_mul_ps(scales[1], scale), *total);
            } else {
                let both = _mm512_cvtepi32_ps(_mm512_add_epi32(low, high));
                *total = _mm512_fmadd_ps(both, _mm512_mul_ps(scales[0], scale), *total);
            }
            if MINIMUMS {
                *total = _mm512_fmadd_ps(minimums[0], _mm512_set1_ps(activations.negative_sums[0]), *total);
            }
            if MINIMUMS && HALVES {
                *total = _mm512_fmadd_ps(minimums[1], _mm512_set1_ps(activations.negative_sums[1]), *total);
            }
        }
    }
    for (sums, total) in sums.iter_mut().zip(totals) {
        *sums = bytemuck::must_cast(total);
    }
}
