//! Blocks with one or two bits per weight: IQ1_S, IQ1_M, TQ1_0, TQ2_0, Q1_0, Q2_0.

use super::expanded::{Expanded, Halves, bytes, half, half_bits, row_words, rows, words};
use super::grids::{self, IQ1_CENTER};
use super::lookup::{Codes, Mark};
use super::planes::{Pieces, side_by_side};
use super::{Field, Quant, Shape, field};
use crate::LANES;

#[derive(Clone, Copy)]
pub(crate) struct Iq1S;
#[derive(Clone, Copy)]
pub(crate) struct Iq1M;
#[derive(Clone, Copy)]
pub(crate) struct Tq1_0;
#[derive(Clone, Copy)]
pub(crate) struct Tq2_0;
#[derive(Clone, Copy)]
pub(crate) struct Q1_0;
#[derive(Clone, Copy)]
pub(crate) struct Q2_0;

/// Values −1, 0 and 1 in eighths, shifted by an eighth up or down.
const IQ1_SHAPE: Shape = Shape {
    bits: 5,
    center: IQ1_CENTER as i32,
    largest: 9,
    halves: false,
    minimums: false,
};
/// Two bits, minus one.
const TWO_BITS: Shape = Shape {
    bits: 2,
    center: 1,
    largest: 2,
    halves: false,
    minimums: false,
};

impl Quant for Iq1S {
    const WEIGHTS: usize = 256;
    const BYTES: usize = 50;
    /// The scale and the low bits of codes. Then for each stretch: the high bits of four codes, a scale and the
    /// direction of its shift.
    const FIELDS: &[Field] = &[field(0, 2, 2), field(2, 32, 1), field(34, 16, 2)];
    const HALVES: [usize; 2] = [0, 0];
    const SHAPE: Shape = IQ1_SHAPE;
    const CODES: Codes = Codes::Eights(&grids::IQ1, Mark::TwoLess);

    #[inline(always)]
    fn scales(block: &[u8], stretch: usize, halves: &Halves, expanded: &mut Expanded) {
        let words = half_bits(block, 34 + 2 * stretch);
        for row in 0..LANES {
            expanded.scales[0][row] = halves[0][row] * 0.125 * odd(words[row] >> 12);
        }
    }

    #[inline(always)]
    fn entries(block: &[u8], stretch: usize, code: usize) -> [u32; LANES] {
        let (low, words) = (bytes(block, 2, 4 * stretch + code), half_bits(block, 34 + 2 * stretch));
        rows(|row| u32::from(low[row]) | (u32::from(words[row]) >> (3 * code) & 7) << 8)
    }

    #[inline(always)]
    fn marks(block: &[u8], stretch: usize) -> [u32; LANES] {
        let words = half_bits(block, 34 + 2 * stretch);
        rows(|row| (u32::from(words[row]) >> 15).wrapping_neg())
    }

    fn dequantise(block: &[u8], weights: &mut [f32]) {
        for (index, weights) in weights.chunks_exact_mut(8).enumerate() {
            let at = 34 + 2 * (index / 4);
            let word = u16::from_le_bytes([block[at], block[at + 1]]);
            let entry = usize::from(block[2 + index]) | usize::from(word >> (3 * (index % 4)) & 7) << 8;
            write_shifted(half(block, 0) * odd(word >> 12), entry, word >> 15 == 1, weights);
        }
    }
}

impl Quant for Iq1M {
    const WEIGHTS: usize = 256;
    const BYTES: usize = 56;
    /// Low bits of codes, high bits and shifts of two codes in a byte. Arranged: the scale, scales of sixteen weights.
    const FIELDS: &[Field] = &[field(0, 32, 4), field(32, 16, 4), field(48, 2, 2), field(50, 6, 2)];
    const HALVES: [usize; 2] = [48, 48];
    const ARRANGES_HALVES: bool = true;
    const SHAPE: Shape = Shape {
        halves: true,
        ..IQ1_SHAPE
    };
    const CODES: Codes = Codes::Eights(&grids::IQ1, Mark::TwoLess);

