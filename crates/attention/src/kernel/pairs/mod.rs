//! Attention in 16-bit integers: queries times keys, then weights times values, two products to a 32-bit lane.
//!
//! A query and a key are rounded relative to the largest element of each. They keep as many bits as a 32-bit sum of
//! `head_dim` products has room for: 13 with the sign at head_dim 128. First, the block's first key is subtracted from
//! all its keys, so that their common part costs no bits. The first key's own product with the query is added in f32.
//! This is the smoothing of SageAttention (arXiv 2410.02367), with a key in place of a mean: a mean would depend on
//! keys that a row does not see. Each value is rounded relative to a power of two of its own. The weights of a row and
//! a block carry these powers. They are rounded to 13 bits, relative to the largest of them. SageAttention2 (arXiv
//! 2411.10958) does this with 8 bits.

mod accumulate;
mod round;
mod score;
mod weigh;

#[cfg(test)]
mod tests;

pub(crate) use accumulate::AccumulatePairs;
pub(crate) use round::{PairKeys, PairQueries, PairValues, RoundPairKeys, RoundPairValues};
pub(crate) use score::{PairTile, ScorePairs};
pub(crate) use weigh::WeighPairs;

use super::KEY_BLOCK;

/// Pairs of tokens in a block.
const PAIRS: usize = KEY_BLOCK / 2;

/// Largest magnitude of the integer of a value: with [`LARGEST_WEIGHT`] the sum over a block of keys stays below 2³¹.
const LARGEST_VALUE: f32 = 2047.0;

/// Largest integer of a weight.
const LARGEST_WEIGHT: f32 = 8192.0;

/// Magnitude below which a query or key counts as zero: its inverse would overflow.
const LEAST: f32 = 1e-30;

/// 16 words of two 16-bit integers each, aligned to a cache line.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Line([i32; 16]);

/// The integer weights of a row, by slot: two tokens to a word.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(crate) struct PairWeights([i32; PAIRS]);

impl Default for PairWeights {
    fn default() -> Self {
        Self([0; PAIRS])
    }
}

/// 16 lanes, aligned to a cache line.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Lanes([f32; 16]);

/// Largest magnitude of the integers of queries and keys: a sum of `head_dim` products of two stays below 2³¹.
fn largest_of(head_dim: usize) -> f32 {
    let products = i32::MAX as usize / head_dim.max(1);
    products.isqrt().min(i16::MAX as usize) as f32
}
