//! Activations rounded to 8 bits, with one scale per 32.

use super::{STRETCH, Shape};

/// Magnitude below which an activation becomes zero: the reciprocal of the scale would overflow.
const LEAST_MAGNITUDE: f32 = 1e-36;
/// Adding 1.5 · 2^23 rounds to an integer, ties to even, in the low bits.
const ROUNDER: f32 = 12_582_912.0;

/// 32 activations of a token: value ≈ scale · quant, quant in ±127.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct ActivationBlock {
    /// Four quants each, in the order of dot-product instructions.
    pub(crate) words: [u32; STRETCH / 4],
    /// The initial sum of products: − center · (sum of quants), in a [`BiasForm`]. There is one for each half, or the
    /// first is for both. With it, no kernel subtracts the center from a weight.
    pub(crate) bias: [i32; 2],
    /// Scale; NaN if any of the 32 is not finite, so that every output becomes NaN.
    pub(crate) scale: f32,
    /// The factor of a minimum: − scale · (sum of quants). There is one for each half, or the first is for both.
    pub(crate) negative_sums: [f32; 2],
}

/// The form of biases. An instruction set's way of adding products decides it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BiasForm {
    /// One sum in 32 bits.
    Whole,
    /// Two 16-bit sums: bytes 0 and 1 of each word in the low half, bytes 2 and 3 in the high half. With centers up
    /// to 32 both fit, and so do sums of centered products. 8-bit formats have no bias.
    #[cfg(target_arch = "x86_64")]
    Pairs,
}

/// Rounds rows of activations; the length of `values` is a multiple of 32.
#[inline(always)]
pub(crate) fn quantise(values: &[f32], shape: Shape, form: BiasForm, blocks: &mut [ActivationBlock]) {
    for (values, block) in values.as_chunks::<STRETCH>().0.iter().zip(blocks) {
        // As integers, magnitudes have the order of the floats, with infinity and NaN above every finite one.
        let mut largest = 0;
        for value in values {
            largest = largest.max(value.to_bits() & 0x7fff_ffff);
        }
        let magnitude = f32::from_bits(largest);
        let inverse = if magnitude > LEAST_MAGNITUDE {
            127.0 / magnitude
        } else {
            0.0
        };
        let mut quants = [0i32; STRETCH];
        for (quant, value) in quants.iter_mut().zip(values) {
            *quant = (value * inverse + ROUNDER).to_bits().cast_signed() - ROUNDER.to_bits().cast_signed();
        }
        if !magnitude.is_finite() {
            quants = [0; STRETCH];
        }
        let scale = if magnitude.is_finite() {
            magnitude / 127.0
        } else {
            f32::NAN
        };
        let scale = if magnitude > LEAST_MAGNITUDE || scale.is_nan() {
            scale
        } else {
            0.0
        };
        // [half][places of a word]
        let mut pairs = [[0i32; 2]; 2];
        for (pairs, half) in pairs.iter_mut().zip(quants.as_chunks::<16>().0) {
            for [a, b, c, d] in half.as_chunks::<4>().0 {
                pairs[0] += a + b;
                pairs[1] += c + d;
            }
        }
        let sums = pairs.map(|[low, high]| low + high);
        let bytes: [u8; STRETCH] = quants.map(|quant| quant as u8);
        block.words = bytemuck::must_cast::<_, [u32; STRETCH / 4]>(bytes).map(u32::from_le);
        block.scale = scale;
        let bias = |[low, high]: [i32; 2]| match form {
            BiasForm::Whole => -shape.center * (low + high),
            #[cfg(target_arch = "x86_64")]
            BiasForm::Pairs if shape.bits == 8 => 0,
            #[cfg(target_arch = "x86_64")]
            BiasForm::Pairs => (-shape.center * low) & 0xffff | (-shape.center * high) << 16,
        };
        block.bias = if shape.halves {
            pairs.map(bias)
        } else {
            [bias([pairs[0][0] + pairs[1][0], pairs[0][1] + pairs[1][1]]), 0]
        };
        block.negative_sums = if shape.halves {
            sums.map(|sum| -scale * sum as f32)
        } else {
            [-scale * (sums[0] + sums[1]) as f32, 0.0]
        };
    }
}
