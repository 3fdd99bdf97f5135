//! Blocks of 256 weights with codes that index a grid, and a sign per weight: IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S.

use super::expanded::{Expanded, Halves, bytes, half, row_words, rows};
use super::grids::{self, IQ3_S_CENTER};
use super::lookup::{Codes, Mark};
use super::{Field, Quant, Shape, field};
use crate::LANES;

#[derive(Clone, Copy)]
pub(crate) struct Iq2Xxs;
#[derive(Clone, Copy)]
pub(crate) struct Iq2Xs;
#[derive(Clone, Copy)]
pub(crate) struct Iq2S;
#[derive(Clone, Copy)]
pub(crate) struct Iq3Xxs;
#[derive(Clone, Copy)]
pub(crate) struct Iq3S;

const AROUND_128: Mark = Mark::NegatedAround(0);

/// The shape of quants around 128, at most `largest` away from it.
const fn signed(largest: u32, halves: bool) -> Shape {
    Shape {
        largest,
        halves,
        ..Shape::bytes()
    }
}

impl Quant for Iq2Xxs {
    const WEIGHTS: usize = 256;
    const BYTES: usize = 66;
    /// For each stretch, four codes, then four groups of seven sign bits, and a scale.
    const FIELDS: &[Field] = &[field(0, 2, 2), field(2, 64, 4)];
    const HALVES: [usize; 2] = [0, 0];
    const SHAPE: Shape = signed(43, false);
    const CODES: Codes = Codes::Eights(&grids::IQ2_XXS, AROUND_128);

    #[inline(always)]
    fn scales(block: &[u8], stretch: usize, halves: &Halves, expanded: &mut Expanded) {
        let words = row_words(block, 2, 2 * stretch + 1);
        for row in 0..LANES {
            expanded.scales[0][row] = halves[0][row] * 0.125 * odd(words[row] >> 28);
        }
    }

    #[inline(always)]
    fn entries(block: &[u8], stretch: usize, code: usize) -> [u32; LANES] {
        let four = row_words(block, 2, 2 * stretch);
        rows(|row| four[row] >> (8 * code) & 0xff)
    }

    #[inline(always)]
    fn marks(block: &[u8], stretch: usize) -> [u32; LANES] {
        let words = row_words(block, 2, 2 * stretch + 1);
        rows(|row| signs_of_sevens(words[row]))
    }

    fn dequantise(block: &[u8], weights: &mut [f32]) {
        for (part, weights) in weights.chunks_exact_mut(32).enumerate() {
            let (codes, word) = (&block[2 + 8 * part..], word(&block[6 + 8 * part..]));
            let scale = half(block, 0) * odd(word >> 28) * 0.125;
            let entries = weights.chunks_exact_mut(8).zip(&codes[..4]);
            for (entry, (weights, code)) in entries.enumerate() {
                let signs = signs_of_sevens(word) >> (8 * entry);
                let entry = grids::IQ2_XXS.entries[usize::from(*code)];
                write(scale, signs, entry.to_le_bytes().map(around_128), weights);
            }
        }
    }
}

impl Quant for Iq2Xs {
    const WEIGHTS: usize = 256;
    const BYTES: usize = 74;
    /// The scale, pairs of code and signs, scales of two halves of a stretch in a byte.
    const FIELDS: &[Field] = &[field(0, 2, 2), field(2, 64, 4), field(66, 8, 1)];
    const HALVES: [usize; 2] = [0, 0];
    const SHAPE: Shape = signed(43, true);
    const CODES: Codes = Codes::Eights(&grids::IQ2_XS, AROUND_128);

    #[inline(always)]
    fn scales(block: &[u8], stretch: usize, halves: &Halves, expanded: &mut Expanded) {
        scales_of_halves(bytes(block, 66, stretch), halves, expanded);
    }

    #[inline(always)]
    fn entries(block: &[u8], stretch: usize, code: usize) -> [u32; LANES] {
        let two = row_words(block, 2, 2 * stretch + code / 2);
        rows(|row| two[row] >> (16 * (code % 2)) & 511)
    }

    #[inline(always)]
    fn marks(block: &[u8], stretch: usize) -> [u32; LANES] {
        let left = row_words(block, 2, 2 * stretch);
        let right = row_words(block, 2, 2 * stretch + 1);
        let sevens = |two: u32| two >> 9 & 0x7f | two >> 18 & 0x3f80;
        rows(|row| signs_of_sevens(sevens(left[row]) | sevens(right[row]) << 14))
    }

