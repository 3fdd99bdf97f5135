//! Blocks of 32 weights: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.

use super::expanded::{Expanded, Halves, half, words};
use super::{Field, Quant, Shape, field};

#[derive(Clone, Copy)]
pub(crate) struct Q4_0;
#[derive(Clone, Copy)]
pub(crate) struct Q4_1;
#[derive(Clone, Copy)]
pub(crate) struct Q5_0;
#[derive(Clone, Copy)]
pub(crate) struct Q5_1;
#[derive(Clone, Copy)]
pub(crate) struct Q8_0;

impl Quant for Q4_0 {
    const WEIGHTS: usize = 32;
    const BYTES: usize = 18;
    const FIELDS: &[Field] = &[field(0, 2, 2), field(2, 16, 4)];
    const HALVES: [usize; 2] = [0, 0];
    const SHAPE: Shape = Shape::centered(4);

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
            *weight = f32::from(i16::from(nibble(&block[2..], index)) - 8) * scale;
        }
    }
}

impl Quant for Q4_1 {
    const WEIGHTS: usize = 32;
    const BYTES: usize = 20;
    const FIELDS: &[Field] = &[field(0, 2, 2), field(2, 2, 2), field(4, 16, 4)];
    const HALVES: [usize; 2] = [0, 2];
    const SHAPE: Shape = Shape::with_minimums(4);

    #[inline(always)]
    fn scales(_block: &[u8], _stretch: usize, halves: &Halves, expanded: &mut Expanded) {
        expanded.scales[0] = halves[0];
        expanded.minimums[0] = halves[1].map(|offset| -offset);
    }

    #[inline(always)]
    fn quants(block: &[u8], _stretch: usize, expanded: &mut Expanded) {
        nibbles(block, 4, expanded);
    }

    fn dequantise(block: &[u8], weights: &mut [f32]) {
        let (scale, offset) = (half(block, 0), half(block, 2));
        for (index, weight) in weights.iter_mut().enumerate() {
            *weight = f32::from(nibble(&block[4..], index)) * scale + offset;
        }
    }
}

impl Quant for Q5_0 {
    const WEIGHTS: usize = 32;
    const BYTES: usize = 22;
    const FIELDS: &[Field] = &[field(0, 2, 2), field(2, 4, 4), field(6, 16, 4)];
    const HALVES: [usize; 2] = [0, 0];
    const SHAPE: Shape = Shape::centered(5);

    #[inline(always)]
    fn scales(_block: &[u8], _stretch: usize, halves: &Halves, expanded: &mut Expanded) {
        expanded.scales[0] = halves[0];
    }

    #[inline(always)]
    fn quants(block: &[u8], _stretch: usize, expanded: &mut Expanded) {
        nibbles_and_bits(block, 6, 2, expanded);
    }

    fn dequantise(block: &[u8], weights: &mut [f32]) {
        let scale = half(block, 0);
        for (index, weight) in weights.iter_mut().enumerate() {
            let quant = nibble(&block[6..], index) | fifth_bit(&block[2..], index) << 4;
            *weight = f32::from(i16::from(quant) - 16) * scale;
        }
    }

    fn arrange(block: &mut [u8]) {
        arrange_bits(&mut block[2..6]);
    }

    fn restore(block: &mut [u8]) {
        restore_bits(&mut block[2..6]);
    }
}

impl Quant for Q5_1 {
    const WEIGHTS: usize = 32;
    const BYTES: usize = 24;
    const FIELDS: &[Field] = &[field(0, 2, 2), field(2, 2, 2), field(4, 4, 4), field(8, 16, 4)];
    const HALVES: [usize; 2] = [0, 2];
    const SHAPE: Shape = Shape::with_minimums(5);

    #[inline(always)]
    fn scales(_block: &[u8], _stretch: usize, halves: &Halves, expanded: &mut Expanded) {
        expanded.scales[0] = halves[0];
        expanded.minimums[0] = halves[1].map(|offset| -offset);
    }

