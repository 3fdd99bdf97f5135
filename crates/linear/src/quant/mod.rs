//! Block-quantised weights, in the formats of GGUF files, times activations rounded to 8 bits.

mod activation;
mod block_format;
mod expanded;
mod grid_blocks;
mod grid_codes;
mod grids;
mod group_blocks;
mod k_blocks;
mod layout;
mod lookup;
mod multiply;
mod panels;
mod plain_blocks;
mod planes;
mod ternary_blocks;
#[cfg(test)]
mod tests;
mod value_blocks;

use core::ops::Range;

pub(crate) use activation::{ActivationBlock, BiasForm, quantise};
pub(crate) use block_format::BlockFormat;
pub(crate) use expanded::{Expanded, Halves, half_bits};
#[cfg(target_arch = "x86_64")]
pub(crate) use expanded::{bytes, words};
pub(crate) use grid_blocks::{Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs};
pub(crate) use group_blocks::Group;
pub(crate) use k_blocks::{Q2K, Q3K, Q4K, Q5K, Q6K};
pub(crate) use layout::{decode, first_not_finite, pack, row_into, unpack};
#[cfg(target_arch = "x86_64")]
pub(crate) use lookup::Mark;
pub(crate) use lookup::{Codes, look_up};
pub(crate) use multiply::multiply;
pub(crate) use plain_blocks::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub(crate) use planes::Pieces;
pub(crate) use ternary_blocks::{Iq1M, Iq1S, Q1_0, Q2_0, Tq1_0, Tq2_0};
pub(crate) use value_blocks::{Iq4Nl, Iq4Xs, Mxfp4, Nvfp4};

use crate::LANES;

/// Weights per scale of the activations. Every block is a whole number of stretches.
pub(crate) const STRETCH: usize = 32;
/// The most tokens of a tile.
pub(crate) const TILE_TOKENS: usize = 8;

/// Returns the stretches in `range` of a tile's tokens; `activations` is `[tokens, stretches]`.
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

/// A separately interleaved part of a block: units of 1, 2 or 4 bytes, from each row in turn.
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

/// The steps of a tile for a format: weight = scale · (quant − center) − min.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Bits of a quant.
    pub(crate) bits: u32,
    /// Number to subtract from a quant to centre it.
    pub(crate) center: i32,
    /// Largest magnitude of a quant less the center.
    pub(crate) largest: u32,
    /// True for a scale per 16 weights, false for one per 32.
    pub(crate) halves: bool,
    /// The format has minimums.
    pub(crate) minimums: bool,
}

impl Shape {
    /// Bits around half their range, one scale per 32 weights.
    const fn centered(bits: u32) -> Shape {
        Shape {
            bits,
            center: 1 << (bits - 1),
            largest: 1 << (bits - 1),
            halves: false,
            minimums: false,
        }
    }

    /// Bits above a minimum, one scale per 32 weights.
    const fn with_minimums(bits: u32) -> Shape {
        Shape {
            bits,
            center: 0,
            largest: (1 << bits) - 1,
            halves: false,
            minimums: true,
        }
    }

    /// Signed bytes plus 128, one scale per 32 weights.
    const fn bytes() -> Shape {
        Shape::centered(8)
    }
}

/// A block format of GGUF.
pub(crate) trait Quant: Copy + Send + Sync + 'static {
    /// Weights of a block.
    const WEIGHTS: usize;
    /// Bytes of a block.
    const BYTES: usize;
    /// All bytes of a block, in order.
    const FIELDS: &[Field];
    /// Offsets of an arranged block's binary16 scale and minimum; the scale's twice if there is no minimum.
    const HALVES: [usize; 2];
    /// False if scales have another form, which is always finite.
    const HAS_HALVES: bool = true;
    /// True if a block of the file stores its scale in several pieces.
    const ARRANGES_HALVES: bool = false;
    const SHAPE: Shape;
    /// Offset of the planes in a block of 256. The pieces give the bits of each stretch in the planes.
    const PLANES: usize = 0;
    const PIECES: Pieces = planes::NONE;
    /// Mapping from `quants` to the quants of `SHAPE`. Formats with a grid have `entries` and `marks` instead.
    const CODES: Codes = Codes::Quants;

    /// The format as data.
    const FORMAT: &'static BlockFormat = &BlockFormat::new::<Self>();

    /// The scales and minimums of stretch `stretch` of 16 rows, from the interleaved block.
    fn scales(block: &[u8], stretch: usize, halves: &Halves, expanded: &mut Expanded);

    /// Unpacks the quants or codes of this stretch.
    #[inline(always)]
    fn quants(block: &[u8], stretch: usize, expanded: &mut Expanded) {
        planes::quants::<Self>(block, stretch, expanded);
    }

    /// Entry number `code` of this stretch, for each row: eight codes in grids of four quants, four in grids of
    /// eight.
    #[inline(always)]
    fn entries(_block: &[u8], _stretch: usize, _code: usize) -> [u32; LANES] {
        [0; LANES]
    }

    /// A mark bit for each weight of each row's stretch. A mark changes the quant of the entry.
    #[inline(always)]
    fn marks(_block: &[u8], _stretch: usize) -> [u32; LANES] {
        [0; LANES]
    }

    /// Scales and quants in plain code.
    #[inline(always)]
    fn expand(block: &[u8], stretch: usize, halves: &Halves, expanded: &mut Expanded) {
        Self::scales(block, stretch, halves, expanded);
        look_up::<Self>(block, stretch, expanded);
    }

    /// The weights of one block of a file, with each operation rounded as in ggml.
    fn dequantise(block: &[u8], weights: &mut [f32]);

    /// Rearranges bits inside a row's block before interleaving, for formats in which bytes are not enough.
    fn arrange(_block: &mut [u8]) {}

    /// The numbers of an arranged block that can be infinite or NaN in a file.
    fn numbers(block: &[u8]) -> [f32; 2] {
        Self::HALVES.map(|offset| expanded::half(block, offset))
    }

    /// Undoes `arrange`.
    fn restore(_block: &mut [u8]) {}
}
