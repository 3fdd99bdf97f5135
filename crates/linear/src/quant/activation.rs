//! Activations rounded to 8 bits, a scale for each 32.

use super::{STRETCH, Shape};

/// Largest magnitude that rounds to nothing: below it the reciprocal of the scale would overflow.
const LEAST_MAGNITUDE: f32 = 1e-36;
/// Adding 1.5 · 2^23 rounds to an integer, ties to even, and leaves it in the low bits.
const ROUNDER: f32 = 12_582_912.0;

/// 32 activations of a token: value ≈ scale · quant, quant in ±127.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct ActivationBlock {
    /// Four quants each, as dot-product instructions take them.
    pub(crate) words: [u32; STRETCH / 4],
    /// − center · (sum of quants), `[half]`, or over both in the first: what a sum of products of uncentered weights starts
    /// from.
    pub(crate) bias: [i32; 2],
    /// NaN if any of the 32 is not finite: the whole stretch then is NaN in every output.
    pub(crate) scale: f32,
    /// − scale · (sum of quants), `[half]`, or over both in the first: what a minimum is multiplied with.
    pub(crate) negative_sums: [f32; 2],
}

/// Rounds rows of activations; `values` is a multiple of 32 long.
#[inline(always)]
pub(crate) fn quantise(values: &[f32], shape: Shape, blocks: &mut [ActivationBlock]) {
    for (values, block) in values.as_chunks::<STRETCH>().0.iter().zip(blocks) {
        // As integers the magnitudes order like the floats, infinity and NaN above every finite one.
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
        let mut sums = [0i32; 2];
        for (sum, half) in sums.iter_mut().zip(quants.as_chunks::<16>().0) {
            *sum = half.iter().sum();
        }
        let bytes: [u8; STRETCH] = quants.map(|quant| quant as u8);
        block.words = bytemuck::must_cast::<_, [u32; STRETCH / 4]>(bytes).map(u32::from_le);
        block.scale = scale;
        block.bias = match shape.halves {
            true => sums.map(|sum| -shape.center * sum),
            false => [-shape.center * (sums[0] + sums[1]), 0],
        };
        block.negative_sums = match shape.halves {
            true => sums.map(|sum| -scale * sum as f32),
            false => [-scale * (sums[0] + sums[1]) as f32, 0.0],
        };
    }
}
