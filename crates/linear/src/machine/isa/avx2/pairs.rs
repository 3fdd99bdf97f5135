//! Products of unsigned quants and activations, added in pairs of 16 bits as long as they fit.

use core::arch::asm;
use core::arch::x86_64::*;

use super::Block;
use crate::quant::{ActivationBlock, Codes, Expanded, Quant, STRETCH};

/// Sums per stretch: one for each half that has its own scale.
pub(in crate::machine::isa) const fn parts<Q: Quant>() -> usize {
    if Q::SHAPE.halves { 2 } else { 1 }
}

/// Groups of four weights per part.
pub(in crate::machine::isa) const fn groups<Q: Quant>() -> usize {
    STRETCH / 4 / parts::<Q>()
}

/// Groups whose summed products fit 16 bits, a power of two. Quants with a center are summed around it, with half the
/// magnitude.
pub(in crate::machine::isa) const fn chain<Q: Quant>() -> usize {
    let fit = i16::MAX as u32 / (2 * 127 * Q::SHAPE.largest);
    let chain = 1 << fit.ilog2();
    if chain < groups::<Q>() { chain } else { groups::<Q>() }
}

/// The initial bias of the first chain of a part.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::machine::isa) fn bias<Q: Quant>(activations: &ActivationBlock, part: usize) -> __m256i {
    match Q::SHAPE.center {
        0 => _mm256_setzero_si256(),
        _ => _mm256_set1_epi32(activations.bias[part]),
    }
}

/// Four activations of a group, for each row.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::machine::isa) fn word(activations: &ActivationBlock, group: usize) -> __m256i {
    _mm256_set1_epi32(activations.words[group].cast_signed())
}

/// Adds a group's products, in pairs, to 16-bit sums. 8-bit quants are signed bytes plus 128, unless they come from a
/// table. Their products would overflow: instead, their magnitudes are multiplied and the sign is applied to the
/// activations, which makes a bias unnecessary.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn add_products<Q: Quant>(sums: __m256i, quants: __m256i, activations: __m256i) -> __m256i {
    let products = if Q::SHAPE.bits == 8 {
        let signed = match Q::CODES {
            Codes::Values(_) => quants,
            _ => _mm256_xor_si256(quants, _mm256_set1_epi8(-128)),
        };
        _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(activations, signed))
    } else {
        _mm256_maddubs_epi16(quants, activations)
    };
    in_order(_mm256_add_epi16(sums, products))
}

/// Keeps the compiler from reordering sums: it would add all products of a token first and run out of registers.
#[inline]
#[target_feature(enable = "avx2")]
fn in_order(mut sums: __m256i) -> __m256i {
    // SAFETY: there is no instruction, and the register keeps its value.
    unsafe {
        asm!("/* {sums} */", sums = inout(ymm_reg) sums, options(nomem, nostack, preserves_flags));
    }
    sums
}

/// Adds each row's 16-bit sums.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn whole(pairs: __m256i) -> __m256i {
    _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
}

/// Adds the scaled products of a part, for 8 of the 16 rows.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::machine::isa) fn add_scaled(total: __m256, products: __m256i, scales: __m256, scale: __m256) -> __m256 {
    _mm256_fmadd_ps(_mm256_cvtepi32_ps(products), _mm256_mul_ps(scales, scale), total)
}

/// Adds the minimums of a stretch.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::machine::isa) fn add_minimums<Q: Quant>(
    mut total: Block,
    weights: &Expanded,
    activations: &ActivationBlock,
) -> Block {
    if Q::SHAPE.minimums {
        for part in 0..parts::<Q>() {
            let minimums: Block = bytemuck::must_cast(weights.minimums[part]);
            let sums = _mm256_set1_ps(activations.negative_sums[part]);
            total[0] = _mm256_fmadd_ps(minimums[0], sums, total[0]);
            total[1] = _mm256_fmadd_ps(minimums[1], sums, total[1]);
        }
    }
    total
}
