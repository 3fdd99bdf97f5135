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

/// The numbers of a block's entries: `[stretch, code, row]`.
type Numbers = [[[u32; LANES]; STRETCH / 4]; 8];

/// Adds the products of a band with one token's `row` to `sums`.
///
/// The numbers of a whole block are written before any is read: a processor that has just written a vector reads its
/// parts slowly. The loops over stretches are not unrolled, so that their code fits the first-level cache.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::machine::isa) fn one_token<Q: Quant>(weights: &[u8], row: &[ActivationBlock], sums: &mut [f32; LANES]) {
    let (mut total, first_cache) = (load::<F32>(sums), is_amd());
    let mut expanded = Expanded::default();
    let mut numbers: Numbers = [[[0; LANES]; STRETCH / 4]; 8];
    let blocks = weights.chunks_exact(LANES * Q::BYTES);
    for (block, activations) in blocks.zip(row.chunks_exact(Q::WEIGHTS / STRETCH)) {
        write_numbers::<Q>(block, &mut numbers);
        let halves = widen_halves::<Q>(block);
        for (index, activations) in activations.iter().enumerate() {
            if first_cache {
                prefetch(share::<Q>(block, index));
            } else {
                prefetch_far(share::<Q>(block, index), AHEAD_BYTES);
            }
            Q::scales(block, index, &halves, &mut expanded);
            let marks: Rows = bytemuck::must_cast(Q::marks(block, index));
            let products = products::<Q>(&numbers[index], marks, activations);
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

/// Writes a block's numbers.
#[inline]
#[target_feature(enable = "avx2")]
fn write_numbers<Q: Quant>(block: &[u8], numbers: &mut Numbers) {
    let codes = match const { Q::CODES } {
        Codes::Fours(..) => STRETCH / 4,
        Codes::Eights(..) => STRETCH / 8,
        Codes::Quants | Codes::Values(_) => 0,
    };
    for (index, numbers) in numbers.iter_mut().enumerate() {
        for_stretches!(@ CODE {
            if CODE < codes {
                numbers[CODE] = Q::entries(block, index, CODE);
                stored(&mut numbers[CODE]);
            }
        } 0 1 2 3 4 5 6 7);
    }
}

/// The products of a stretch, for each part.
#[inline]
#[target_feature(enable = "avx2")]
fn products<Q: Quant>(numbers: &[[u32; LANES]; STRETCH / 4], marks: Rows, activations: &ActivationBlock) -> [Rows; 2] {
    let zero = _mm256_setzero_si256();
    let mut products = [[zero; 2]; 2];
    match const { Q::CODES } {
        Codes::Fours(_, mark) => {
            for pair in 0..STRETCH / 8 {
                for side in 0..2 {
                    let sums = products_of_fours::<Q>(mark, numbers, marks[side], [pair, side], activations);
                    products[0][side] = _mm256_add_epi32(products[0][side], sums);
                }
            }
        }
        Codes::Eights(_, mark) => {
            let mut wholes = [[[zero; 2]; 2]; 2];
            for pair in 0..STRETCH / 16 {
                for side in 0..2 {
                    let sums = products_of_eights::<Q>(mark, numbers, marks[side], [pair, side], activations);
                    let whole = &mut wholes[pair % parts::<Q>()][side];
                    *whole = [_mm256_add_epi32(whole[0], sums[0]), _mm256_add_epi32(whole[1], sums[1])];
                }
            }
            for part in 0..parts::<Q>() {
                products[part] = wholes[part].map(|[a, b]| _mm256_permute4x64_epi64::<0xd8>(_mm256_hadd_epi32(a, b)));
            }
        }
        Codes::Quants | Codes::Values(_) => {}
    }
    products
}

/// Sums of eight rows over a pair of codes; each code gives four quants.
#[inline]
#[target_feature(enable = "avx2")]
fn products_of_fours<Q: Quant>(
    mark: Mark,
    numbers: &[[u32; LANES]; STRETCH / 4],
    marks: __m256i,
    [pair, side]: [usize; 2],
    activations: &ActivationBlock,
) -> __m256i {
    let grid = const {
        match Q::CODES {
            Codes::Fours(grid, _) => grid.entries,
            _ => &[],
        }
    };
    let marks = _mm256_shuffle_epi8(marks, bytemuck::must_cast(MARKS_OF_FOURS[pair]));
    let products = [0, 1].map(|code| {
        let numbers = &numbers[2 * pair + code];
        let at = |row: usize| entry(grid, numbers[8 * side + row]).cast_signed();
        let quants = _mm256_setr_epi32(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7));
        let is_marked = are_set(marks, _mm256_set1_epi32(0x0804_0201 << (4 * code)));
        let word = _mm256_set1_epi32(activations.words[2 * pair + code].cast_signed());
        marked_products::<Q>(quants, mark, is_marked, word)
    });
    sums_of_pairs::<Q>(products)
}

/// Sums of products for eight rows, two each, over a pair of codes; each code gives eight quants.
#[inline]
#[target_feature(enable = "avx2")]
fn products_of_eights<Q: Quant>(
    mark: Mark,
    numbers: &[[u32; LANES]; STRETCH / 4],
    marks: __m256i,
    [pair, side]: [usize; 2],
    activations: &ActivationBlock,
) -> [__m256i; 2] {
    let grid = const {
        match Q::CODES {
            Codes::Eights(grid, _) => grid.entries,
            _ => &[],
        }
    };
    let marks = [
        _mm256_permute4x64_epi64::<0x50>(marks),
        _mm256_permute4x64_epi64::<0xfa>(marks),
    ];
    let bits = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
    [0, 1].map(|four| {
        let products = [0, 1].map(|code| {
            let code = 2 * pair + code;
            let at = |row: usize| entry(grid, numbers[code][8 * side + 4 * four + row]).cast_signed();
            let quants = _mm256_setr_epi64x(at(0), at(1), at(2), at(3));
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

/// Entry `number`; bits beyond the table's length are ignored. The length is a constant power of two, so no bounds
/// check is needed.
#[inline(always)]
fn entry<Entry: Copy>(grid: &[Entry], number: u32) -> Entry {
    grid[number as usize & (grid.len() - 1)]
}

/// Makes the compiler store a code's numbers in memory. Otherwise it computes several codes together, which takes more
/// instructions.
#[inline(always)]
fn stored<T>(numbers: &mut T) {
    // SAFETY: there is no instruction; the memory of the reference may be read and written.
    unsafe {
        asm!("/* {numbers} */", numbers = in(reg) core::ptr::from_mut(numbers), options(nostack, preserves_flags));
    }
}
