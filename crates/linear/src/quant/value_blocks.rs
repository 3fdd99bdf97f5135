//! Blocks of four-bit codes that index a short table of values: IQ4_NL, IQ4_XS, MXFP4, NVFP4.

use super::expanded::{Expanded, Halves, bytes, half, words};
use super::lookup::Codes;
use super::plain_blocks::{nibble, nibbles};
use super::{Field, Quant, Shape, field};
use crate::LANES;

#[derive(Clone, Copy)]
pub(crate) struct Iq4Nl;
#[derive(Clone, Copy)]
pub(crate) struct Iq4Xs;
#[derive(Clone, Copy)]
pub(crate) struct Mxfp4;
#[derive(Clone, Copy)]
pub(crate) struct Nvfp4;

/// The values of IQ4_NL and IQ4_XS.
const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// The values of MXFP4 and NVFP4: E2M1, doubled.
const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

static IQ4_QUANTS: [u8; 16] = around(IQ4_SHAPE.center, IQ4);
static E2M1_QUANTS: [u8; 16] = around(MXFP4_SHAPE.center, E2M1);

const IQ4_SHAPE: Shape = Shape {
    largest: 127,
    ..Shape::bytes()
};
const MXFP4_SHAPE: Shape = Shape {
    bits: 5,
    center: 12,
    largest: 12,
    halves: false,
    minimums: false,
};

const fn around(center: i32, values: [i8; 16]) -> [u8; 16] {
    let mut quants = [0; 16];
    let mut code = 0;
    while code < 16 {
        quants[code] = (values[code] as i32 + center) as u8;
        code += 1;
    }
    quants
}

impl Quant for Iq4Nl {
    const WEIGHTS: usize = 32;
    const BYTES: usize = 18;
    const FIELDS: &[Field] = &[field(0, 2, 2), field(2, 16, 4)];
    const HALVES: [usize; 2] = [0, 0];
    const SHAPE: Shape = IQ4_SHAPE;
    const CODES: Codes = Codes::Values(&IQ4_QUANTS);

    #[inline(always)]
    fn scales(_block: &[u8], _stretch: usize, halves: &Halves, expanded: &mut Expanded) {
        expanded.scales[0] = halves[0];
    }

    #[inline(always)]
    fn quants(block: &[u8], _stretch: usize, expanded: &mut Expanded) {
        nibbles(block, 2, expanded);
    }

    fn dequantise(block: &[u8], weights: &mut [f32]) {
        let scale = half(block, 0);
        for (index, weight) in weights.iter_mut().enumerate() {
            *weight = scale * value(&IQ4, nibble(&block[2..], index));
        }
    }
}

impl Quant for Iq4Xs {
    const WEIGHTS: usize = 256;
    const BYTES: usize = 136;
    const FIELDS: &[Field] = &[field(0, 2, 2), field(2, 2, 1), field(4, 4, 1), field(8, 128, 4)];
    const HALVES: [usize; 2] = [0, 0];
    const SHAPE: Shape = IQ4_SHAPE;
    const CODES: Codes = Codes::Values(&IQ4_QUANTS);

    #[inline(always)]
    fn scales(block: &[u8], stretch: usize, halves: &Halves, expanded: &mut Expanded) {
        let (high, low) = (bytes(block, 2, stretch / 4), bytes(block, 4, stretch / 2));
        for row in 0..LANES {
            expanded.scales[0][row] = halves[0][row] * iq4_scale(stretch, high[row], low[row]);
        }
    }

    #[inline(always)]
    fn quants(block: &[u8], stretch: usize, expanded: &mut Expanded) {
        nibbles(block, 8 + 16 * stretch, expanded);
    }

    fn dequantise(block: &[u8], weights: &mut [f32]) {
        for (stretch, weights) in weights.chunks_exact_mut(32).enumerate() {
            let scale = half(block, 0) * iq4_scale(stretch, block[2 + stretch / 4], block[4 + stretch / 2]);
            for (index, weight) in weights.iter_mut().enumerate() {
                *weight = scale * value(&IQ4, nibble(&block[8 + 16 * stretch..], index));
            }
        }
    }
}