    fn dequantise(block: &[u8], weights: &mut [f32]) {
        for (index, weights) in weights.chunks_exact_mut(8).enumerate() {
            let pair = u16::from_le_bytes([block[2 + 2 * index], block[3 + 2 * index]]);
            let scale = scale_of_half(block, 66, index / 2);
            let entry = grids::IQ2_XS.entries[usize::from(pair & 511)];
            let signs = signs_of_sevens(u32::from(pair >> 9));
            write(scale, signs, entry.to_le_bytes().map(around_128), weights);
        }
    }
}

impl Quant for Iq2S {
    const WEIGHTS: usize = 256;
    const BYTES: usize = 82;
    /// The scale, low bits of codes, signs, high bits of four codes in a byte, scales as in IQ2_XS.
    const FIELDS: &[Field] = &[
        field(0, 2, 2),
        field(2, 32, 1),
        field(34, 32, 4),
        field(66, 8, 1),
        field(74, 8, 1),
    ];
    const HALVES: [usize; 2] = [0, 0];
    const SHAPE: Shape = signed(43, true);
    const CODES: Codes = Codes::Eights(&grids::IQ2_S, AROUND_128);

    #[inline(always)]
    fn scales(block: &[u8], stretch: usize, halves: &Halves, expanded: &mut Expanded) {
        scales_of_halves(bytes(block, 74, stretch), halves, expanded);
    }

    #[inline(always)]
    fn entries(block: &[u8], stretch: usize, code: usize) -> [u32; LANES] {
        let (low, high) = (bytes(block, 2, 4 * stretch + code), bytes(block, 66, stretch));
        rows(|row| u32::from(low[row]) | (u32::from(high[row]) >> (2 * code) & 3) << 8)
    }

    #[inline(always)]
    fn marks(block: &[u8], stretch: usize) -> [u32; LANES] {
        row_words(block, 34, stretch)
    }

    fn dequantise(block: &[u8], weights: &mut [f32]) {
        for (index, weights) in weights.chunks_exact_mut(8).enumerate() {
            let high = block[66 + index / 4] >> (2 * (index % 4)) & 3;
            let entry = grids::IQ2_S.entries[usize::from(block[2 + index]) | usize::from(high) << 8];
            let signs = u32::from(block[34 + index]);
            let scale = scale_of_half(block, 74, index / 2);
            write(scale, signs, entry.to_le_bytes().map(around_128), weights);
        }
    }
}

impl Quant for Iq3Xxs {
    const WEIGHTS: usize = 256;
    const BYTES: usize = 98;
    /// The scale, codes, then for each stretch four groups of seven sign bits, and a scale.
    const FIELDS: &[Field] = &[field(0, 2, 2), field(2, 64, 4), field(66, 32, 4)];
    const HALVES: [usize; 2] = [0, 0];
    const SHAPE: Shape = signed(62, false);
    const CODES: Codes = Codes::Fours(&grids::IQ3_XXS, AROUND_128);

    #[inline(always)]
    fn scales(block: &[u8], stretch: usize, halves: &Halves, expanded: &mut Expanded) {
        let words = row_words(block, 66, stretch);
        for row in 0..LANES {
            expanded.scales[0][row] = halves[0][row] * 0.25 * odd(words[row] >> 28);
        }
    }

    #[inline(always)]
    fn entries(block: &[u8], stretch: usize, code: usize) -> [u32; LANES] {
        let four = row_words(block, 2, 2 * stretch + code / 4);
        rows(|row| four[row] >> (8 * (code % 4)) & 0xff)
    }

    #[inline(always)]
    fn marks(block: &[u8], stretch: usize) -> [u32; LANES] {
        let words = row_words(block, 66, stretch);
        rows(|row| signs_of_sevens(words[row]))
    }

    fn dequantise(block: &[u8], weights: &mut [f32]) {
        for (index, weights) in weights.chunks_exact_mut(4).enumerate() {
            let word = word(&block[66 + 4 * (index / 8)..]);
            let scale = half(block, 0) * odd(word >> 28) * 0.25;
            let entry = grids::IQ3_XXS.entries[usize::from(block[2 + index])];
            let signs = signs_of_sevens(word) >> (4 * (index % 8));
            write(scale, signs, entry.to_le_bytes().map(around_128), weights);
        }
    }
}