    #[inline(always)]
    fn scales(block: &[u8], stretch: usize, halves: &Halves, expanded: &mut Expanded) {
        let [a, b, c] = [50, 52, 54].map(|at| half_bits(block, at));
        let bits = match stretch / 2 {
            0 => rows(|row| first_scales([a[row], b[row], c[row]]).into()),
            1 => rows(|row| a[row].into()),
            2 => rows(|row| b[row].into()),
            _ => rows(|row| c[row].into()),
        };
        for part in 0..2 {
            let shift = 3 * (2 * (stretch % 2) + part);
            for row in 0..LANES {
                expanded.scales[part][row] = halves[0][row] * 0.125 * odd((bits[row] >> shift) as u16);
            }
        }
    }

    #[inline(always)]
    fn entries(block: &[u8], stretch: usize, code: usize) -> [u32; LANES] {
        let (low, words) = (row_words(block, 0, stretch), row_words(block, 32, stretch / 2));
        let shift = 16 * (stretch % 2) + 4 * code;
        rows(|row| low[row] >> (8 * code) & 0xff | (words[row] >> shift & 7) << 8)
    }

    #[inline(always)]
    fn marks(block: &[u8], stretch: usize) -> [u32; LANES] {
        let two = row_words(block, 32, stretch / 2);
        rows(|row| {
            let word = two[row] >> (16 * (stretch % 2));
            let bits = word >> 3 & 1 | (word >> 7 & 1) << 8 | (word >> 11 & 1) << 16 | (word >> 15 & 1) << 24;
            // Each bit, eight times.
            (bits << 8).wrapping_sub(bits)
        })
    }

    fn dequantise(block: &[u8], weights: &mut [f32]) {
        let mut arranged: [u8; 56] = *block.first_chunk().expect("a whole block");
        Iq1M::arrange(&mut arranged);
        let words = [50, 52, 54].map(|at| u16::from_le_bytes([arranged[at], arranged[at + 1]]));
        for (index, weights) in weights.chunks_exact_mut(8).enumerate() {
            let four = block[32 + index / 2] >> (4 * (index % 2));
            let entry = usize::from(block[index]) | usize::from(four & 7) << 8;
            let scale = half(&arranged, 48) * odd(arranged_scale(index / 2, words));
            write_shifted(scale, entry, four >> 3 & 1 == 1, weights);
        }
    }

    /// Joins the scale from the top four bits of four words. Scales of the first word move to the free bits of the
    /// others.
    fn arrange(block: &mut [u8]) {
        let words = words_of(block);
        let scale = (0..4).fold(0, |scale, word| scale | words[word] >> 12 << (4 * word));
        let others = [1, 2, 3].map(|word| words[word] & 0xfff | words[0] >> (4 * (word - 1)) << 12);
        set_words(block, [scale, others[0], others[1], others[2]]);
    }

    fn restore(block: &mut [u8]) {
        let [scale, others @ ..] = words_of(block);
        let first = (0..3).fold(0, |first, word| first | others[word] >> 12 << (4 * word));
        let top = |word: usize| scale >> (4 * word) << 12;
        let [a, b, c] = others.map(|word| word & 0xfff);
        set_words(block, [first | top(0), a | top(1), b | top(2), c | top(3)]);
    }
}

impl Quant for Tq1_0 {
    const WEIGHTS: usize = 256;
    const BYTES: usize = 54;
    /// Five digits to base 3 in a byte, four in the last four bytes.
    const FIELDS: &[Field] = &[field(0, 52, 4), field(52, 2, 2)];
    const HALVES: [usize; 2] = [52, 52];
    const SHAPE: Shape = TWO_BITS;

    #[inline(always)]
    fn scales(_block: &[u8], _stretch: usize, halves: &Halves, expanded: &mut Expanded) {
        expanded.scales[0] = halves[0];
    }

