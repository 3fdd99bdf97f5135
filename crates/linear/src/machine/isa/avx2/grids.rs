//! One token of formats with a grid.
//!
//! Entries are loaded one by one, which most processors do faster than gathers. A register holds entries of several
//! rows, so that a product needs no shuffles; the sums of a row are combined after the last code.

use core::arch::asm;
use core::arch::x86_64::*;

use super::super::quant::{for_stretches, share};
use super::super::vendor::is_amd;
use super::pairs::{add_scaled, chain, parts};
use super::{AHEAD_BYTES, load, prefetch, prefetch_far, store, widen_halves};
use crate::LANES;
use crate::float::F32;
use crate::quant::{ActivationBlock, Codes, Expanded, Mark, Quant, STRETCH};

/// Sums of 16 rows.
type Rows = [__m256i; 2];

/// Adds the products of a band with one token's `row` to `sums`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::machine::isa) fn one_token<Q: Quant>(weights: &[u8], row: &[ActivationBlock], sums: &mut [f32; LANES]) {
    let (mut total, first_cache) = (load::<F32>(sums), is_amd());
    let mut expanded = Expanded::default();
    let blocks = weights.chunks_exact(LANES * Q::BYTES);
    for (block, activations) in blocks.zip(row.chunks_exact(Q::WEIGHTS / STRETCH)) {
        let halves = widen_halves::<Q>(block);
        for_stretches!(Q, INDEX => {
            if first_cache {
                prefetch(share::<Q>(block, INDEX));
            } else {
                prefetch_far(share::<Q>(block, INDEX), AHEAD_BYTES);
            }
            Q::scales(block, INDEX, &halves, &mut expanded);
            let products = products::<Q, INDEX>(block, &activations[INDEX]);
            let scale = _mm256_set1_ps(activations[INDEX].scale);
            for part in 0..parts::<Q>() {
                let scales: [__m256; 2] = bytemuck::must_cast(expanded.scales[part]);
                for side in 0..2 {
                    total[side] = add_scaled(total[side], products[part][side], scales[side], scale);
                }
            }
        });
    }
    *sums = store(total);
}

/// The products of stretch `INDEX`, for each part.
#[inline]
#[target_feature(enable = "avx2")]
fn products<Q: Quant, const INDEX: usize>(block: &[u8], activations: &ActivationBlock) -> [Rows; 2] {
    let marks: [__m256i; 2] = bytemuck::must_cast(Q::marks(block, INDEX));
    let mut products = [[_mm256_setzero_si256(); 2]; 2];
    match const { Q::CODES } {
        Codes::Fours(_, mark) => {
            let mut numbers = [[0; LANES]; STRETCH / 4];
            for (code, numbers) in numbers.iter_mut().enumerate() {
                *numbers = Q::entries(block, INDEX, code);
                stored(numbers);
            }
            for side in 0..2 {
                products[0][side] = products_of_fours::<Q>(mark, &numbers, marks[side], side, activations);
            }
        }
        Codes::Eights(_, mark) => {
            let mut numbers = [[0; LANES]; STRETCH / 8];
            for (code, numbers) in numbers.iter_mut().enumerate() {
                *numbers = Q::entries(block, INDEX, code);
                stored(numbers);
            }
            for part in 0..parts::<Q>() {
                for side in 0..2 {
                    let [a, b] = [0, 1].map(|four| {
                        products_of_eights::<Q>(mark, &numbers, marks[side], [part, side, four], activations)
                    });
                    products[part][side] = _mm256_permute4x64_epi64::<0xd8>(_mm256_hadd_epi32(a, b));
                }
            }
        }
        Codes::Quants | Codes::Values(_) => {}
    }
    products
}

