//! One token of formats with a grid.
//!
//! Entries are loaded one by one, which most processors do faster than gathers. A register holds entries of several
//! rows, so that a product needs no shuffles; the sums of a row are combined after the last code.

use core::arch::asm;
use core::arch::x86_64::*;

use super::super::quant::share;
use super::super::vendor::is_amd;
use super::pairs::{add_scaled, chain, parts};
use super::{AHEAD_BYTES, load, prefetch, prefetch_far, store, widen_halves};
use crate::LANES;
use crate::float::F32;
use crate::quant::{ActivationBlock, Codes, Expanded, Mark, Quant, STRETCH};

/// Sums of 16 rows.
type Rows = [__m256i; 2];

/// For each byte of a row's mark bits, its index in 16 bytes of four rows, once for each of four quants.
const MARKS_OF_FOURS: [[u8; 32]; 4] = mark_places(4);
/// As [`MARKS_OF_FOURS`], for two rows of eight quants.
const MARKS_OF_EIGHTS: [[u8; 32]; 4] = mark_places(8);

const fn mark_places(quants: usize) -> [[u8; 32]; 4] {
    let mut places = [[0; 32]; 4];
    let mut index = 0;
    while index < 4 * 32 {
        let (byte, place) = (index / 32, index % 32);
        places[byte][place] = (byte + 4 * (place % 16 / quants)) as u8;
        index += 1;
    }
    places
}

/// Runs code for each pair of codes, with a copy for each index.
macro_rules! for_pairs {
    ($index:ident in $($value:literal)* => $body:block) => {
        $({ const $index: usize = $value; $body })*
    };
}

/// Adds the products of a band with one token's `row` to `sums`.
///
/// The loop over stretches is not unrolled: the code of eight would not fit the first-level cache of instructions.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::machine::isa) fn one_token<Q: Quant>(weights: &[u8], row: &[ActivationBlock], sums: &mut [f32; LANES]) {
    let (mut total, first_cache) = (load::<F32>(sums), is_amd());
    let mut expanded = Expanded::default();
    let blocks = weights.chunks_exact(LANES * Q::BYTES);
    for (block, activations) in blocks.zip(row.chunks_exact(Q::WEIGHTS / STRETCH)) {
        let halves = widen_halves::<Q>(block);
        for (index, activations) in activations.iter().enumerate() {
            if first_cache {
                prefetch(share::<Q>(block, index));
            } else {
                prefetch_far(share::<Q>(block, index), AHEAD_BYTES);
            }
            Q::scales(block, index, &halves, &mut expanded);
            let products = products::<Q>(block, index, activations);
            let scale = _mm256_set1_ps(activations.scale);
            for part in 0..parts::<Q>() {
                let scales: [__m256; 2] = bytemuck::must_cast(expanded.scales[part]);
                for side in 0..2 {
                    total[side] = add_scaled(total[side], products[part][side], scales[side], scale);
                }
            }
        }
    }
    *sums = store(total);
}

/// The products of stretch `index`, for each part.
#[inline]
#[target_feature(enable = "avx2")]
fn products<Q: Quant>(block: &[u8], index: usize, activations: &ActivationBlock) -> [Rows; 2] {
    let marks: [__m256i; 2] = bytemuck::must_cast(Q::marks(block, index));
    let mut products = [[_mm256_setzero_si256(); 2]; 2];
    match const { Q::CODES } {
        Codes::Fours(_, mark) => {
            for_pairs!(PAIR in 0 1 2 3 => {
                let [left, right] = pairs_of_numbers::<Q, PAIR>(block, index);
                let left = products_of_fours::<Q, PAIR>(mark, left, marks[0], activations);
                let right = products_of_fours::<Q, PAIR>(mark, right, marks[1], activations);
                products[0] = [_mm256_add_epi32(products[0][0], left), _mm256_add_epi32(products[0][1], right)];
            });
        }
        Codes::Eights(_, mark) => {
            let mut wholes = [[_mm256_setzero_si256(); 4]; 2];
            for_pairs!(PAIR in 0 1 => {
                let [left, right] = pairs_of_numbers::<Q, PAIR>(block, index);
                let [a, b] = products_of_eights::<Q, PAIR>(mark, left, marks[0], activations);
                let [c, d] = products_of_eights::<Q, PAIR>(mark, right, marks[1], activations);
                let whole = &mut wholes[PAIR % parts::<Q>()];
                *whole = [
                    _mm256_add_epi32(whole[0], a),
                    _mm256_add_epi32(whole[1], b),
                    _mm256_add_epi32(whole[2], c),
                    _mm256_add_epi32(whole[3], d),
                ];
            });
            for part in 0..parts::<Q>() {
                let [a, b, c, d] = wholes[part];
                products[part] = [_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d)];
                products[part] = products[part].map(|sums| _mm256_permute4x64_epi64::<0xd8>(sums));
            }
        }
        Codes::Quants | Codes::Values(_) => {}
    }
    products
}