impl Quant for Iq3S {
    const WEIGHTS: usize = 256;
    const BYTES: usize = 110;
    /// The scale, the codes' low bits, their high bits (eight codes a byte), signs, and scales (two stretches a byte).
    const FIELDS: &[Field] = &[
        field(0, 2, 2),
        field(2, 64, 4),
        field(66, 8, 4),
        field(74, 32, 4),
        field(106, 4, 1),
    ];
    const HALVES: [usize; 2] = [0, 0];
    const SHAPE: Shape = Shape {
        largest: 15,
        ..Shape::centered(5)
    };
    const CODES: Codes = Codes::Fours(&grids::IQ3_S, Mark::NegatedAround(2 * IQ3_S_CENTER));

    #[inline(always)]
    fn scales(block: &[u8], stretch: usize, halves: &Halves, expanded: &mut Expanded) {
        let pairs = bytes(block, 106, stretch / 2);
        for row in 0..LANES {
            expanded.scales[0][row] = halves[0][row] * odd(u32::from(pairs[row]) >> (4 * (stretch % 2)) & 15);
        }
    }

    #[inline(always)]
    fn entries(block: &[u8], stretch: usize, code: usize) -> [u32; LANES] {
        let low = row_words(block, 2, 2 * stretch + code / 4);
        let high = row_words(block, 66, stretch / 4);
        rows(|row| {
            let top = high[row] >> (8 * (stretch % 4) + code) & 1;
            low[row] >> (8 * (code % 4)) & 0xff | top << 8
        })
    }

    #[inline(always)]
    fn marks(block: &[u8], stretch: usize) -> [u32; LANES] {
        row_words(block, 74, stretch)
    }

    fn dequantise(block: &[u8], weights: &mut [f32]) {
        for (index, weights) in weights.chunks_exact_mut(4).enumerate() {
            let pair = block[106 + index / 16] >> (4 * (index / 8 % 2)) & 15;
            let high = block[66 + index / 8] >> (index % 8) & 1;
            let entry = grids::IQ3_S.entries[usize::from(block[2 + index]) | usize::from(high) << 8];
            let signs = u32::from(block[74 + index / 2] >> (4 * (index % 2)));
            let scale = half(block, 0) * odd(u32::from(pair));
            write(
                scale,
                signs,
                entry.to_le_bytes().map(|quant| quant - IQ3_S_CENTER),
                weights,
            );
        }
    }
}

/// The odd number 2 · `bits` + 1 of a scale's bits.
#[inline(always)]
fn odd(bits: u32) -> f32 {
    (2 * bits + 1) as f32
}

/// Expands four groups of seven signs to eight each: the eighth makes the count of set signs even.
#[inline(always)]
fn signs_of_sevens(word: u32) -> u32 {
    let sevens = word & 0x7f | (word << 1) & 0x7f00 | (word << 2) & 0x7f_0000 | (word << 3) & 0x7f00_0000;
    let mut parity = sevens ^ sevens >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    sevens | (parity & 0x0101_0101) << 7
}

/// The scales of a stretch's halves in IQ2_XS and IQ2_S: eighths of the block's scale.
#[inline(always)]
fn scales_of_halves(pairs: &[u8; LANES], halves: &Halves, expanded: &mut Expanded) {
    for part in 0..2 {
        for row in 0..LANES {
            let bits = u32::from(pairs[row]) >> (4 * part) & 15;
            expanded.scales[part][row] = halves[0][row] * 0.125 * odd(bits);
        }
    }
}

/// The scale of 16 weights of a row's block; the scales begin at `offset`.
fn scale_of_half(block: &[u8], offset: usize, part: usize) -> f32 {
    let bits = block[offset + part / 2] >> (4 * (part % 2)) & 15;
    half(block, 0) * odd(u32::from(bits)) * 0.125
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn around_128(quant: u8) -> u8 {
    quant - 128
}

/// Writes the weights of an entry.
fn write<const COUNT: usize>(scale: f32, signs: u32, entry: [u8; COUNT], weights: &mut [f32]) {
    for (place, (weight, value)) in weights.iter_mut().zip(entry).enumerate() {
        let magnitude = scale * f32::from(value);
        *weight = if signs >> place & 1 == 1 { -magnitude } else { magnitude };
    }
}
