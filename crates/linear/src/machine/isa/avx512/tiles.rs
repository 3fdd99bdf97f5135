//! Tiles of several tokens: each token's sums stay in registers during a stretch.
#![allow(clippy::needless_range_loop, reason = "iterators take closures, see `add_stretch`")]

use core::arch::x86_64::*;

use super::super::quant::{at_stretch, expand_kernel, for_stretches, share};
use super::super::{SHARED, SHARED_STRETCHES};
use super::lookup::unpack;
use super::one_token::look_up_scales;
use super::{AHEAD_BYTES, Block, prefetch_far, widen_halves};
use crate::LANES;
use crate::quant::{ActivationBlock, Expanded, Quant, STRETCH, TILE_TOKENS, tile_rows};

/// Expands to `many_tokens` for an instruction set with an `unpack` in scope.
macro_rules! shared_kernels {
    ($features:literal) => {
        expand_kernel!($features);

        /// Multiplies a band with many tokens: a few stretches at a time are unpacked into the first-level cache and
        /// shared by all tokens.
        #[inline]
        #[target_feature(enable = $features)]
        pub(super) fn many_tokens<Q: Quant>(
            weights: &[u8],
            activations: &[ActivationBlock],
            sums: &mut [[f32; LANES]],
        ) {
            let mut expanded = [Expanded::default(); SHARED_STRETCHES];
            let bytes = SHARED_STRETCHES * STRETCH / Q::WEIGHTS * LANES * Q::BYTES;
            for (index, weights) in weights.chunks(bytes).enumerate() {
                let count = weights.len() / (LANES * Q::BYTES) * (Q::WEIGHTS / STRETCH);
                let expanded = &mut expanded[..count];
                expand::<Q>(weights, expanded);
                multiply_shared::<Q>(expanded, index * SHARED_STRETCHES, activations, sums);
            }
        }
    };
}

pub(super) use shared_kernels;

/// Adds the products of one stretch with `ROWS` tokens to `$totals`, with one independent chain of sums per row.
///
/// A macro without closures, because unpacked weights must stay in registers and a closure would be compiled for
/// another instruction set.
macro_rules! add_stretch {
    ($halves:expr, $minimums:expr, $weights:ident, $activations:ident, $totals:ident) => {{
        let mut products = [_mm512_setzero_si512(); ROWS];
        add_stretch!(@begin 0, products, $activations);
        add_stretch!(@group 0, products, $weights, $activations);
        add_stretch!(@group 1, products, $weights, $activations);
        add_stretch!(@group 2, products, $weights, $activations);
        add_stretch!(@group 3, products, $weights, $activations);
        if $halves {
            add_stretch!(@end 0, products, $weights, $activations, $totals);
            add_stretch!(@begin 1, products, $activations);
        }
        add_stretch!(@group 4, products, $weights, $activations);
        add_stretch!(@group 5, products, $weights, $activations);
        add_stretch!(@group 6, products, $weights, $activations);
        add_stretch!(@group 7, products, $weights, $activations);
        if $halves {
            add_stretch!(@end 1, products, $weights, $activations, $totals);
        } else {
            add_stretch!(@end 0, products, $weights, $activations, $totals);
        }
        if $minimums {
            add_stretch!(@minimums 0, $weights, $activations, $totals);
        }
        if $halves && $minimums {
            add_stretch!(@minimums 1, $weights, $activations, $totals);
        }
    }};
    (@begin $part:literal, $products:ident, $activations:ident) => {
        for row in 0..ROWS {
            $products[row] = _mm512_set1_epi32($activations[row].bias[$part]);
        }
    };
    (@group $group:literal, $products:ident, $weights:ident, $activations:ident) => {
        let quants: __m512i = bytemuck::must_cast($weights.quants[$group]);
        for row in 0..ROWS {
            let word = _mm512_set1_epi32($activations[row].words[$group].cast_signed());
            $products[row] = _mm512_dpbusd_epi32($products[row], quants, word);
        }
    };
    (@end $part:literal, $products:ident, $weights:ident, $activations:ident, $totals:ident) => {
        let scales: Block = bytemuck::must_cast($weights.scales[$part]);
        for row in 0..ROWS {
            let scale = _mm512_set1_ps($activations[row].scale);
            let product = _mm512_cvtepi32_ps($products[row]);
            $totals[row] = _mm512_fmadd_ps(product, _mm512_mul_ps(scales, scale), $totals[row]);
        }
    };
    (@minimums $part:literal, $weights:ident, $activations:ident, $totals:ident) => {
        let minimums: Block = bytemuck::must_cast($weights.minimums[$part]);
        for row in 0..ROWS {
            let sums = _mm512_set1_ps($activations[row].negative_sums[$part]);
            $totals[row] = _mm512_fmadd_ps(minimums, sums, $totals[row]);
        }
    };
}