/// Sums of eight rows over the codes of a stretch; each code gives four quants.
#[inline]
#[target_feature(enable = "avx2")]
fn products_of_fours<Q: Quant>(
    mark: Mark,
    numbers: &[[u32; LANES]; STRETCH / 4],
    marks: __m256i,
    side: usize,
    activations: &ActivationBlock,
) -> __m256i {
    let grid = const {
        match Q::CODES {
            Codes::Fours(grid, _) => grid.entries,
            _ => &[],
        }
    };
    let mut whole = _mm256_setzero_si256();
    for link in 0..STRETCH / 4 / chain::<Q>() {
        let mut pairs = _mm256_setzero_si256();
        for code in link * chain::<Q>()..(link + 1) * chain::<Q>() {
            let at = |row: usize| entry(grid, numbers[code][8 * side + row]).cast_signed();
            let quants = _mm256_setr_epi32(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7));
            // The byte with a row's mark bits for this code, four times.
            let byte = (code / 2) as i32 * 0x0101_0101;
            let bytes = _mm_setr_epi32(byte, byte + 0x0404_0404, byte + 0x0808_0808, byte + 0x0c0c_0c0c);
            let bits = _mm256_set1_epi32(0x0804_0201 << (4 * (code % 2)));
            let is_marked = are_set(_mm256_shuffle_epi8(marks, _mm256_broadcastsi128_si256(bytes)), bits);
            let word = _mm256_set1_epi32(activations.words[code].cast_signed());
            pairs = _mm256_add_epi16(pairs, marked_products::<Q>(quants, mark, is_marked, word));
        }
        whole = _mm256_add_epi32(whole, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    whole
}

/// Sums of products for four rows, two each, over the codes of a part; each code gives eight quants. `place` gives the
/// part, the half of the 16 rows, and the four rows in it.
#[inline]
#[target_feature(enable = "avx2")]
fn products_of_eights<Q: Quant>(
    mark: Mark,
    numbers: &[[u32; LANES]; STRETCH / 8],
    marks: __m256i,
    [part, side, four]: [usize; 3],
    activations: &ActivationBlock,
) -> __m256i {
    let grid = const {
        match Q::CODES {
            Codes::Eights(grid, _) => grid.entries,
            _ => &[],
        }
    };
    let marks = match four {
        0 => _mm256_permute4x64_epi64::<0x50>(marks),
        _ => _mm256_permute4x64_epi64::<0xfa>(marks),
    };
    let codes = STRETCH / 8 / parts::<Q>();
    let chain = const {
        if chain::<Q>() < STRETCH / 8 / parts::<Q>() {
            chain::<Q>()
        } else {
            STRETCH / 8 / parts::<Q>()
        }
    };
    let mut whole = _mm256_setzero_si256();
    for link in 0..codes / chain {
        let mut pairs = _mm256_setzero_si256();
        for code in 0..chain {
            let code = part * codes + link * chain + code;
            let at = |row: usize| entry(grid, numbers[code][8 * side + 4 * four + row]).cast_signed();
            let quants = _mm256_setr_epi64x(at(0), at(1), at(2), at(3));
            // The byte with a row's mark bits for this code, eight times.
            let byte = code as i64 * 0x0101_0101_0101_0101;
            let bytes = _mm_set_epi64x(byte + 0x0404_0404_0404_0404, byte);
            let bits = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
            let is_marked = are_set(_mm256_shuffle_epi8(marks, _mm256_broadcastsi128_si256(bytes)), bits);
            let [low, high] = [activations.words[2 * code], activations.words[2 * code + 1]].map(u64::from);
            let words = _mm256_set1_epi64x((high << 32 | low).cast_signed());
            pairs = _mm256_add_epi16(pairs, marked_products::<Q>(quants, mark, is_marked, words));
        }
        whole = _mm256_add_epi32(whole, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    whole
}

/// Products of a grid's quants, added in pairs. Signs are applied to activations, because the instruction takes
/// unsigned quants.
#[inline]
#[target_feature(enable = "avx2")]
fn marked_products<Q: Quant>(quants: __m256i, mark: Mark, is_marked: __m256i, activations: __m256i) -> __m256i {
    let center = _mm256_set1_epi8((Q::SHAPE.center as u8).cast_signed());
    let signed = _mm256_sub_epi8(quants, center);
    match mark {
        // Quants without a mark are above the center.
        Mark::NegatedAround(_) => {
            let activations = _mm256_sub_epi8(_mm256_xor_si256(activations, is_marked), is_marked);
            _mm256_maddubs_epi16(signed, activations)
        }
        Mark::TwoLess => {
            let signed = _mm256_add_epi8(signed, _mm256_add_epi8(is_marked, is_marked));
            _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(activations, signed))
        }
    }
}

/// Sets all bits of each byte whose mark bit is set.
#[inline]
#[target_feature(enable = "avx2")]
fn are_set(bytes: __m256i, bits: __m256i) -> __m256i {
    _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bits), bits)
}

/// Entry `number`; bits beyond the table's length are ignored. The length is a constant power of two, so no bounds
/// check is needed.
#[inline(always)]
fn entry<Entry: Copy>(grid: &[Entry], number: u32) -> Entry {
    grid[number as usize & (grid.len() - 1)]
}

/// Makes the compiler store numbers in memory. Otherwise it extracts them from registers or computes several codes
/// together. Both are slower than loads and the same instructions for all 16 rows.
#[inline(always)]
fn stored<T>(numbers: &mut T) {
    // SAFETY: there is no instruction; the memory of the reference may be read and written.
    unsafe {
        asm!("/* {numbers} */", numbers = in(reg) core::ptr::from_mut(numbers), options(nostack, preserves_flags));
    }
}