/// The numbers of codes `2 · pair` and `2 · pair + 1`, in the low and high halves of each row's 32 bits, for the first
/// and last eight rows.
#[inline]
#[target_feature(enable = "avx2")]
fn pairs_of_numbers<Q: Quant, const PAIR: usize>(block: &[u8], index: usize) -> Rows {
    let length = match const { Q::CODES } {
        Codes::Fours(grid, _) => grid.entries.len(),
        Codes::Eights(grid, _) => grid.entries.len(),
        Codes::Quants | Codes::Values(_) => 1,
    };
    let last = _mm256_set1_epi32(length as i32 - 1);
    let [first, second] = [0, 1].map(|code| {
        let numbers: Rows = bytemuck::must_cast(Q::entries(block, index, 2 * PAIR + code));
        numbers.map(|numbers| in_vector(_mm256_and_si256(numbers, last)))
    });
    [0, 1].map(|side| _mm256_or_si256(first[side], _mm256_slli_epi32::<16>(second[side])))
}

/// The words of a register, each with the numbers of two rows.
#[inline]
#[target_feature(enable = "avx2")]
fn numbers_of_rows(numbers: __m256i) -> [u64; 4] {
    let (low, high) = (_mm256_castsi256_si128(numbers), _mm256_extracti128_si256::<1>(numbers));
    [
        _mm_cvtsi128_si64(low),
        _mm_extract_epi64::<1>(low),
        _mm_cvtsi128_si64(high),
        _mm_extract_epi64::<1>(high),
    ]
    .map(|word| in_register(word.cast_unsigned()))
}

/// Sums of eight rows over a pair of codes; each code gives four quants.
#[inline]
#[target_feature(enable = "avx2")]
fn products_of_fours<Q: Quant, const PAIR: usize>(
    mark: Mark,
    numbers: __m256i,
    marks: __m256i,
    activations: &ActivationBlock,
) -> __m256i {
    let grid = const {
        match Q::CODES {
            Codes::Fours(grid, _) => grid.entries,
            _ => &[],
        }
    };
    let words = numbers_of_rows(numbers);
    let marks = _mm256_shuffle_epi8(marks, bytemuck::must_cast(MARKS_OF_FOURS[PAIR]));
    let products = [0, 1].map(|code| {
        // SAFETY: `pairs_of_numbers` makes no larger numbers.
        let at = |row: usize| unsafe { entry(grid, &words, row, code) }.cast_signed();
        let quants = _mm256_setr_epi32(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7));
        let is_marked = are_set(marks, _mm256_set1_epi32(0x0804_0201 << (4 * code)));
        let word = _mm256_set1_epi32(activations.words[2 * PAIR + code].cast_signed());
        marked_products::<Q>(quants, mark, is_marked, word)
    });
    sums_of_pairs::<Q>(products)
}