/// Multiplies a band with two to eight tokens: each stretch is unpacked into registers and multiplied there.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn few_tokens<Q: Quant>(weights: &[u8], rows: &[&[ActivationBlock]], sums: &mut [[f32; LANES]]) {
    match rows.len() {
        2 => unpacked::<Q, 2>(weights, rows, sums),
        3 | 4 => unpacked::<Q, 4>(weights, rows, sums),
        5 | 6 => unpacked::<Q, 6>(weights, rows, sums),
        7 | 8 => unpacked::<Q, 8>(weights, rows, sums),
        _ => unreachable!("a tile takes 2 to {} tokens here", crate::quant::TILE_TOKENS),
    }
}

shared_kernels!("avx512f,avx512bw,avx512vl,avx512vnni");

/// Adds the products of unpacked stretches, from stretch `first` on, with all tokens.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn multiply_shared<Q: Quant>(
    expanded: &[Expanded],
    first: usize,
    activations: &[ActivationBlock],
    sums: &mut [[f32; LANES]],
) {
    let stretches = activations.len() / sums.len();
    let tiles = activations.chunks(TILE_TOKENS * stretches);
    for (sums, activations) in sums.chunks_mut(TILE_TOKENS).zip(tiles) {
        let rows = tile_rows(activations, stretches, first..first + expanded.len());
        let rows = &rows[..sums.len()];
        match (Q::SHAPE.halves, Q::SHAPE.minimums) {
            (false, false) => any_rows::<false, false>(expanded, rows, sums),
            (false, true) => any_rows::<false, true>(expanded, rows, sums),
            (true, false) => any_rows::<true, false>(expanded, rows, sums),
            (true, true) => any_rows::<true, true>(expanded, rows, sums),
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn any_rows<const HALVES: bool, const MINIMUMS: bool>(
    expanded: &[Expanded],
    rows: &[&[ActivationBlock]],
    sums: &mut [[f32; LANES]],
) {
    match rows.len() {
        1 | 2 => from_memory::<HALVES, MINIMUMS, 2>(expanded, rows, sums),
        3 | 4 => from_memory::<HALVES, MINIMUMS, 4>(expanded, rows, sums),
        5 | 6 => from_memory::<HALVES, MINIMUMS, 6>(expanded, rows, sums),
        _ => from_memory::<HALVES, MINIMUMS, 8>(expanded, rows, sums),
    }
}

/// `ROWS` tokens or one fewer, as in [`unpacked`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn from_memory<const HALVES: bool, const MINIMUMS: bool, const ROWS: usize>(
    expanded: &[Expanded],
    rows: &[&[ActivationBlock]],
    sums: &mut [[f32; LANES]],
) {
    let last = rows.len() - 1;
    let mut activations = [&rows[0][0]; ROWS];
    let mut tokens = [&rows[0][..expanded.len()]; ROWS];
    let mut totals = [_mm512_setzero_ps(); ROWS];
    for row in 0..ROWS {
        tokens[row] = &rows[row.min(last)][..expanded.len()];
        totals[row] = bytemuck::must_cast(sums[row.min(last)]);
    }
    for (index, weights) in expanded.iter().enumerate() {
        for row in 0..ROWS {
            activations[row] = &tokens[row][index];
        }
        add_stretch!(HALVES, MINIMUMS, weights, activations, totals);
    }
    for (sums, total) in sums[..=last].iter_mut().zip(totals) {
        *sums = bytemuck::must_cast(total);
    }
}

/// `ROWS` tokens or one fewer. With one fewer, the last token is computed twice, which is faster than a separate
/// case.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn unpacked<Q: Quant, const ROWS: usize>(weights: &[u8], rows: &[&[ActivationBlock]], sums: &mut [[f32; LANES]]) {
    let last = rows.len() - 1;
    let stretches = weights.len() / (LANES * Q::BYTES) * (Q::WEIGHTS / STRETCH);
    let mut activations = [&rows[0][0]; ROWS];
    let mut tokens = [&rows[0][..stretches]; ROWS];
    let mut totals = [_mm512_setzero_ps(); ROWS];
    for row in 0..ROWS {
        tokens[row] = &rows[row.min(last)][..stretches];
        totals[row] = bytemuck::must_cast(sums[row.min(last)]);
    }
    for (index, block) in weights.chunks_exact(LANES * Q::BYTES).enumerate() {
        let halves = widen_halves::<Q>(block);
        for stretch in 0..Q::WEIGHTS / STRETCH {
            prefetch_far(share::<Q>(block, stretch), AHEAD_BYTES);
            let mut expanded = Expanded::default();
            // One branch per stretch: if unrolled, the compiler moves all loads to the front and runs out of
            // registers.
            at_stretch!(Q, stretch, INDEX => {
                if Q::SHAPE.halves && Q::SHAPE.minimums {
                    look_up_scales(block, INDEX, &halves, &mut expanded);
                } else {
                    Q::scales(block, INDEX, &halves, &mut expanded);
                }
                unpack::<Q, INDEX, ROWS>(block, &mut expanded);
            });
            for row in 0..ROWS {
                activations[row] = &tokens[row][index * (Q::WEIGHTS / STRETCH) + stretch];
            }
            add_stretch!(Q::SHAPE.halves, Q::SHAPE.minimums, expanded, activations, totals);
        }
    }
    for (sums, total) in sums[..=last].iter_mut().zip(totals) {
        *sums = bytemuck::must_cast(total);
    }
}
