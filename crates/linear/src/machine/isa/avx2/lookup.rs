//! Unpacks quants, with shuffles and gathers for formats whose blocks hold codes.

use core::arch::x86_64::*;

use crate::LANES;
use crate::quant::Mark;

/// 64 bytes: four quants of 16 rows.
type Group = [__m256i; 2];

/// The values of four-bit codes.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::machine::isa) fn values(table: &[u8; 16], codes: &[u8; 4 * LANES]) -> [u8; 4 * LANES] {
    let table = _mm256_broadcastsi128_si256(bytemuck::must_cast(*table));
    let [low, high]: Group = bytemuck::must_cast(*codes);
    bytemuck::must_cast([_mm256_shuffle_epi8(table, low), _mm256_shuffle_epi8(table, high)])
}

/// An entry of four quants for each row.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::machine::isa) fn fours(grid: &'static [u32], entries: &[u32; LANES]) -> Group {
    debug_assert!(grid.len().is_power_of_two());
    let last = _mm256_set1_epi32(grid.len() as i32 - 1);
    let [left, right]: Group = bytemuck::must_cast(*entries);
    let (left, right) = (_mm256_and_si256(left, last), _mm256_and_si256(right, last));
    // SAFETY: the length is a power of two, so that the mask keeps every place below it.
    unsafe {
        [
            _mm256_i32gather_epi32::<4>(grid.as_ptr().cast(), left),
            _mm256_i32gather_epi32::<4>(grid.as_ptr().cast(), right),
        ]
    }
}

/// The low and high four quants of an entry of eight for each row.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::machine::isa) fn eights(grid: &'static [u64], entries: &[u32; LANES]) -> [Group; 2] {
    debug_assert!(grid.len().is_power_of_two());
    let last = _mm_set1_epi32(grid.len() as i32 - 1);
    let places: [__m128i; 4] = bytemuck::must_cast(*entries);
    let mut quants = [[_mm256_setzero_si256(); 2]; 2];
    for side in 0..2 {
        let left = _mm_and_si128(places[2 * side], last);
        let right = _mm_and_si128(places[2 * side + 1], last);
        // SAFETY: the length is a power of two, so that the mask keeps every place below it.
        let (left, right) = unsafe {
            (
                _mm256_i32gather_epi64::<8>(grid.as_ptr().cast(), left),
                _mm256_i32gather_epi64::<8>(grid.as_ptr().cast(), right),
            )
        };
        let (left, right) = (_mm256_castsi256_ps(left), _mm256_castsi256_ps(right));
        let low = _mm256_castps_si256(_mm256_shuffle_ps::<0x88>(left, right));
        let high = _mm256_castps_si256(_mm256_shuffle_ps::<0xdd>(left, right));
        quants[0][side] = _mm256_permute4x64_epi64::<0xd8>(low);
        quants[1][side] = _mm256_permute4x64_epi64::<0xd8>(high);
    }
    quants
}

/// The quants of group `group`; quants with a set mark bit are changed.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::machine::isa) fn marked(
    quants: Group,
    mark: Mark,
    marks: &[u32; LANES],
    group: usize,
) -> [u8; 4 * LANES] {
    // The byte with a row's mark bits for this group, four times.
    let byte = (group / 2) as i32 * 0x0101_0101;
    let rows = _mm_setr_epi32(byte, byte + 0x0404_0404, byte + 0x0808_0808, byte + 0x0c0c_0c0c);
    let bits = _mm256_set1_epi32(0x0804_0201 << (4 * (group % 2)));
    let marks: Group = bytemuck::must_cast(*marks);
    let mut changed = quants;
    for side in 0..2 {
        let bytes = _mm256_shuffle_epi8(marks[side], _mm256_broadcastsi128_si256(rows));
        let is_marked = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bits), bits);
        changed[side] = match mark {
            // Mask 0 gives the quant itself; all ones give its complement, plus one: 0 − quant.
            Mark::NegatedAround(twice) => {
                let negated = _mm256_sub_epi8(_mm256_xor_si256(quants[side], is_marked), is_marked);
                let twice = _mm256_set1_epi8(twice.cast_signed());
                _mm256_add_epi8(negated, _mm256_and_si256(is_marked, twice))
            }
            Mark::TwoLess => _mm256_sub_epi8(quants[side], _mm256_and_si256(is_marked, _mm256_set1_epi8(2))),
        };
    }
    bytemuck::must_cast(changed)
}
