//! Weights quantised in blocks, as GGUF files hold them, times activations rounded to 8 bits.

mod activation;
mod expanded;
mod k_blocks;
mod layout;
mod multiply;
mod panels;
mod plain_blocks;
mod planes;
#[cfg(test)]
mod tests;

use core::ops::Range;

pub(crate) use activation::{ActivationBlock, BiasForm, quantise};
pub(crate) use expanded::{Expanded, Halves, half_bits};
#[cfg(target_arch = "x86_64")]
pub(crate) use expanded::{bytes, words};
pub(crate) use k_blocks::{Q2K, Q3K, Q4K, Q5K, Q6K};
pub(crate) use layout::{pack, row_into, unpack};
pub(crate) use multiply::multiply;
pub(crate) use plain_blocks::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub(crate) use planes::Pieces;

/// Weights that share a scale with the activations: every block is a whole number of these.
pub(crate) const STRETCH: usize = 32;
/// Most tokens a tile takes at once.
pub(crate) const TILE_TOKENS: usize = 8;

/// The stretches in `range` of a tile's tokens; `activations` is `[tokens, stretches]`.
#[inline(always)]
pub(crate) fn tile_rows(
    activations: &[ActivationBlock],
    stretches: usize,
    range: Range<usize>,
) -> [&[ActivationBlock]; TILE_TOKENS] {
    let mut rows = [&activations[..0]; TILE_TOKENS];
    for (row, blocks) in rows.iter_mut().zip(activations.chunks_exact(stretches)) {
        *row = &blocks[range.clone()];
    }
    rows
}

/// A part of a block that is interleaved by itself: units of 1, 2 or 4 bytes, one of each row in turn.
pub(crate) struct Field {
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
    pub(crate) unit: usize,
}

const fn field(offset: usize, bytes: usize, unit: usize) -> Field {
    assert!(
        matches!(unit, 1 | 2 | 4) && bytes.is_multiple_of(unit),
        "a unit is moved by one instruction"
    );
    Field { offset, bytes, unit }
}

/// What a tile must do with a format: weight = scale · (quant − center) − min.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Bits of a quant.
    pub(crate) bits: u32,
    /// Subtracted from a quant to make it signed.
    pub(crate) center: i32,
    /// A scale for each 16 weights, not for each 32.
    pub(crate) halves: bool,
    /// The format has minimums.
    pub(crate) minimums: bool,
}

/// A block format of GGUF.
pub(crate) trait Quant: Copy + Send + Sync + 'static {
    /// Weights of a block.
    const WEIGHTS: usize;
    /// Bytes of a block.
    const BYTES: usize;
    /// All bytes of a block, in order.
    const FIELDS: &[Field];
    /// Where a block's scale and minimum lie, both binary16; the scale twice where there is no minimum.
    const HALVES: [usize; 2];
    const SHAPE: Shape;
    /// Where the planes of a block of 256 begin, and what they hold of each stretch.
    const PLANES: usize = 0;
    const PIECES: Pieces = planes::NONE;

    /// The scales and minimums of stretch `stretch` of 16 rows, from their interleaved block.
    fn scales(block: &[u8], stretch: usize, halves: &Halves, expanded: &mut Expanded);

    /// Unpacks the quants of that stretch.
    #[inline(always)]
    fn quants(block: &[u8], stretch: usize, expanded: &mut Expanded) {
        planes::quants::<Self>(block, stretch, expanded);
    }

    /// Both.
    #[inline(always)]
    fn expand(block: &[u8], stretch: usize, halves: &Halves, expanded: &mut Expanded) {
        Self::scales(block, stretch, halves, expanded);
        Self::quants(block, stretch, expanded);
    }

    /// The weights of one block as the file holds it, each operation rounded as in ggml.
    fn dequantise(block: &[u8], weights: &mut [f32]);

    /// Rearranges bits inside a row's block before it is interleaved, where bytes alone do not do.
    fn arrange(_block: &mut [u8]) {}

    /// Undoes `arrange`.
    fn restore(_block: &mut [u8]) {}
}
