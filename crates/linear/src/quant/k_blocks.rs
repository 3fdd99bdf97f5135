//! Blocks of 256 weights with scales of scales: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K.

use super::expanded::{Expanded, Halves, bytes, half, words};
use super::{Field, Quant, Shape, field};
use crate::LANES;

#[derive(Clone, Copy)]
pub(crate) struct Q2K;
#[derive(Clone, Copy)]
pub(crate) struct Q3K;
#[derive(Clone, Copy)]
pub(crate) struct Q4K;
#[derive(Clone, Copy)]
pub(crate) struct Q5K;
#[derive(Clone, Copy)]
pub(crate) struct Q6K;

impl Quant for Q2K {
    const WEIGHTS: usize = 256;
    const BYTES: usize = 84;
    const FIELDS: &[Field] = &[field(0, 16, 1), field(16, 64, 4), field(80, 2, 2), field(82, 2, 2)];
    const HALVES: [usize; 2] = [80, 82];
    const SHAPE: Shape = Shape {
        center: 0,
        halves: true,
        minimums: true,
    };

    #[inline(always)]
    fn expand(block: &[u8], stretch: usize, halves: &Halves, expanded: &mut Expanded) {
        let [scale, minimum] = halves;
        for part in 0..2 {
            let pairs = bytes(block, 0, 2 * stretch + part);
            for row in 0..LANES {
                expanded.scales[part][row] = scale[row] * f32::from(pairs[row] & 15);
                expanded.minimums[part][row] = minimum[row] * f32::from(pairs[row] >> 4);
            }
        }
        let shift = 2 * (stretch % 4);
        for group in 0..8 {
            let fours = words(block, 16, 8 * (stretch / 4) + group);
            expanded.set(group, |lane| fours[lane] >> shift & 3);
        }
    }

    fn dequantise(block: &[u8], weights: &mut [f32]) {
        let (scale, minimum) = (half(block, 80), half(block, 82));
        for (index, weight) in weights.iter_mut().enumerate() {
            let pair = block[index / 16];
            let quant = block[16 + two_bits_at(index)] >> two_bits_shift(index) & 3;
            *weight = scale * f32::from(pair & 15) * f32::from(quant) - minimum * f32::from(pair >> 4);
        }
    }
}

impl Quant for Q3K {
    const WEIGHTS: usize = 256;
    const BYTES: usize = 110;
    const FIELDS: &[Field] = &[field(0, 32, 4), field(32, 64, 4), field(96, 12, 1), field(108, 2, 2)];
    const HALVES: [usize; 2] = [108, 108];
    const SHAPE: Shape = Shape {
        center: 4,
        halves: true,
        minimums: false,
    };

    #[inline(always)]
    fn expand(block: &[u8], stretch: usize, halves: &Halves, expanded: &mut Expanded) {
        let [scale, _] = halves;
        for part in 0..2 {
            let index = 2 * stretch + part;
            let (low, high) = (bytes(block, 96, index % 8), bytes(block, 96, 8 + index % 4));
            for row in 0..LANES {
                let six = three_k_scale(low[row], high[row], index);
                expanded.scales[part][row] = scale[row] * f32::from(six);
            }
        }
        let shift = 2 * (stretch % 4);
        for group in 0..8 {
            let fours = words(block, 32, 8 * (stretch / 4) + group);
            let eights = words(block, 0, group);
            expanded.set(group, |lane| {
                fours[lane] >> shift & 3 | (eights[lane] >> stretch & 1) << 2
            });
        }
    }

    fn dequantise(block: &[u8], weights: &mut [f32]) {
        let scale = half(block, 108);
        for (index, weight) in weights.iter_mut().enumerate() {
            let part = index / 16;
            let six = three_k_scale(block[96 + part % 8], block[96 + 8 + part % 4], part);
            let low = block[32 + two_bits_at(index)] >> two_bits_shift(index) & 3;
            let high = block[index % 32] >> (index / 32) & 1;
            *weight = scale * f32::from(six) * f32::from((low | high << 2).cast_signed() - 4);
        }
    }
}

impl Quant for Q4K {
    const WEIGHTS: usize = 256;
    const BYTES: usize = 144;
    const FIELDS: &[Field] = &[field(0, 2, 2), field(2, 2, 2), field(4, 12, 1), field(16, 128, 4)];
    const HALVES: [usize; 2] = [0, 2];
    const SHAPE: Shape = Shape {
        center: 0,
        halves: false,
        minimums: true,
    };

    #[inline(always)]
    fn expand(block: &[u8], stretch: usize, halves: &Halves, expanded: &mut Expanded) {
        scales_and_minimums(block, stretch, halves, expanded);
        let shift = 4 * (stretch % 2);
        for group in 0..8 {
            let pairs = words(block, 16, 8 * (stretch / 2) + group);
            expanded.set(group, |lane| pairs[lane] >> shift & 15);
        }
    }

    fn dequantise(block: &[u8], weights: &mut [f32]) {
        let (scale, minimum) = (half(block, 0), half(block, 2));
        for (index, weight) in weights.iter_mut().enumerate() {
            let (six, six_minimum) = six_bit_pair(index / 32, |byte| block[4 + byte]);
            let quant = block[16 + four_bits_at(index)] >> (4 * (index / 32 % 2)) & 15;
            *weight = scale * f32::from(six) * f32::from(quant) - minimum * f32::from(six_minimum);
        }
    }
}