    #[inline(always)]
    fn quants(block: &[u8], _stretch: usize, expanded: &mut Expanded) {
        nibbles_and_bits(block, 8, 4, expanded);
    }

    fn dequantise(block: &[u8], weights: &mut [f32]) {
        let (scale, offset) = (half(block, 0), half(block, 2));
        for (index, weight) in weights.iter_mut().enumerate() {
            let quant = nibble(&block[8..], index) | fifth_bit(&block[4..], index) << 4;
            *weight = f32::from(quant) * scale + offset;
        }
    }

    fn arrange(block: &mut [u8]) {
        arrange_bits(&mut block[4..8]);
    }

    fn restore(block: &mut [u8]) {
        restore_bits(&mut block[4..8]);
    }
}

impl Quant for Q8_0 {
    const WEIGHTS: usize = 32;
    const BYTES: usize = 34;
    const FIELDS: &[Field] = &[field(0, 2, 2), field(2, 32, 4)];
    const HALVES: [usize; 2] = [0, 0];
    const SHAPE: Shape = Shape::bytes();

    #[inline(always)]
    fn scales(_block: &[u8], _stretch: usize, halves: &Halves, expanded: &mut Expanded) {
        expanded.scales[0] = halves[0];
    }

    #[inline(always)]
    fn quants(block: &[u8], _stretch: usize, expanded: &mut Expanded) {
        for group in 0..8 {
            let signed = words(block, 2, group);
            expanded.set(group, |lane| signed[lane] ^ 0x80);
        }
    }

    fn dequantise(block: &[u8], weights: &mut [f32]) {
        let scale = half(block, 0);
        for (weight, quant) in weights.iter_mut().zip(&block[2..]) {
            *weight = f32::from(quant.cast_signed()) * scale;
        }
    }
}

/// 16 bytes of a row hold weights 0 to 15 in their low halves and 16 to 31 in their high halves.
#[inline(always)]
pub(super) fn nibbles(block: &[u8], offset: usize, expanded: &mut Expanded) {
    for group in 0..4 {
        let pairs = words(block, offset, group);
        expanded.set(group, |lane| pairs[lane] & 15);
        expanded.set(group + 4, |lane| pairs[lane] >> 4);
    }
}

/// As [`nibbles`], with a fifth bit from an arranged word: bit g of byte p belongs to weight 4 g + p.
#[inline(always)]
fn nibbles_and_bits(block: &[u8], offset: usize, bits_offset: usize, expanded: &mut Expanded) {
    let bits = words(block, bits_offset, 0);
    for group in 0..4 {
        let pairs = words(block, offset, group);
        expanded.set(group, |lane| pairs[lane] & 15 | (bits[lane] >> group & 1) << 4);
        expanded.set(group + 4, |lane| {
            pairs[lane] >> 4 | (bits[lane] >> (group + 4) & 1) << 4
        });
    }
}

pub(super) fn nibble(pairs: &[u8], index: usize) -> u8 {
    pairs[index % 16] >> (4 * (index / 16)) & 15
}

fn fifth_bit(bits: &[u8], index: usize) -> u8 {
    bits[index / 8] >> (index % 8) & 1
}

/// Moves bit 4 g + p of a word, the file's order, to bit g of byte p.
fn arrange_bits(word: &mut [u8]) {
    move_bits(word, |group, place| (4 * group + place, 8 * place + group));
}

/// Undoes [`arrange_bits`].
fn restore_bits(word: &mut [u8]) {
    move_bits(word, |group, place| (8 * place + group, 4 * group + place));
}

fn move_bits(word: &mut [u8], from_and_to: impl Fn(usize, usize) -> (usize, usize)) {
    let source = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
    let mut result = 0;
    for group in 0..8 {
        for place in 0..4 {
            let (from, to) = from_and_to(group, place);
            result |= (source >> from & 1) << to;
        }
    }
    word.copy_from_slice(&result.to_le_bytes());
}
