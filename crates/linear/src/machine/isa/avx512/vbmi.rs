//! Grids by permutation: with VBMI, registers hold the grid's values for a whole stretch, which is faster than
//! gathers.

use core::arch::x86_64::*;
use core::sync::atomic::{Ordering, compiler_fence};

use super::super::quant::{expand_kernel, for_stretches, share};
use super::super::vendor::is_amd;
use super::super::{SHARED, SHARED_STRETCHES};
use super::lookup::marked;
use super::one_token::{AMD_AHEAD_BYTES, add_products, products};
use super::tiles::{multiply_shared, shared_kernels};
use super::{AHEAD_BYTES, load, prefetch_far, prefetch_near, store, widen_halves};
use crate::LANES;
use crate::float::F32;
use crate::quant::{ActivationBlock, Codes, Expanded, Quant, STRETCH};

/// Multiplies a band of a grid format. The `quant_band` beside this module serves processors without VBMI.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
pub(in crate::machine::isa) fn quant_band<Q: Quant>(
    weights: &[u8],
    activations: &[ActivationBlock],
    sums: &mut [[f32; LANES]],
) {
    if let [sums] = sums {
        return one_token::<Q>(weights, activations, sums);
    }
    many_tokens::<Q>(weights, activations, sums);
}

shared_kernels!("avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi");

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
fn one_token<Q: Quant>(weights: &[u8], row: &[ActivationBlock], sums: &mut [f32; LANES]) {
    let (mut total, is_amd) = (load::<F32>(sums), is_amd());
    let blocks = weights.chunks_exact(LANES * Q::BYTES);
    for (block, activations) in blocks.zip(row.chunks_exact(Q::WEIGHTS / STRETCH)) {
        let halves = widen_halves::<Q>(block);
        for_stretches!(Q, INDEX => {
            if is_amd {
                prefetch_near(share::<Q>(block, INDEX), AMD_AHEAD_BYTES);
            } else {
                prefetch_far(share::<Q>(block, INDEX), AHEAD_BYTES);
            }
            let mut expanded = Expanded::default();
            Q::scales(block, INDEX, &halves, &mut expanded);
            unpack::<Q, INDEX, 1>(block, &mut expanded);
            total = add_products::<Q>(products(&expanded, &activations[INDEX]), &expanded, &activations[INDEX], total);
            compiler_fence(Ordering::SeqCst);
        });
    }
    *sums = store(total);
}

/// The quants of stretch `INDEX`, for one `CALLER` as in [`unpack_kernel`](super::super::quant::unpack_kernel).
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
fn unpack<Q: Quant, const INDEX: usize, const CALLER: usize>(block: &[u8], expanded: &mut Expanded) {
    match const { Q::CODES } {
        Codes::Fours(grid, mark) => {
            let marks = Q::marks(block, INDEX);
            for pair in 0..STRETCH / 8 {
                let left = bytemuck::must_cast(Q::entries(block, INDEX, 2 * pair));
                let right = bytemuck::must_cast(Q::entries(block, INDEX, 2 * pair + 1));
                // [row, code]
                let places = places_of_four::<Q>(_mm512_or_si512(left, _mm512_slli_epi32::<16>(right)));
                for code in 0..2 {
                    let quants = values_at(places, 16 * code as i32, 3, grid.values);
                    let group = 2 * pair + code;
                    expanded.quants[group] = marked(quants, mark, &marks, group);
                }
            }
        }
        Codes::Eights(grid, mark) => {
            let marks = Q::marks(block, INDEX);
            let (low, high) = bytes_of_numbers::<Q, INDEX, CALLER>(block);
            for half in 0..2 {
                // [row, code]
                let places = places_of_eight::<Q>(low, high, half);
                for code in 0..4 {
                    let quants = values_at(places, 8 * code as i32, 2, grid.values);
                    let group = 2 * code + half;
                    expanded.quants[group] = marked(quants, mark, &marks, group);
                }
            }
        }
        Codes::Quants | Codes::Values(_) => {}
    }
}