impl Quant for Mxfp4 {
    const WEIGHTS: usize = 32;
    const BYTES: usize = 17;
    const FIELDS: &[Field] = &[field(0, 1, 1), field(1, 16, 4)];
    const HALVES: [usize; 2] = [0, 0];
    const HAS_HALVES: bool = false;
    const SHAPE: Shape = MXFP4_SHAPE;
    const CODES: Codes = Codes::Values(&E2M1_QUANTS);

    #[inline(always)]
    fn scales(block: &[u8], _stretch: usize, _halves: &Halves, expanded: &mut Expanded) {
        expanded.scales[0] = bytes(block, 0, 0).map(half_of_e8m0);
    }

    #[inline(always)]
    fn quants(block: &[u8], _stretch: usize, expanded: &mut Expanded) {
        nibbles(block, 1, expanded);
    }

    fn dequantise(block: &[u8], weights: &mut [f32]) {
        let scale = half_of_e8m0(block[0]);
        for (index, weight) in weights.iter_mut().enumerate() {
            *weight = scale * value(&E2M1, nibble(&block[1..], index));
        }
    }
}

impl Quant for Nvfp4 {
    const WEIGHTS: usize = 64;
    const BYTES: usize = 36;
    const FIELDS: &[Field] = &[field(0, 4, 1), field(4, 32, 4)];
    const HALVES: [usize; 2] = [0, 0];
    const HAS_HALVES: bool = false;
    const SHAPE: Shape = Shape {
        halves: true,
        ..MXFP4_SHAPE
    };
    const CODES: Codes = Codes::Values(&E2M1_QUANTS);

    #[inline(always)]
    fn scales(block: &[u8], stretch: usize, _halves: &Halves, expanded: &mut Expanded) {
        for part in 0..2 {
            expanded.scales[part] = bytes(block, 0, 2 * stretch + part).map(half_of_ue4m3);
        }
    }

    #[inline(always)]
    fn quants(block: &[u8], stretch: usize, expanded: &mut Expanded) {
        for part in 0..2 {
            for word in 0..2 {
                let pairs = words(block, 4 + 16 * stretch + 8 * part, word);
                expanded.set(4 * part + word, |lane| pairs[lane] & 15);
                expanded.set(4 * part + word + 2, |lane| pairs[lane] >> 4);
            }
        }
    }

    fn dequantise(block: &[u8], weights: &mut [f32]) {
        for (part, weights) in weights.chunks_exact_mut(16).enumerate() {
            let scale = half_of_ue4m3(block[part]);
            for (index, weight) in weights.iter_mut().enumerate() {
                let code = block[4 + 8 * part + index % 8] >> (4 * (index / 8)) & 15;
                *weight = scale * value(&E2M1, code);
            }
        }
    }
}

fn value(values: &[i8; 16], code: u8) -> f32 {
    f32::from(values[usize::from(code)])
}

/// The scale of a stretch of IQ4_XS: four bits from the byte of two stretches, two from the byte of four.
#[inline(always)]
fn iq4_scale(stretch: usize, high: u8, low: u8) -> f32 {
    let six = low >> (4 * (stretch % 2)) & 15 | (high >> (2 * (stretch % 4)) & 3) << 4;
    f32::from(six.cast_signed() - 32)
}

/// Half of an E8M0, 2^(byte − 128); every byte is finite here.
#[inline(always)]
fn half_of_e8m0(byte: u8) -> f32 {
    let byte = u32::from(byte);
    f32::from_bits(if byte < 2 {
        0x0020_0000 << byte
    } else {
        (byte - 1) << 23
    })
}

/// Half of an unsigned E4M3. Its largest code means zero; the top bit is ignored.
#[inline(always)]
fn half_of_ue4m3(byte: u8) -> f32 {
    // The factor 2^119 moves the exponent from its bias to the bias of f32, minus one. It also normalises subnormals.
    let number = f32::from_bits(u32::from(byte & 0x7f) << 20) * f32::from_bits(0x7b00_0000);
    if byte == 0x7f { 0.0 } else { number }
}
