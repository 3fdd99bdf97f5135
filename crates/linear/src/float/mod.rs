//! Weights that are floats: f32, f16, bf16.

mod layout;
mod multiply;

pub(crate) use layout::{pack, row_into, unpack};
pub(crate) use multiply::multiply;

#[cfg(test)]
mod tests;

use bytemuck::Pod;

use crate::LANES;
use crate::half::{bf16_to_f32, f16_to_f32};

/// Blocks of [`LANES`] outputs that lie together, so that a matrix times one token is one stream through memory.
pub(crate) const GROUP_BLOCKS: usize = 4;
/// Outputs of a group.
pub(crate) const GROUP: usize = GROUP_BLOCKS * LANES;
/// Inputs summed by themselves before they are added to the total: the order every kernel keeps. Also the inputs for
/// which a group's weights, as f32, fit the first cache.
pub(crate) const PANEL: usize = 128;
/// Most tokens a tile takes at once.
pub(crate) const TILE_TOKENS: usize = 8;
/// Tokens of the tiles many tokens are cut into.
const BEST_TILE_TOKENS: usize = 6;

/// The sums of one token over a group's outputs.
pub(crate) type GroupSums = [[f32; LANES]; GROUP_BLOCKS];

/// An element type, by the bits it is stored in.
pub(crate) trait Element: Copy + Send + Sync + 'static {
    type Bits: Pod + Send + Sync;
    const KIND: Kind;
    fn widen(bits: Self::Bits) -> f32;
}

/// The element types, for choosing a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    F32,
    F16,
    Bf16,
}

#[derive(Clone, Copy)]
pub(crate) struct F32;
#[derive(Clone, Copy)]
pub(crate) struct F16;
#[derive(Clone, Copy)]
pub(crate) struct Bf16;

impl Element for F32 {
    type Bits = f32;
    const KIND: Kind = Kind::F32;
    #[inline(always)]
    fn widen(bits: f32) -> f32 {
        bits
    }
}

impl Element for F16 {
    type Bits = u16;
    const KIND: Kind = Kind::F16;
    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        f16_to_f32(bits)
    }
}

impl Element for Bf16 {
    type Bits = u16;
    const KIND: Kind = Kind::Bf16;
    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        bf16_to_f32(bits)
    }
}