    #[inline(always)]
    fn quants(block: &[u8], stretch: usize, expanded: &mut Expanded) {
        for group in 0..8 {
            let (byte, digit) = trit_at(32 * stretch + 4 * group);
            let bytes = words(block, 0, byte / 4);
            expanded.set(group, |lane| trit(bytes[lane], digit));
        }
    }

    fn dequantise(block: &[u8], weights: &mut [f32]) {
        for (index, weight) in weights.iter_mut().enumerate() {
            let (byte, digit) = trit_at(index);
            *weight = half(block, 52) * f32::from(trit(block[byte], digit).cast_signed() - 1);
        }
    }
}

impl Quant for Tq2_0 {
    const WEIGHTS: usize = 256;
    const BYTES: usize = 66;
    const FIELDS: &[Field] = &[field(0, 64, 4), field(64, 2, 2)];
    const HALVES: [usize; 2] = [64, 64];
    const SHAPE: Shape = TWO_BITS;
    const PIECES: Pieces = side_by_side(0, 2);

    #[inline(always)]
    fn scales(_block: &[u8], _stretch: usize, halves: &Halves, expanded: &mut Expanded) {
        expanded.scales[0] = halves[0];
    }

    fn dequantise(block: &[u8], weights: &mut [f32]) {
        for (index, weight) in weights.iter_mut().enumerate() {
            let quant = block[32 * (index / 128) + index % 32] >> (2 * (index / 32 % 4)) & 3;
            *weight = half(block, 64) * f32::from(quant.cast_signed() - 1);
        }
    }
}

impl Quant for Q1_0 {
    const WEIGHTS: usize = 128;
    const BYTES: usize = 18;
    /// Arranged: bit `b` of byte `p` belongs to weight 16 `b` + `p`.
    const FIELDS: &[Field] = &[field(0, 2, 2), field(2, 16, 4)];
    const HALVES: [usize; 2] = [0, 0];
    const SHAPE: Shape = TWO_BITS;

    #[inline(always)]
    fn scales(_block: &[u8], _stretch: usize, halves: &Halves, expanded: &mut Expanded) {
        expanded.scales[0] = halves[0];
    }

    /// A bit becomes the quant 0 or 2; the center is 1.
    #[inline(always)]
    fn quants(block: &[u8], stretch: usize, expanded: &mut Expanded) {
        for group in 0..8 {
            let bytes = words(block, 2, group % 4);
            let bit = 2 * stretch + group / 4;
            expanded.set(group, |lane| (bytes[lane] >> bit & 1) << 1);
        }
    }

    fn dequantise(block: &[u8], weights: &mut [f32]) {
        let scale = half(block, 0);
        for (index, weight) in weights.iter_mut().enumerate() {
            let is_set = block[2 + index / 8] >> (index % 8) & 1 == 1;
            *weight = if is_set { scale } else { -scale };
        }
    }

    fn arrange(block: &mut [u8]) {
        arrange_parts(&mut block[2..], 1);
    }

    fn restore(block: &mut [u8]) {
        restore_parts(&mut block[2..], 1);
    }
}

impl Quant for Q2_0 {
    const WEIGHTS: usize = 64;
    const BYTES: usize = 18;
    /// Arranged block: bits from 2 `b` on of byte `p` belong to weight 16 `b` + `p`.
    const FIELDS: &[Field] = &[field(0, 2, 2), field(2, 16, 4)];
    const HALVES: [usize; 2] = [0, 0];
    const SHAPE: Shape = TWO_BITS;

    #[inline(always)]
    fn scales(_block: &[u8], _stretch: usize, halves: &Halves, expanded: &mut Expanded) {
        expanded.scales[0] = halves[0];
    }

    #[inline(always)]
    fn quants(block: &[u8], stretch: usize, expanded: &mut Expanded) {
        for group in 0..8 {
            let bytes = words(block, 2, group % 4);
            let shift = 2 * (2 * stretch + group / 4);
            expanded.set(group, |lane| bytes[lane] >> shift & 3);
        }
    }

