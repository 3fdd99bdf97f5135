//! Blocks of quants with one binary32 scale and minimum: the form of other programs' groups after conversion.

use super::expanded::{Expanded, Halves, row_words, words};
use super::plain_blocks::{nibble, nibbles};
use super::{Field, Quant, STRETCH, Shape, field};

/// The scale, the minimum, then quants of 4 or 8 bits; weight = scale · (quant − center) − minimum.
#[derive(Clone, Copy)]
pub(crate) struct Group<const BITS: usize, const WEIGHTS: usize>;

const HEAD_BYTES: usize = 8;

impl<const BITS: usize, const WEIGHTS: usize> Group<BITS, WEIGHTS> {
    const CODE_BYTES: usize = WEIGHTS * BITS / 8;
    const STRETCH_BYTES: usize = STRETCH * BITS / 8;
}

impl<const BITS: usize, const WEIGHTS: usize> Quant for Group<BITS, WEIGHTS> {
    const WEIGHTS: usize = WEIGHTS;
    const BYTES: usize = HEAD_BYTES + Self::CODE_BYTES;
    const FIELDS: &[Field] = &[field(0, 4, 4), field(4, 4, 4), field(HEAD_BYTES, Self::CODE_BYTES, 4)];
    const HALVES: [usize; 2] = [0, 0];
    const SHAPE: Shape = match BITS {
        4 => Shape::with_minimums(4),
        _ => Shape {
            minimums: true,
            ..Shape::bytes()
        },
    };

    #[inline(always)]
    fn scales(block: &[u8], _stretch: usize, _halves: &Halves, expanded: &mut Expanded) {
        expanded.scales[0] = row_words(block, 0, 0).map(f32::from_bits);
        expanded.minimums[0] = row_words(block, 4, 0).map(f32::from_bits);
    }

    #[inline(always)]
    fn quants(block: &[u8], stretch: usize, expanded: &mut Expanded) {
        let offset = HEAD_BYTES + stretch * Self::STRETCH_BYTES;
        if BITS == 4 {
            return nibbles(block, offset, expanded);
        }
        for group in 0..STRETCH / 4 {
            expanded.quants[group] = *words(block, offset, group);
        }
    }

    fn dequantise(block: &[u8], weights: &mut [f32]) {
        let [scale, minimum] = Self::numbers(block);
        let codes = block[HEAD_BYTES..].chunks_exact(Self::STRETCH_BYTES);
        for (weights, codes) in weights.chunks_exact_mut(STRETCH).zip(codes) {
            for (index, weight) in weights.iter_mut().enumerate() {
                let quant = if BITS == 4 { nibble(codes, index) } else { codes[index] };
                *weight = (i32::from(quant) - Self::SHAPE.center) as f32 * scale - minimum;
            }
        }
    }

    fn numbers(block: &[u8]) -> [f32; 2] {
        let number = |at: usize| f32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
        [number(0), number(4)]
    }
}
