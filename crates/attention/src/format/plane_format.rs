//! The operations of a format: its token layout in planes, and the kernels that read them.

use alloc::vec::Vec;
use core::ops::Range;

use super::Rows;
use crate::kernel::{Ahead, ByteKeys, Gather, Int8Queries, KEY_BLOCK, PairKeys, PairValues, Slot, WeighedRows};
use crate::rounded::Rounding;
use crate::simd::{Level, Simd};

/// Keys or values: each format lays them out differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlaneKind {
    Keys,
    Values,
}

/// Describes a read, so that the format can decide whether to read a plane without widening it.
#[derive(Clone, Copy)]
pub(crate) struct Reading {
    pub(crate) level: Level,
    /// True in [`Arithmetic::Fused`](crate::Arithmetic::Fused).
    pub(crate) is_fused: bool,
    /// Rows that read each element.
    pub(crate) rows: usize,
}

/// Rows of a tile that are multiplied with unwidened keys.
pub(crate) struct ScoreTile<'a, const R: usize> {
    pub(crate) level: Level,
    /// `[head_dim, R]`, already multiplied with the scale.
    pub(crate) queries: &'a [[f32; R]],
    /// The queries as integers, for formats that use these, and the number of elements before the tile's.
    pub(crate) integers: (&'a Int8Queries, usize),
    pub(crate) ahead: Ahead<'a>,
    pub(crate) slots: &'a [Slot],
    pub(crate) scores: &'a mut [[f32; KEY_BLOCK]; R],
}

/// A format of planes.
///
/// A plane is made of stripes of 16 tokens, `plane_len(16, head_dim)` elements each.
pub(crate) trait PlaneFormat {
    /// An element of the slice behind a plane.
    type Raw: Copy;

    /// True if elements are integers with shared scales.
    const IS_QUANTISED: bool;
    /// True if rotating heads before storage improves this format.
    const GAINS_BY_ROTATION: bool;

    /// Elements of the slice behind a plane of `tokens`.
    fn plane_len(tokens: usize, head_dim: usize) -> usize;

    /// Writes the key or the value of a token. `row` has the width of the head, `buffer` is scratch.
    fn write(kind: PlaneKind, plane: &mut [Self::Raw], slot: usize, row: Rows<'_>, buffer: &mut Vec<f32>);
    /// Writes 16 keys, `stride` elements apart, into a whole stripe, if the format has a faster way than key by key.
    fn write_stripe(stripe: &mut [Self::Raw], keys: Rows<'_>, stride: usize) -> bool;
    /// Reads the key or the value of a token back as f32.
    fn read(kind: PlaneKind, plane: &[Self::Raw], slot: usize, row: &mut [f32]);
    /// Copies some tokens of a stripe, bit by bit.
    fn copy(kind: PlaneKind, to: &mut [Self::Raw], from: &[Self::Raw], lanes: Range<usize>, head_dim: usize);

    /// Widens a stripe of keys to `[head_dim, 16]`.
    fn widen_keys<S: Simd>(simd: S, stripe: &[Self::Raw], head_dim: usize, out: &mut [[f32; 16]]);
    /// Widens the first tokens of a stripe of values to `[tokens, head_dim]`.
    fn widen_values<S: Simd>(simd: S, stripe: &[Self::Raw], tokens: usize, head_dim: usize, out: &mut [[f32; 16]]);

    /// True if [`score`](Self::score) and [`accumulate`](Self::accumulate) read planes without widening.
    fn reads_in_place(kind: PlaneKind, reading: Reading) -> bool;
    /// Logits of a tile with unwidened keys.
    fn score<const R: usize>(tile: ScoreTile<'_, R>, keys: &[Self::Raw]);
    /// Adds weighted, unwidened values to the sums of a tile.
    fn accumulate<const R: usize>(level: Level, rows: WeighedRows<'_, R>, values: &[Self::Raw]);

    /// Prefetches the values of tokens that will be gathered soon.
    fn fetch(level: Level, tokens: &[usize], values: &[Self::Raw], head_dim: usize);
    /// Adds the values of listed tokens.
    fn gather<const R: usize>(level: Level, list: Gather<'_, R>, values: &[Self::Raw]);

    /// Rounds keys for [`Arithmetic::Rounded`](crate::Arithmetic::Rounded); `buffer` is scratch.
    fn round_keys(task: &Rounding<'_>, keys: &[Self::Raw], buffer: &mut Vec<f32>, out: &mut PairKeys);
    /// As [`round_keys`](Self::round_keys), for values.
    fn round_values(task: &Rounding<'_>, values: &[Self::Raw], buffer: &mut Vec<f32>, out: &mut PairValues);
    /// Copies some stripes of keys that are already 8-bit integers; returns false for other formats.
    fn take_bytes(keys: &[Self::Raw], stripes: usize, head_dim: usize, out: &mut ByteKeys) -> bool;
}