    fn dequantise(block: &[u8], weights: &mut [f32]) {
        let scale = half(block, 0);
        for (index, weight) in weights.iter_mut().enumerate() {
            let quant = block[2 + index / 4] >> (2 * (index % 4)) & 3;
            *weight = f32::from(quant.cast_signed() - 1) * scale;
        }
    }

    fn arrange(block: &mut [u8]) {
        arrange_parts(&mut block[2..], 2);
    }

    fn restore(block: &mut [u8]) {
        restore_parts(&mut block[2..], 2);
    }
}

/// The odd number 2 · `bits` + 1 of three bits of a scale.
#[inline(always)]
fn odd(bits: u16) -> f32 {
    f32::from(2 * (bits & 7) + 1)
}

/// Writes eight weights of the grid, shifted down or up by an eighth.
fn write_shifted(scale: f32, entry: usize, is_down: bool, weights: &mut [f32]) {
    let shift = if is_down { -0.125 } else { 0.125 };
    for (weight, quant) in weights.iter_mut().zip(grids::IQ1.entries[entry].to_le_bytes()) {
        let whole = (quant - 1).cast_signed() - IQ1_CENTER.cast_signed();
        *weight = scale * (f32::from(whole / 8) + shift);
    }
}

/// Scale `index` of sixteen in an arranged block of IQ1_M: the first four are in the top bits of the words.
#[inline(always)]
fn arranged_scale(index: usize, words: [u16; 3]) -> u16 {
    match index / 4 {
        0 => first_scales(words) >> (3 * index),
        word => words[word - 1] >> (3 * (index % 4)),
    }
}

/// The first four scales.
#[inline(always)]
fn first_scales(words: [u16; 3]) -> u16 {
    words[0] >> 12 | words[1] >> 12 << 4 | words[2] >> 12 << 8
}

/// The last four words of a block of IQ1_M.
fn words_of(block: &[u8]) -> [u16; 4] {
    [48, 50, 52, 54].map(|at| u16::from_le_bytes([block[at], block[at + 1]]))
}

fn set_words(block: &mut [u8], words: [u16; 4]) {
    for (to, word) in block[48..].as_chunks_mut().0.iter_mut().zip(words) {
        *to = word.to_le_bytes();
    }
}

/// The byte and the digit of weight `index` of TQ1_0.
#[inline(always)]
fn trit_at(index: usize) -> (usize, usize) {
    match index {
        0..160 => (index % 32, index / 32),
        160..240 => (32 + index % 16, (index - 160) / 16),
        _ => (48 + index % 4, (index - 240) / 4),
    }
}

/// Base-3 digit `digit` of a byte, which holds 256/243 of the number, first digit on top.
#[inline(always)]
fn trit(byte: u8, digit: usize) -> u8 {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    let rest = byte.wrapping_mul(POWERS[digit]);
    // 3 · rest / 256, rounded down.
    u8::from(rest >= 86) + u8::from(rest >= 171)
}

/// Moves fields of `bits` bits in 16 bytes from the file's order to the order of the arranged block.
fn arrange_parts(block: &mut [u8], bits: usize) {
    move_parts(block, bits, |index| (in_file(bits, index), arranged(index)));
}

/// Undoes [`arrange_parts`].
fn restore_parts(block: &mut [u8], bits: usize) {
    move_parts(block, bits, |index| (arranged(index), in_file(bits, index)));
}

/// The byte of a weight's field, and the field's index in the byte.
type Place = (usize, usize);

fn in_file(bits: usize, index: usize) -> Place {
    (index / (8 / bits), index % (8 / bits))
}

fn arranged(index: usize) -> Place {
    (index % 16, index / 16)
}

fn move_parts(block: &mut [u8], bits: usize, from_and_to: impl Fn(usize) -> (Place, Place)) {
    let source: [u8; 16] = *block.first_chunk().expect("a whole block");
    block.fill(0);
    for index in 0..16 * 8 / bits {
        let ((from, shift), (to, place)) = from_and_to(index);
        let part = source[from] >> (bits * shift) & ((1 << bits) - 1);
        block[to] |= part << (bits * place);
    }
}
