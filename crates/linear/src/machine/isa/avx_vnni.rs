//! AVX-VNNI beside AVX2: one instruction multiplies four bytes and adds the products to 32 bits.
//!
//! Sums of bytes are integers, so results have the same bits as with AVX2.

use core::arch::x86_64::*;

use super::avx2::few_tokens::{FEW, few_token_kernels};
use super::avx2::grids::one_token;
use super::avx2::lookup::{eights, fours, marked, values};
use super::avx2::pairs::{add_minimums, add_scaled, bias, groups, parts, word};
use super::avx2::tiles::{tile_kernels, tile_tokens};
use super::avx2::{AHEAD_BYTES, Block, load, prefetch, prefetch_far, store};
pub(super) use super::avx2::{float_tile, round, widen};
use super::quant::{expand_kernel, for_stretches, quant_kernels, share, unpack_kernel};
use super::vendor::is_amd;
use super::{SHARED, SHARED_STRETCHES};
use crate::LANES;
use crate::float::{F16, F32};
use crate::quant::{
    ActivationBlock, BiasForm, Codes, Expanded, Halves, Quant, STRETCH, Shape, half_bits, tile_rows, words,
};

quant_kernels!("avx2,fma,f16c,avxvnni", BiasForm::Whole);
few_token_kernels!("avx2,fma,f16c,avxvnni");
tile_kernels!("avx2,fma,f16c,avxvnni");
unpack_kernel!("avx2,fma,f16c,avxvnni", false);
expand_kernel!("avx2,fma,f16c,avxvnni");

/// Groups whose products are summed before they are widened: all, since sums have 32 bits.
const fn chain<Q: Quant>() -> usize {
    groups::<Q>()
}

/// Adds products of a group, four at a time.
#[inline]
#[target_feature(enable = "avx2,avxvnni")]
fn add_products<Q: Quant>(sums: __m256i, quants: __m256i, activations: __m256i) -> __m256i {
    _mm256_dpbusd_avx_epi32(sums, quants, activations)
}

/// Sums of each row.
#[inline]
#[target_feature(enable = "avx2")]
fn whole(sums: __m256i) -> __m256i {
    sums
}