/// The low eight bits of four code numbers of a row, in its 32 bits, and the bits above them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn bytes_of_numbers<Q: Quant, const INDEX: usize, const CALLER: usize>(block: &[u8]) -> (__m512i, __m512i) {
    let a = bytemuck::must_cast(Q::entries(block, INDEX, 0));
    let b = bytemuck::must_cast(Q::entries(block, INDEX, 1));
    let c = bytemuck::must_cast(Q::entries(block, INDEX, 2));
    let d = bytemuck::must_cast(Q::entries(block, INDEX, 3));
    // Each lane of 32 bits has two code numbers, the first in the low 16 bits.
    let (even, odd) = (
        _mm512_or_si512(a, _mm512_slli_epi32::<16>(c)),
        _mm512_or_si512(b, _mm512_slli_epi32::<16>(d)),
    );
    let low = _mm512_mask_blend_epi8(EVERY_SECOND, even, _mm512_slli_epi16::<8>(odd));
    let high = _mm512_mask_blend_epi8(EVERY_SECOND, _mm512_srli_epi16::<8>(even), odd);
    (low, high)
}

const EVERY_SECOND: u64 = 0xaaaa_aaaa_aaaa_aaaa;

/// The values of the indices of `bits` bits each, from bit `first` of each row: four per row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
fn values_at(places: __m512i, first: i32, bits: i32, values: [u8; 8]) -> __m512i {
    let of_even = first | (first + bits) << 8 | (first + 2 * bits) << 16 | (first + 3 * bits) << 24;
    let of_odd = of_even | 0x2020_2020;
    let from = _mm512_set1_epi64(i64::from(of_odd) << 32 | i64::from(of_even));
    // The permutation uses only the low six bits; the values repeat accordingly.
    let values = _mm512_set1_epi64(i64::from_le_bytes(values));
    _mm512_permutexvar_epi8(_mm512_multishift_epi64_epi8(from, places), values)
}

/// The places of entries by number, 16 bits each.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn places_of_four<Q: Quant>(numbers: __m512i) -> __m512i {
    let table = const {
        match Q::CODES {
            Codes::Fours(grid, _) => grid.places,
            _ => &[],
        }
    };
    let table = table.as_chunks::<32>().0;
    let mut found = [numbers; 8];
    let mut count = table.len() / 2;
    for pair in 0..count {
        let low = bytemuck::must_cast(table[2 * pair]);
        let high = bytemuck::must_cast(table[2 * pair + 1]);
        found[pair] = _mm512_permutex2var_epi16(low, numbers, high);
    }
    let mut bit = 64;
    while count > 1 {
        let is_upper = _mm512_test_epi16_mask(numbers, _mm512_set1_epi16(bit));
        count /= 2;
        for pair in 0..count {
            found[pair] = _mm512_mask_blend_epi16(is_upper, found[2 * pair], found[2 * pair + 1]);
        }
        bit *= 2;
    }
    found[0]
}

/// The places of half an entry, 8 bits each, by the low eight bits of its number and the bits above.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn places_of_eight<Q: Quant>(low: __m512i, high: __m512i, half: usize) -> __m512i {
    let table = const {
        match Q::CODES {
            Codes::Eights(grid, _) => grid.places,
            _ => [&[] as &[u8]; 2],
        }
    };
    let table = table[half].as_chunks::<64>().0;
    let mut found = [low; 16];
    let mut count = table.len() / 2;
    for pair in 0..count {
        let first = bytemuck::must_cast(table[2 * pair]);
        let second = bytemuck::must_cast(table[2 * pair + 1]);
        found[pair] = _mm512_permutex2var_epi8(first, low, second);
    }
    let mut is_upper = _mm512_movepi8_mask(low);
    let mut bit = 1;
    while count > 1 {
        count /= 2;
        for pair in 0..count {
            found[pair] = _mm512_mask_blend_epi8(is_upper, found[2 * pair], found[2 * pair + 1]);
        }
        is_upper = _mm512_test_epi8_mask(high, _mm512_set1_epi8(bit));
        bit *= 2;
    }
    found[0]
}
