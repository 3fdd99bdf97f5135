//! One token of formats with a grid.
//!
//! Entries are loaded one by one, which most processors do faster than gathers. A register holds entries of several
//! rows, so that a product needs no shuffles; the sums of a row are combined after the last code.

use core::arch::x86_64::*;

use super::super::quant::share;
use super::super::vendor::is_amd;
use super::numbers::{Numbers, StretchNumbers};
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

/// For a pair of codes of eight quants, whose mark bits are alike, the bytes of four rows as numbers of 16 bits.
const MARKS_OF_PAIRS: [[u8; 32]; 2] = pair_places();

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

const fn pair_places() -> [[u8; 32]; 2] {
    let mut places = [[0; 32]; 2];
    let mut index = 0;
    while index < 2 * 32 {
        let (pair, place) = (index / 32, index % 32);
        places[pair][place] = (2 * pair + place % 4 / 2 + 4 * (place % 16 / 4)) as u8;
        index += 1;
    }
    places
}

/// Adds the products of a band with one token's `row` to `sums`.
///
/// The numbers of a whole block are written before any is read: a processor that has just written a vector reads its
/// parts slowly. The loops over stretches are not unrolled, so that their code fits the first-level cache.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::machine::isa) fn one_token<Q: Quant>(weights: &[u8], row: &[ActivationBlock], sums: &mut [f32; LANES]) {
    let (mut total, first_cache) = (load::<F32>(sums), is_amd());
    let mut expanded = Expanded::default();
    let mut numbers = Numbers::<Q>::new();
    let blocks = weights.chunks_exact(LANES * Q::BYTES);
    for (block, activations) in blocks.zip(row.chunks_exact(Q::WEIGHTS / STRETCH)) {
        numbers.write(block);
        let halves = widen_halves::<Q>(block);
        for (index, activations) in activations.iter().enumerate() {
            if first_cache {
                prefetch(share::<Q>(block, index));
            } else {
                prefetch_far(share::<Q>(block, index), AHEAD_BYTES);
            }
            Q::scales(block, index, &halves, &mut expanded);
            let marks: Rows = bytemuck::must_cast(Q::marks(block, index));
            let products = products(numbers.of_stretch(index), marks, activations);
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

/// The products of a stretch, for each part.
#[inline]
#[target_feature(enable = "avx2")]
fn products<Q: Quant>(numbers: &StretchNumbers<Q>, marks: Rows, activations: &ActivationBlock) -> [Rows; 2] {
    let zero = _mm256_setzero_si256();
    let mut products = [[zero; 2]; 2];
    match const { Q::CODES } {
        Codes::Fours(_, Mark::NegatedAround(_)) => {
            for pair in 0..STRETCH / 8 {
                for side in 0..2 {
                    let sums = products_of_fours::<Q>(numbers, marks[side], [pair, side], activations);
                    products[0][side] = _mm256_add_epi32(products[0][side], sums);
                }
            }
        }
        Codes::Eights(_, mark) => {
            let mut wholes = [[[zero; 2]; 2]; 2];
            for pair in 0..STRETCH / 16 {
                for side in 0..2 {
                    let sums = products_of_eights::<Q>(mark, numbers, marks[side], [pair, side], activations);
                    if const { parts::<Q>() == STRETCH / 16 } {
                        // Each pair is a part.
                        wholes[pair][side] = sums;
                    } else {
                        let whole = &mut wholes[0][side];
                        *whole = [_mm256_add_epi32(whole[0], sums[0]), _mm256_add_epi32(whole[1], sums[1])];
                    }
                }
            }
            for part in 0..parts::<Q>() {
                products[part] = wholes[part].map(|[a, b]| _mm256_permute4x64_epi64::<0xd8>(_mm256_hadd_epi32(a, b)));
            }
            if mark == Mark::TwoLess {
                add_shifts::<Q>(marks, activations, &mut products);
            }
        }
        // No grid of fours has marks of whole codes.
        Codes::Fours(_, Mark::TwoLess) | Codes::Quants | Codes::Values(_) => {}
    }
    products
}

/// Sums of eight rows over a pair of codes; each code gives four quants.
#[inline]
#[target_feature(enable = "avx2")]
fn products_of_fours<Q: Quant>(
    numbers: &StretchNumbers<Q>,
    marks: __m256i,
    [pair, side]: [usize; 2],
    activations: &ActivationBlock,
) -> __m256i {
    let marks = _mm256_shuffle_epi8(marks, bytemuck::must_cast(MARKS_OF_FOURS[pair]));
    let products = [0, 1].map(|code| {
        let at = |row: usize| numbers.four(2 * pair + code, 8 * side + row).cast_signed();
        let quants = _mm256_setr_epi32(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7));
        let is_marked = are_set(marks, _mm256_set1_epi32(0x0804_0201 << (4 * code)));
        let word = _mm256_set1_epi32(activations.words[2 * pair + code].cast_signed());
        _mm256_maddubs_epi16(quants, negated(word, is_marked))
    });
    sums_of_pairs::<Q>(products)
}

/// Sums of products for eight rows, two each, over a pair of codes; each code gives eight quants.
#[inline]
#[target_feature(enable = "avx2")]
fn products_of_eights<Q: Quant>(
    mark: Mark,
    numbers: &StretchNumbers<Q>,
    marks: __m256i,
    [pair, side]: [usize; 2],
    activations: &ActivationBlock,
) -> [__m256i; 2] {
    let marks = [
        _mm256_permute4x64_epi64::<0x50>(marks),
        _mm256_permute4x64_epi64::<0xfa>(marks),
    ];
    let bits = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
    [0, 1].map(|four| {
        let products = [0, 1].map(|code| {
            let code = 2 * pair + code;
            let at = |row: usize| numbers.eight(code, 8 * side + 4 * four + row).cast_signed();
            let quants = _mm256_setr_epi64x(at(0), at(1), at(2), at(3));
            let [low, high] = [activations.words[2 * code], activations.words[2 * code + 1]].map(u64::from);
            let words = _mm256_set1_epi64x((high << 32 | low).cast_signed());
            let words = match mark {
                Mark::NegatedAround(_) => {
                    let bytes = _mm256_shuffle_epi8(marks[four], bytemuck::must_cast(MARKS_OF_EIGHTS[code]));
                    negated(words, are_set(bytes, bits))
                }
                Mark::TwoLess => words,
            };
            _mm256_maddubs_epi16(quants, words)
        });
        sums_of_pairs::<Q>(products)
    })
}

/// Adds what marks and the distance of the least quant from the center change: a number that all quants of a code
/// share, times the sum of the code's activations.
#[inline]
#[target_feature(enable = "avx2")]
fn add_shifts<Q: Quant>(marks: Rows, activations: &ActivationBlock, products: &mut [Rows; 2]) {
    let least = const {
        match Q::CODES {
            Codes::Eights(grid, _) => grid.values[0] as i16,
            _ => 0,
        }
    };
    let quants: __m256i = bytemuck::must_cast(activations.words);
    let fours = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), quants), _mm256_set1_epi16(1));
    let codes = _mm256_hadd_epi32(fours, fours);
    let codes = _mm256_packs_epi32(codes, codes);
    // The sums of two codes, for each row.
    let pairs = [
        _mm256_permute2x128_si256::<0x00>(codes, codes),
        _mm256_permute2x128_si256::<0x11>(codes, codes),
    ];
    for (pair, sums) in pairs.into_iter().enumerate() {
        let all = _mm256_madd_epi16(sums, _mm256_set1_epi16(least - Q::SHAPE.center as i16));
        let twice = _mm256_add_epi16(sums, sums);
        let products = &mut products[pair % parts::<Q>()];
        for (products, marks) in products.iter_mut().zip(marks) {
            // −1 for a marked code.
            let is_marked = _mm256_shuffle_epi8(marks, bytemuck::must_cast(MARKS_OF_PAIRS[pair]));
            let shifts = _mm256_add_epi32(all, _mm256_madd_epi16(is_marked, twice));
            *products = _mm256_add_epi32(*products, shifts);
        }
    }
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

/// Negates the marked activations: products take unsigned quants, so signs are applied to activations.
#[inline]
#[target_feature(enable = "avx2")]
fn negated(activations: __m256i, is_marked: __m256i) -> __m256i {
    _mm256_sub_epi8(_mm256_xor_si256(activations, is_marked), is_marked)
}

/// Sets all bits of each byte whose mark bit is set.
#[inline]
#[target_feature(enable = "avx2")]
fn are_set(bytes: __m256i, bits: __m256i) -> __m256i {
    _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bits), bits)
}
