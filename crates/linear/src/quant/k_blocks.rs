//! Blocks of 256 weights with scales of scales: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K.

use super::expanded::{Expanded, Halves, bytes, half};
use super::planes::{self, NONE, Pieces, piece, side_by_side};
use super::{Field, Quant, STRETCH, Shape, field};
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
        halves: true,
        ..Shape::with_minimums(2)
    };
    const PLANES: usize = 16;
    const PIECES: Pieces = side_by_side(0, 2);

    #[inline(always)]
    fn scales(block: &[u8], stretch: usize, halves: &Halves, expanded: &mut Expanded) {
        let [scale, minimum] = halves;
        for part in 0..2 {
            let pairs = bytes(block, 0, 2 * stretch + part);
            for row in 0..LANES {
                expanded.scales[part][row] = scale[row] * f32::from(pairs[row] & 15);
                expanded.minimums[part][row] = minimum[row] * f32::from(pairs[row] >> 4);
            }
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
    /// Arranged block: planes, scales, scale of the scales.
    const FIELDS: &[Field] = &[field(0, 96, 4), field(96, 12, 1), field(108, 2, 2)];
    const HALVES: [usize; 2] = [108, 108];
    const SHAPE: Shape = Shape {
        halves: true,
        ..Shape::centered(3)
    };
    const PIECES: Pieces = {
        let mut pieces = NONE;
        let mut stretch = 0;
        while stretch < 6 {
            let place = 3 * (stretch % 2);
            pieces[stretch][0] = piece(stretch / 2, 7 << place, place as i32);
            stretch += 1;
        }
        pieces[6] = [piece(0, 0xc0, 6), piece(2, 0x40, 4), None];
        pieces[7] = [piece(1, 0xc0, 6), piece(2, 0x80, 5), None];
        pieces
    };

    #[inline(always)]
    fn scales(block: &[u8], stretch: usize, halves: &Halves, expanded: &mut Expanded) {
        let [scale, _] = halves;
        for part in 0..2 {
            let six = arranged_scale(2 * stretch + part, |byte| *bytes(block, 96, byte));
            for row in 0..LANES {
                expanded.scales[part][row] = scale[row] * f32::from(six[row].cast_signed() - 32);
            }
        }
    }

    fn dequantise(block: &[u8], weights: &mut [f32]) {
        let scale = half(block, 108);
        for (index, weight) in weights.iter_mut().enumerate() {
            let part = index / 16;
            let six = three_k_bits(block[96 + part % 8], block[104 + part % 4], part).cast_signed() - 32;
            let low = block[32 + two_bits_at(index)] >> two_bits_shift(index) & 3;
            let high = block[index % 32] >> (index / 32) & 1;
            *weight = scale * f32::from(six) * f32::from((low | high << 2).cast_signed() - 4);
        }
    }

    fn arrange(block: &mut [u8]) {
        let file: [u8; 108] = *block.first_chunk().expect("a whole block");
        planes::write::<Q3K>(&mut block[..96], |stretch, place| {
            let low = file[32 + STRETCH * (stretch / 4) + place] >> (2 * (stretch % 4)) & 3;
            low | (file[place] >> stretch & 1) << 2
        });
        let six = |index: usize| three_k_bits(file[96 + index % 8], file[104 + index % 4], index);
        for (byte, to) in block[96..108].iter_mut().enumerate() {
            *to = six(byte) | six(12 + byte / 3) >> (2 * (byte % 3)) << 6;
        }
    }

    fn restore(block: &mut [u8]) {
        let arranged: [u8; 108] = *block.first_chunk().expect("a whole block");
        block[..108].fill(0);
        for stretch in 0..8 {
            for place in 0..STRETCH {
                let quant = planes::read::<Q3K>(&arranged, stretch, place);
                block[32 + STRETCH * (stretch / 4) + place] |= (quant & 3) << (2 * (stretch % 4));
                block[place] |= (quant >> 2) << stretch;
            }
        }
        for index in 0..16 {
            let [six] = arranged_scale(index, |byte| [arranged[96 + byte]]);
            block[96 + index % 8] |= (six & 15) << (4 * (index / 8));
            block[104 + index % 4] |= (six >> 4) << (2 * (index / 4));
        }
    }
}

impl Quant for Q4K {
    const WEIGHTS: usize = 256;
    const BYTES: usize = 144;
    const FIELDS: &[Field] = &[field(0, 2, 2), field(2, 2, 2), field(4, 12, 1), field(16, 128, 4)];
    const HALVES: [usize; 2] = [0, 2];
    const SHAPE: Shape = Shape::with_minimums(4);
    const PLANES: usize = 16;
    const PIECES: Pieces = side_by_side(0, 4);

    #[inline(always)]
    fn scales(block: &[u8], stretch: usize, halves: &Halves, expanded: &mut Expanded) {
        scales_and_minimums(block, stretch, halves, expanded);
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
    const SHAPE: Shape = Shape::with_minimums(5);
    const PLANES: usize = 16;
    const PIECES: Pieces = {
        let mut pieces = side_by_side(1, 4);
        let mut stretch = 0;
        while stretch < 8 {
            pieces[stretch][1] = piece(0, 1 << stretch, stretch as i32 - 4);
            stretch += 1;
        }
        pieces
    };

    #[inline(always)]
    fn scales(block: &[u8], stretch: usize, halves: &Halves, expanded: &mut Expanded) {
        scales_and_minimums(block, stretch, halves, expanded);
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
    /// Arranged: planes, scales, scale of the scales.
    const FIELDS: &[Field] = &[field(0, 192, 4), field(192, 16, 1), field(208, 2, 2)];
    const HALVES: [usize; 2] = [208, 208];
    const SHAPE: Shape = Shape {
        halves: true,
        ..Shape::centered(6)
    };
    const PIECES: Pieces = {
        let mut pieces = NONE;
        let mut stretch = 0;
        while stretch < 6 {
            pieces[stretch][0] = piece(stretch, 0x3f, 0);
            stretch += 1;
        }
        pieces[6] = [piece(0, 0xc0, 6), piece(1, 0xc0, 4), piece(2, 0xc0, 2)];
        pieces[7] = [piece(3, 0xc0, 6), piece(4, 0xc0, 4), piece(5, 0xc0, 2)];
        pieces
    };

    #[inline(always)]
    fn scales(block: &[u8], stretch: usize, halves: &Halves, expanded: &mut Expanded) {
        let [scale, _] = halves;
        for part in 0..2 {
            let signed = bytes(block, 192, 2 * stretch + part);
            for row in 0..LANES {
                expanded.scales[part][row] = scale[row] * f32::from(signed[row].cast_signed());
            }
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

    fn arrange(block: &mut [u8]) {
        let file: [u8; 192] = *block.first_chunk().expect("a whole block");
        planes::write::<Q6K>(&mut block[..192], |stretch, place| {
            let (half, quarter) = (stretch / 4, stretch % 4);
            let low = file[64 * half + 32 * (quarter % 2) + place] >> (4 * (quarter / 2)) & 15;
            low | (file[128 + 32 * half + place] >> (2 * quarter) & 3) << 4
        });
    }

    fn restore(block: &mut [u8]) {
        let arranged: [u8; 192] = *block.first_chunk().expect("a whole block");
        block[..192].fill(0);
        for stretch in 0..8 {
            let (half, quarter) = (stretch / 4, stretch % 4);
            for place in 0..STRETCH {
                let quant = planes::read::<Q6K>(&arranged, stretch, place);
                block[64 * half + 32 * (quarter % 2) + place] |= (quant & 15) << (4 * (quarter / 2));
                block[128 + 32 * half + place] |= (quant >> 4) << (2 * quarter);
            }
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

/// Scale `index` of sixteen of Q3_K, plus 32: four bits from one byte of the file's block, two from another.
fn three_k_bits(low: u8, high: u8, index: usize) -> u8 {
    low >> (4 * (index / 8)) & 15 | (high >> (2 * (index / 4)) & 3) << 4
}

/// As [`three_k_bits`], for arranged blocks and some rows: twelve scales are in the low bits of a byte each, the
/// other four in the high bits of three bytes.
#[inline(always)]
fn arranged_scale<const ROWS: usize>(index: usize, byte: impl Fn(usize) -> [u8; ROWS]) -> [u8; ROWS] {
    if index < 12 {
        return byte(index).map(|byte| byte & 63);
    }
    let [a, b, c] = [0, 1, 2].map(|part| byte(3 * (index - 12) + part));
    core::array::from_fn(|row| a[row] >> 6 | b[row] >> 6 << 2 | c[row] >> 6 << 4)
}

/// The byte with the two bits of weight `index`: 128 weights share 32 bytes.
fn two_bits_at(index: usize) -> usize {
    32 * (index / 128) + index % 32
}

fn two_bits_shift(index: usize) -> usize {
    2 * (index / 32 % 4)
}

/// The byte with the four bits of weight `index`: 64 weights share 32 bytes.
fn four_bits_at(index: usize) -> usize {
    32 * (index / 64) + index % 32
}
