//! One token: each stretch is unpacked and added to the sum without passing through memory.
//!
//! Each quant is unpacked for a single multiplication here. So its bits are masked and multiplied without shifting;
//! only the sums are shifted, which is exact.

use core::arch::x86_64::*;
use core::sync::atomic::{Ordering, compiler_fence};

use super::super::quant::{for_stretches, share};
use super::super::vendor::is_amd;
use super::lookup::unpack;
use super::{AHEAD_BYTES, Block, load, prefetch_far, prefetch_near, store, widen_halves};
use crate::LANES;
use crate::float::F32;
use crate::quant::{ActivationBlock, Expanded, Halves, Quant, STRETCH, bytes, words};

/// As [`AHEAD_BYTES`], for AMD processors and the first-level cache.
pub(super) const AMD_AHEAD_BYTES: usize = 12_800;

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn one_token<Q: Quant>(weights: &[u8], row: &[ActivationBlock], sums: &mut [f32; LANES]) {
    if is_amd() {
        ahead_of_time::<Q, true>(weights, row, sums)
    } else {
        ahead_of_time::<Q, false>(weights, row, sums)
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn ahead_of_time<Q: Quant, const AMD: bool>(weights: &[u8], row: &[ActivationBlock], sums: &mut [f32; LANES]) {
    let mut total = load::<F32>(sums);
    let blocks = weights.chunks_exact(LANES * Q::BYTES);
    for (block, activations) in blocks.zip(row.chunks_exact(Q::WEIGHTS / STRETCH)) {
        let halves = widen_halves::<Q>(block);
        let mut last = [bias(&activations[0]); 2];
        for_stretches!(Q, INDEX => {
            if AMD { prefetch_near(share::<Q>(block, INDEX), AMD_AHEAD_BYTES) } else { prefetch_far(share::<Q>(block, INDEX), AHEAD_BYTES) }
            let mut expanded = Expanded::default();
            if Q::SHAPE.halves && Q::SHAPE.minimums {
                look_up_scales(block, INDEX, &halves, &mut expanded);
            } else {
                Q::scales(block, INDEX, &halves, &mut expanded);
            }
            // For stretches with two scales, unpacking is slower than reading.
            let products = if const { in_three_pieces::<Q>() } {
                products_in_pieces::<Q, INDEX>(block, activations, &mut last)
            } else if const { Q::SHAPE.halves && has_planes::<Q>() } {
                masked_products::<Q, INDEX>(block, &activations[INDEX])
            } else {
                if AMD { unpack::<Q, INDEX, 1>(block, &mut expanded) } else { unpack::<Q, INDEX, 0>(block, &mut expanded) }
                products(&expanded, &activations[INDEX])
            };
            total = add_products::<Q>(products, &expanded, &activations[INDEX], total);
            // Otherwise the compiler gathers the block's prefetches into a burst, which overruns the buffers.
            compiler_fence(Ordering::SeqCst);
        });
    }
    *sums = store(total);
}

/// The scales of Q2_K, the only format with two minimums per stretch: the low and high four bits of a byte, looked up
/// instead of converted.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn look_up_scales(block: &[u8], stretch: usize, [scale, minimum]: &Halves, expanded: &mut Expanded) {
    let numbers = load::<F32>(&core::array::from_fn(|number| number as f32));
    for part in 0..2 {
        let pairs = _mm512_cvtepu8_epi32(bytemuck::must_cast(*bytes(block, 0, 2 * stretch + part)));
        let low = _mm512_permutexvar_ps(pairs, numbers);
        let high = _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(pairs), numbers);
        expanded.scales[part] = store(_mm512_mul_ps(load::<F32>(scale), low));
        expanded.minimums[part] = store(_mm512_mul_ps(load::<F32>(minimum), high));
    }
}

/// Sums of products for each half of a stretch, including the bias.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn products(weights: &Expanded, activations: &ActivationBlock) -> [__m512i; 2] {
    let quants: [__m512i; STRETCH / 4] = bytemuck::must_cast(weights.quants);
    let mut low = _mm512_set1_epi32(activations.bias[0]);
    let mut high = _mm512_set1_epi32(activations.bias[1]);
    for group in 0..4 {
        low = _mm512_dpbusd_epi32(low, quants[group], word(activations, group));
        high = _mm512_dpbusd_epi32(high, quants[group + 4], word(activations, group + 4));
    }
    [low, high]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn bias(activations: &ActivationBlock) -> [__m512i; 2] {
    let [low, high] = activations.bias;
    [_mm512_set1_epi32(low), _mm512_set1_epi32(high)]
}