impl Quant for Q5K {
    const WEIGHTS: usize = 256;
    const BYTES: usize = 176;
    const FIELDS: &[Field] = &[
        field(0, 2, 2),
        field(2, 2, 2),
        field(4, 12, 1),
        field(16, 32, 4),
        field(48, 128, 4),
    ];
    const HALVES: [usize; 2] = [0, 2];
    const SHAPE: Shape = Shape {
        center: 0,
        halves: false,
        minimums: true,
    };

    #[inline(always)]
    fn expand(block: &[u8], stretch: usize, halves: &Halves, expanded: &mut Expanded) {
        scales_and_minimums(block, stretch, halves, expanded);
        let shift = 4 * (stretch % 2);
        for group in 0..8 {
            let pairs = words(block, 48, 8 * (stretch / 2) + group);
            let eights = words(block, 16, group);
            expanded.set(group, |lane| {
                pairs[lane] >> shift & 15 | (eights[lane] >> stretch & 1) << 4
            });
        }
    }

    fn dequantise(block: &[u8], weights: &mut [f32]) {
        let (scale, minimum) = (half(block, 0), half(block, 2));
        for (index, weight) in weights.iter_mut().enumerate() {
            let (six, six_minimum) = six_bit_pair(index / 32, |byte| block[4 + byte]);
            let low = block[48 + four_bits_at(index)] >> (4 * (index / 32 % 2)) & 15;
            let high = block[16 + index % 32] >> (index / 32) & 1;
            *weight = scale * f32::from(six) * f32::from(low | high << 4) - minimum * f32::from(six_minimum);
        }
    }
}

impl Quant for Q6K {
    const WEIGHTS: usize = 256;
    const BYTES: usize = 210;
    const FIELDS: &[Field] = &[field(0, 128, 4), field(128, 64, 4), field(192, 16, 1), field(208, 2, 2)];
    const HALVES: [usize; 2] = [208, 208];
    const SHAPE: Shape = Shape {
        center: 32,
        halves: true,
        minimums: false,
    };

    #[inline(always)]
    fn expand(block: &[u8], stretch: usize, halves: &Halves, expanded: &mut Expanded) {
        let [scale, _] = halves;
        for part in 0..2 {
            let signed = bytes(block, 192, 2 * stretch + part);
            for row in 0..LANES {
                expanded.scales[part][row] = scale[row] * f32::from(signed[row].cast_signed());
            }
        }
        // 128 weights share 64 low bytes and 32 high bytes.
        let (half, quarter) = (stretch / 4, stretch % 4);
        let (low_shift, high_shift) = (4 * (quarter / 2), 2 * quarter);
        for group in 0..8 {
            let low = words(block, 0, 16 * half + 8 * (quarter % 2) + group);
            let high = words(block, 128, 8 * half + group);
            expanded.set(group, |lane| {
                low[lane] >> low_shift & 15 | (high[lane] >> high_shift & 3) << 4
            });
        }
    }

    fn dequantise(block: &[u8], weights: &mut [f32]) {
        let scale = half(block, 208);
        for (index, weight) in weights.iter_mut().enumerate() {
            let (half, quarter) = (index / 128, index / 32 % 4);
            let low = block[64 * half + 32 * (quarter % 2) + index % 32] >> (4 * (quarter / 2)) & 15;
            let high = block[128 + 32 * half + index % 32] >> (2 * quarter) & 3;
            let quant = (low | high << 4).cast_signed() - 32;
            *weight = scale * f32::from(block[192 + index / 16].cast_signed()) * f32::from(quant);
        }
    }
}

/// The scale and minimum of a stretch in Q4_K and Q5_K, for 16 rows.
#[inline(always)]
fn scales_and_minimums(block: &[u8], stretch: usize, [scale, minimum]: &Halves, expanded: &mut Expanded) {
    for row in 0..LANES {
        let (six, six_minimum) = six_bit_pair(stretch, |byte| bytes(block, 4, byte)[row]);
        expanded.scales[0][row] = scale[row] * f32::from(six);
        expanded.minimums[0][row] = minimum[row] * f32::from(six_minimum);
    }
}

/// Scale and minimum `index` of the eight pairs of 6 bits in 12 bytes.
#[inline(always)]
fn six_bit_pair(index: usize, byte: impl Fn(usize) -> u8) -> (u8, u8) {
    if index < 4 {
        (byte(index) & 63, byte(index + 4) & 63)
    } else {
        let low = byte(index + 4);
        (low & 15 | byte(index - 4) >> 6 << 4, low >> 4 | byte(index) >> 6 << 4)
    }
}

/// Scale `index` of the sixteen of Q3_K: four bits from one byte, two from another, minus 32.
#[inline(always)]
fn three_k_scale(low: u8, high: u8, index: usize) -> i8 {
    let six = low >> (4 * (index / 8)) & 15 | (high >> (2 * (index / 4)) & 3) << 4;
    six.cast_signed() - 32
}

/// Where the two bits of weight `index` lie: 128 weights share 32 bytes.
fn two_bits_at(index: usize) -> usize {
    32 * (index / 128) + index % 32
}

fn two_bits_shift(index: usize) -> usize {
    2 * (index / 32 % 4)
}

/// Where the four bits of weight `index` lie: 64 weights share 32 bytes.
fn four_bits_at(index: usize) -> usize {
    32 * (index / 64) + index % 32
}
