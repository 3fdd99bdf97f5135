//! Float weights: f32, f16, bf16, and 8-bit floats with scales.

mod layout;
mod multiply;
mod scales;

pub(crate) use layout::{decode, pack, row_into, unpack};
pub(crate) use multiply::{multiply, multiply_pairs, multiply_rounded};
pub(crate) use scales::scale_bytes;

#[cfg(test)]
mod tests;

use bytemuck::Pod;
use riffle_system::arithmetic::fused_multiply_add;

use crate::LANES;
use crate::half::{bf16_to_f32, f8_to_f16, f16_to_f32};

/// Blocks of [`LANES`] outputs stored together, so that a product with one token is one stream through memory.
pub(crate) const GROUP_BLOCKS: usize = 4;
/// Outputs of a group.
pub(crate) const GROUP: usize = GROUP_BLOCKS * LANES;
/// Steps that are summed separately before they are added to the total; all kernels keep this order. Panels of a
/// group's weights, with four bytes each, fit the first-level cache.
pub(crate) const PANEL: usize = 128;
/// The most tokens of a tile.
pub(crate) const TILE_TOKENS: usize = 8;
/// Tokens per tile when there are many.
const BEST_TILE_TOKENS: usize = 6;

/// The sums of one token for a group's outputs.
pub(crate) type GroupSums = [[f32; LANES]; GROUP_BLOCKS];

/// A stored element type. A step of a product takes one weight per output, or two if they are stored in pairs.
pub(crate) trait Element: Copy + Send + Sync + 'static {
    /// The weights of one step, for one output.
    type Bits: Pod + Send + Sync;
    /// The activations of a step.
    type Value: Pod + Send + Sync;
    const KIND: FloatKind;
    /// Inputs of a step.
    const INPUTS: usize;
    /// True if kernels widen panels of weights once for many tokens.
    const WIDENS: bool = matches!(Self::KIND, FloatKind::F16 | FloatKind::F8);
    /// True if the inputs of a panel share one scale per output.
    const SCALED: bool = matches!(Self::KIND, FloatKind::F8);
    /// Weight `index` of a step.
    fn widen(bits: Self::Bits, index: usize) -> f32;
    /// Returns the sum after a step.
    fn multiply_add(bits: Self::Bits, value: Self::Value, sum: f32) -> f32;
}

/// The element types, for choosing a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FloatKind {
    F32,
    F16,
    F8,
    Bf16,
    RoundedBf16,
}

#[derive(Clone, Copy)]
pub(crate) struct F32;
#[derive(Clone, Copy)]
pub(crate) struct F16;
/// 8-bit floats: 4 bits of exponent, 3 of mantissa. They are widened to 1/256 of their value; the scale corrects
/// this.
#[derive(Clone, Copy)]
pub(crate) struct F8;
#[derive(Clone, Copy)]
pub(crate) struct Bf16;
/// [`Bf16`] weights times activations rounded to bfloat16.
#[derive(Clone, Copy)]
pub(crate) struct RoundedBf16;

impl Element for F32 {
    type Bits = f32;
    type Value = f32;
    const KIND: FloatKind = FloatKind::F32;
    const INPUTS: usize = 1;

    #[inline(always)]
    fn widen(bits: f32, _index: usize) -> f32 {
        bits
    }

    #[inline(always)]
    fn multiply_add(bits: f32, value: f32, sum: f32) -> f32 {
        fused_multiply_add(bits, value, sum)
    }
}

impl Element for F16 {
    type Bits = u16;
    type Value = f32;
    const KIND: FloatKind = FloatKind::F16;
    const INPUTS: usize = 1;

    #[inline(always)]
    fn widen(bits: u16, _index: usize) -> f32 {
        f16_to_f32(bits)
    }

    #[inline(always)]
    fn multiply_add(bits: u16, value: f32, sum: f32) -> f32 {
        fused_multiply_add(f16_to_f32(bits), value, sum)
    }
}

impl Element for F8 {
    type Bits = u8;
    type Value = f32;
    const KIND: FloatKind = FloatKind::F8;
    const INPUTS: usize = 1;

    #[inline(always)]
    fn widen(bits: u8, _index: usize) -> f32 {
        f16_to_f32(f8_to_f16(bits))
    }

    #[inline(always)]
    fn multiply_add(bits: u8, value: f32, sum: f32) -> f32 {
        fused_multiply_add(Self::widen(bits, 0), value, sum)
    }
}

impl Element for Bf16 {
    type Bits = [u16; 2];
    type Value = [f32; 2];
    const KIND: FloatKind = FloatKind::Bf16;
    const INPUTS: usize = 2;

    #[inline(always)]
    fn widen(bits: [u16; 2], index: usize) -> f32 {
        bf16_to_f32(bits[index])
    }

    #[inline(always)]
    fn multiply_add(bits: [u16; 2], value: [f32; 2], sum: f32) -> f32 {
        let sum = fused_multiply_add(bf16_to_f32(bits[0]), value[0], sum);
        fused_multiply_add(bf16_to_f32(bits[1]), value[1], sum)
    }
}

/// The second of a pair is added first, in the order of the pair instruction.
impl Element for RoundedBf16 {
    type Bits = [u16; 2];
    type Value = [u16; 2];
    const KIND: FloatKind = FloatKind::RoundedBf16;
    const INPUTS: usize = 2;

    #[inline(always)]
    fn widen(bits: [u16; 2], index: usize) -> f32 {
        bf16_to_f32(bits[index])
    }

    #[inline(always)]
    fn multiply_add(bits: [u16; 2], value: [u16; 2], sum: f32) -> f32 {
        let sum = fused_multiply_add(bf16_to_f32(bits[1]), bf16_to_f32(value[1]), sum);
        fused_multiply_add(bf16_to_f32(bits[0]), bf16_to_f32(value[0]), sum)
    }
}