/// As [`products`], from a block's planes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn masked_products<Q: Quant, const INDEX: usize>(block: &[u8], activations: &ActivationBlock) -> [__m512i; 2] {
    let sums = add_piece::<Q, INDEX, 0>(bias(activations), block, activations);
    let sums = add_piece::<Q, INDEX, 1>(sums, block, activations);
    add_piece::<Q, INDEX, 2>(sums, block, activations)
}

/// True for Q6_K: six stretches have a plane each, and the last two are split into three pieces each.
const fn in_three_pieces<Q: Quant>() -> bool {
    Q::PIECES[7][2].is_some()
}

/// True if the block stores its quants in planes.
const fn has_planes<Q: Quant>() -> bool {
    Q::PIECES[0][0].is_some()
}

/// As [`masked_products`]. Each plane is read once, for its own stretch and for one of the last two stretches. `last`
/// collects the sums of the last two.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn products_in_pieces<Q: Quant, const INDEX: usize>(
    block: &[u8],
    activations: &[ActivationBlock],
    last: &mut [[__m512i; 2]; 2],
) -> [__m512i; 2] {
    if INDEX == 0 {
        *last = [bias(&activations[6]), bias(&activations[7])];
    }
    match INDEX {
        0 => last[0] = add_piece::<Q, 6, 0>(last[0], block, &activations[6]),
        1 => last[0] = add_piece::<Q, 6, 1>(last[0], block, &activations[6]),
        2 => last[0] = add_piece::<Q, 6, 2>(last[0], block, &activations[6]),
        3 => last[1] = add_piece::<Q, 7, 0>(last[1], block, &activations[7]),
        4 => last[1] = add_piece::<Q, 7, 1>(last[1], block, &activations[7]),
        5 => last[1] = add_piece::<Q, 7, 2>(last[1], block, &activations[7]),
        _ => return last[INDEX - 6],
    }
    add_piece::<Q, INDEX, 0>(bias(&activations[INDEX]), block, &activations[INDEX])
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn add_piece<Q: Quant, const INDEX: usize, const PIECE: usize>(
    sums: [__m512i; 2],
    block: &[u8],
    activations: &ActivationBlock,
) -> [__m512i; 2] {
    let Some(piece) = (const { Q::PIECES[INDEX][PIECE] }) else {
        return sums;
    };
    let mask = _mm512_set1_epi8(piece.mask.cast_signed());
    let mut parts = match piece.shift {
        0 => sums,
        _ => [_mm512_setzero_si512(); 2],
    };
    for group in 0..STRETCH / 4 {
        let bytes: __m512i = bytemuck::must_cast(*words(block, Q::PLANES, 8 * piece.plane + group));
        let part = &mut parts[group / 4];
        *part = _mm512_dpbusd_epi32(*part, _mm512_and_si512(bytes, mask), word(activations, group));
    }
    if piece.shift == 0 {
        return parts;
    }
    let left = _mm512_set1_epi32((-piece.shift).max(0));
    let right = _mm512_set1_epi32(piece.shift.max(0));
    let moved = parts.map(|part| _mm512_srav_epi32(_mm512_sllv_epi32(part, left), right));
    [_mm512_add_epi32(sums[0], moved[0]), _mm512_add_epi32(sums[1], moved[1])]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn word(activations: &ActivationBlock, group: usize) -> __m512i {
    _mm512_set1_epi32(activations.words[group].cast_signed())
}

/// Adds the products of one stretch and one token, as a tile does.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn add_products<Q: Quant>(
    [low, high]: [__m512i; 2],
    weights: &Expanded,
    activations: &ActivationBlock,
    mut total: Block,
) -> Block {
    let scales: [Block; 2] = bytemuck::must_cast(weights.scales);
    let minimums: [Block; 2] = bytemuck::must_cast(weights.minimums);
    let scale = _mm512_set1_ps(activations.scale);
    if Q::SHAPE.halves {
        let (low, high) = (_mm512_cvtepi32_ps(low), _mm512_cvtepi32_ps(high));
        total = _mm512_fmadd_ps(low, _mm512_mul_ps(scales[0], scale), total);
        total = _mm512_fmadd_ps(high, _mm512_mul_ps(scales[1], scale), total);
    } else {
        let both = _mm512_cvtepi32_ps(_mm512_add_epi32(low, high));
        total = _mm512_fmadd_ps(both, _mm512_mul_ps(scales[0], scale), total);
    }
    if Q::SHAPE.minimums {
        let sums = _mm512_set1_ps(activations.negative_sums[0]);
        total = _mm512_fmadd_ps(minimums[0], sums, total);
    }
    if Q::SHAPE.minimums && Q::SHAPE.halves {
        let sums = _mm512_set1_ps(activations.negative_sums[1]);
        total = _mm512_fmadd_ps(minimums[1], sums, total);
    }
    total
}