/// Sums of products for eight rows, two each, over a pair of codes; each code gives eight quants.
#[inline]
#[target_feature(enable = "avx2")]
fn products_of_eights<Q: Quant, const PAIR: usize>(
    mark: Mark,
    numbers: __m256i,
    marks: __m256i,
    activations: &ActivationBlock,
) -> [__m256i; 2] {
    let grid = const {
        match Q::CODES {
            Codes::Eights(grid, _) => grid.entries,
            _ => &[],
        }
    };
    let words = numbers_of_rows(numbers);
    let marks = [
        _mm256_permute4x64_epi64::<0x50>(marks),
        _mm256_permute4x64_epi64::<0xfa>(marks),
    ];
    let bits = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
    [0, 1].map(|four| {
        let products = [0, 1].map(|code| {
            // SAFETY: `pairs_of_numbers` makes no larger numbers.
            let at = |row: usize| unsafe { entry(grid, &words, 4 * four + row, code) }.cast_signed();
            let quants = _mm256_setr_epi64x(at(0), at(1), at(2), at(3));
            let code = 2 * PAIR + code;
            let marks = _mm256_shuffle_epi8(marks[four], bytemuck::must_cast(MARKS_OF_EIGHTS[code]));
            let is_marked = match mark {
                Mark::NegatedAround(_) => are_set(marks, bits),
                // All bits of a byte are alike.
                Mark::TwoLess => marks,
            };
            let [low, high] = [activations.words[2 * code], activations.words[2 * code + 1]].map(u64::from);
            let words = _mm256_set1_epi64x((high << 32 | low).cast_signed());
            marked_products::<Q>(quants, mark, is_marked, words)
        });
        sums_of_pairs::<Q>(products)
    })
}

/// Adds products in pairs. Where two of them would not fit 16 bits, each is widened before.
#[inline]
#[target_feature(enable = "avx2")]
fn sums_of_pairs<Q: Quant>([first, second]: [__m256i; 2]) -> __m256i {
    let ones = _mm256_set1_epi16(1);
    if const { chain::<Q>() > 1 } {
        _mm256_madd_epi16(_mm256_add_epi16(first, second), ones)
    } else {
        _mm256_add_epi32(_mm256_madd_epi16(first, ones), _mm256_madd_epi16(second, ones))
    }
}

/// Products of a grid's quants, added in pairs.
#[inline]
#[target_feature(enable = "avx2")]
fn marked_products<Q: Quant>(quants: __m256i, mark: Mark, is_marked: __m256i, activations: __m256i) -> __m256i {
    let center = _mm256_set1_epi8((Q::SHAPE.center as u8).cast_signed());
    match mark {
        // Quants without a mark are above the center. The instruction takes unsigned quants, so signs are applied to
        // activations.
        Mark::NegatedAround(_) => {
            let activations = _mm256_sub_epi8(_mm256_xor_si256(activations, is_marked), is_marked);
            _mm256_maddubs_epi16(_mm256_sub_epi8(quants, center), activations)
        }
        Mark::TwoLess => {
            let quants = _mm256_sub_epi8(quants, _mm256_and_si256(is_marked, _mm256_set1_epi8(2)));
            // The same for all rows.
            let centers = _mm256_maddubs_epi16(center, activations);
            _mm256_sub_epi16(_mm256_maddubs_epi16(quants, activations), centers)
        }
    }
}

/// Sets all bits of each byte whose mark bit is set.
#[inline]
#[target_feature(enable = "avx2")]
fn are_set(bytes: __m256i, bits: __m256i) -> __m256i {
    _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bits), bits)
}

/// The entry whose number is in 16 bits of `words`.
///
/// # Safety
/// The number is below the table's length.
#[inline(always)]
unsafe fn entry<Entry: Copy>(grid: &[Entry], words: &[u64; 4], row: usize, code: usize) -> Entry {
    let number = (words[row / 2] >> (32 * (row % 2) + 16 * code)) as u16;
    debug_assert!(usize::from(number) < grid.len());
    // SAFETY: by the caller's promise.
    unsafe { *grid.get_unchecked(usize::from(number)) }
}

/// Keeps numbers in a vector. Otherwise the compiler computes those of several codes together, with more instructions.
#[inline]
#[target_feature(enable = "avx2")]
fn in_vector(mut numbers: __m256i) -> __m256i {
    // SAFETY: there is no instruction.
    unsafe {
        asm!("/* {numbers} */", numbers = inout(ymm_reg) numbers, options(pure, nomem, nostack, preserves_flags));
    }
    numbers
}

/// Keeps a word in a general register. Otherwise the compiler extracts each number from the vector, or stores the vector
/// and loads each number, and both take longer.
#[inline(always)]
fn in_register(mut word: u64) -> u64 {
    // SAFETY: there is no instruction.
    unsafe {
        asm!("/* {word} */", word = inout(reg) word, options(pure, nomem, nostack, preserves_flags));
    }
    word
}
