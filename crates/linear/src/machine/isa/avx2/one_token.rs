//! One token: each stretch goes from its block to the sum without passing through memory.

use core::arch::x86_64::*;

use super::super::quant::{for_stretches, share};
use super::pairs::{add_minimums, add_pairs, add_scaled, bias, chain, groups, parts, whole, word};
use super::{Block, load, prefetch, store, widen_halves};
use crate::LANES;
use crate::float::F32;
use crate::quant::{ActivationBlock, Expanded, Quant, STRETCH, words};

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn one_token<Q: Quant>(weights: &[u8], row: &[ActivationBlock], sums: &mut [f32; LANES]) {
    let mut total: Block = load::<F32>(sums);
    let blocks = weights.chunks_exact(LANES * Q::BYTES);
    for (block, activations) in blocks.zip(row.chunks_exact(Q::WEIGHTS / STRETCH)) {
        let halves = widen_halves::<Q>(block);
        for_stretches!(Q, INDEX => {
            prefetch(share::<Q>(block, INDEX));
            let mut expanded = Expanded::default();
            Q::scales(block, INDEX, &halves, &mut expanded);
            if const { Q::PIECES[0][0].is_none() } {
                Q::quants(block, INDEX, &mut expanded);
            }
            for part in 0..parts::<Q>() {
                total = add_part::<Q, INDEX>(block, &expanded, part, &activations[INDEX], total);
            }
            total = add_minimums::<Q>(total, &expanded, &activations[INDEX]);
        });
    }
    *sums = store(total);
}

/// Adds the products of a part of stretch `INDEX`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn add_part<Q: Quant, const INDEX: usize>(
    block: &[u8],
    expanded: &Expanded,
    part: usize,
    activations: &ActivationBlock,
    total: Block,
) -> Block {
    let mut products = [_mm256_setzero_si256(); 2];
    for link in 0..groups::<Q>() / chain::<Q>() {
        let mut pairs = [_mm256_setzero_si256(); 2];
        if link == 0 {
            pairs = [bias::<Q>(activations, part); 2];
        }
        for group in 0..chain::<Q>() {
            let group = part * groups::<Q>() + link * chain::<Q>() + group;
            let quants = quants::<Q, INDEX>(block, expanded, group);
            let word = word(activations, group);
            pairs[0] = add_pairs::<Q>(pairs[0], quants[0], word);
            pairs[1] = add_pairs::<Q>(pairs[1], quants[1], word);
        }
        products[0] = _mm256_add_epi32(products[0], whole(pairs[0]));
        products[1] = _mm256_add_epi32(products[1], whole(pairs[1]));
    }
    let scales: Block = bytemuck::must_cast(expanded.scales[part]);
    let scale = _mm256_set1_ps(activations.scale);
    [
        add_scaled(total[0], products[0], scales[0], scale),
        add_scaled(total[1], products[1], scales[1], scale),
    ]
}

/// The quants of a group of stretch `INDEX`: from the block's planes where it has some, else as unpacked before.
#[inline]
#[target_feature(enable = "avx2")]
fn quants<Q: Quant, const INDEX: usize>(block: &[u8], expanded: &Expanded, group: usize) -> [__m256i; 2] {
    if const { Q::PIECES[0][0].is_none() } {
        return bytemuck::must_cast(expanded.quants[group]);
    }
    let mut quants = [_mm256_setzero_si256(); 2];
    for piece in 0..3 {
        let Some(piece) = Q::PIECES[INDEX][piece] else {
            break;
        };
        let bytes: [__m256i; 2] = bytemuck::must_cast(*words(block, Q::PLANES, 8 * piece.plane + group));
        let mask = _mm256_set1_epi8(piece.of(piece.mask).cast_signed());
        let count = _mm_cvtsi32_si128(piece.shift.abs());
        for side in 0..2 {
            let moved = match piece.shift {
                0 => bytes[side],
                1.. => _mm256_srl_epi16(bytes[side], count),
                _ => _mm256_sll_epi16(bytes[side], count),
            };
            quants[side] = _mm256_or_si256(quants[side], _mm256_and_si256(moved, mask));
        }
    }
    quants
}
