//! Unpacks quants, with shuffles and gathers for formats whose blocks hold codes.

use core::arch::x86_64::*;

use super::super::quant::unpack_kernel;
use crate::LANES;
use crate::quant::{Codes, Expanded, Mark, Quant, STRETCH};

unpack_kernel!("avx512f,avx512bw,avx512vl", false);

/// The values of four-bit codes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn values(table: &[u8; 16], codes: &[u8; 4 * LANES]) -> [u8; 4 * LANES] {
    let table = _mm512_broadcast_i32x4(bytemuck::must_cast(*table));
    bytemuck::must_cast(_mm512_shuffle_epi8(table, bytemuck::must_cast(*codes)))
}

/// An entry of four quants for each row.
#[inline]
#[target_feature(enable = "avx512f")]
fn fours(grid: &'static [u32], entries: &[u32; LANES]) -> __m512i {
    let last = _mm512_set1_epi32(grid.len() as i32 - 1);
    let places = _mm512_and_si512(bytemuck::must_cast(*entries), last);
    debug_assert!(grid.len().is_power_of_two());
    // SAFETY: the length is a power of two, so that the mask keeps every place below it.
    unsafe { _mm512_i32gather_epi32::<4>(places, grid.as_ptr().cast()) }
}

/// The low and high four quants of an entry of eight for each row.
#[inline]
#[target_feature(enable = "avx512f")]
fn eights(grid: &'static [u64], entries: &[u32; LANES]) -> [__m512i; 2] {
    let last = _mm512_set1_epi32(grid.len() as i32 - 1);
    let places = _mm512_and_si512(bytemuck::must_cast(*entries), last);
    debug_assert!(grid.len().is_power_of_two());
    let (left, right) = (_mm512_castsi512_si256(places), _mm512_extracti64x4_epi64::<1>(places));
    // SAFETY: the length is a power of two, so that the mask keeps every place below it.
    let (left, right) = unsafe {
        (
            _mm512_i32gather_epi64::<8>(left, grid.as_ptr().cast()),
            _mm512_i32gather_epi64::<8>(right, grid.as_ptr().cast()),
        )
    };
    let low = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    let high = _mm512_add_epi32(low, _mm512_set1_epi32(1));
    [
        _mm512_permutex2var_epi32(left, low, right),
        _mm512_permutex2var_epi32(left, high, right),
    ]
}

/// The quants of group `group`; quants with a set mark bit are changed.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn marked(quants: __m512i, mark: Mark, marks: &[u32; LANES], group: usize) -> [u8; 4 * LANES] {
    // The byte with a row's mark bits for this group, four times.
    let byte = (group / 2) as i32 * 0x0101_0101;
    let rows = _mm_setr_epi32(byte, byte + 0x0404_0404, byte + 0x0808_0808, byte + 0x0c0c_0c0c);
    let marks = _mm512_shuffle_epi8(bytemuck::must_cast(*marks), _mm512_broadcast_i32x4(rows));
    let bits = _mm512_set1_epi32(0x0804_0201 << (4 * (group % 2)));
    let is_marked = _mm512_test_epi8_mask(marks, bits);
    bytemuck::must_cast(match mark {
        Mark::NegatedAround(twice) => {
            _mm512_mask_sub_epi8(quants, is_marked, _mm512_set1_epi8(twice.cast_signed()), quants)
        }
        Mark::TwoLess => _mm512_mask_sub_epi8(quants, is_marked, quants, _mm512_set1_epi8(2)),
    })
}
