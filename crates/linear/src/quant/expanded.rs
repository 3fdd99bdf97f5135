//! A stretch of 16 rows unpacked to bytes, the form that every tile reads.

use super::STRETCH;
use crate::LANES;
use crate::half::f16_to_f32;

/// 32 weights of 16 rows: weight = scale · (quant − center) − min.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Expanded {
    /// `[weight / 4, row, weight % 4]`: a word holds four weights of a row, in the order of dot-product instructions.
    pub(crate) quants: [[u8; 4 * LANES]; STRETCH / 4],
    /// `[half, row]`; formats with one scale per 32 weights use the first.
    pub(crate) scales: [[f32; LANES]; 2],
    /// `[half, row]`, unused by formats without minimums.
    pub(crate) minimums: [[f32; LANES]; 2],
}

impl Default for Expanded {
    fn default() -> Expanded {
        Expanded {
            quants: [[0; 4 * LANES]; STRETCH / 4],
            scales: [[0.0; LANES]; 2],
            minimums: [[0.0; LANES]; 2],
        }
    }
}

impl Expanded {
    /// Sets group `group` of quants byte by byte.
    #[inline(always)]
    pub(crate) fn set(&mut self, group: usize, quant: impl Fn(usize) -> u8) {
        for (lane, to) in self.quants[group].iter_mut().enumerate() {
            *to = quant(lane);
        }
    }
}

/// Four weights of 16 rows: word `index` of the field at byte `offset` of a row's block.
#[inline(always)]
pub(crate) fn words(block: &[u8], offset: usize, index: usize) -> &[u8; 4 * LANES] {
    array(&block[LANES * offset + 4 * LANES * index..])
}

/// Word `index` of 16 rows, of a field interleaved by words.
#[inline(always)]
pub(crate) fn row_words(block: &[u8], offset: usize, index: usize) -> [u32; LANES] {
    let words = words(block, offset, index).as_chunks().0;
    rows(|row| u32::from_le_bytes(words[row]))
}

/// A number for each of 16 rows. A loop, because the compiler does not inline [`core::array::from_fn`].
#[inline(always)]
pub(crate) fn rows(number: impl Fn(usize) -> u32) -> [u32; LANES] {
    let mut numbers = [0; LANES];
    for (row, to) in numbers.iter_mut().enumerate() {
        *to = number(row);
    }
    numbers
}

/// Byte `index` of 16 rows, of a field interleaved by bytes.
#[inline(always)]
pub(crate) fn bytes(block: &[u8], offset: usize, index: usize) -> &[u8; LANES] {
    array(&block[LANES * (offset + index)..])
}

/// The widened binary16 numbers of a block of 16 rows: scales, and minimums or the scales again.
pub(crate) type Halves = [[f32; LANES]; 2];

/// The bits of a binary16 for each of 16 rows.
#[inline(always)]
pub(crate) fn half_bits(block: &[u8], offset: usize) -> [u16; LANES] {
    let pairs: &[u8; 2 * LANES] = array(&block[LANES * offset..]);
    let mut bits = [0; LANES];
    for (row, to) in bits.iter_mut().enumerate() {
        *to = u16::from_le_bytes([pairs[2 * row], pairs[2 * row + 1]]);
    }
    bits
}

/// The widened binary16 number at `offset` of a block.
pub(crate) fn half(block: &[u8], offset: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([block[offset], block[offset + 1]]))
}

#[inline(always)]
fn array<const COUNT: usize>(bytes: &[u8]) -> &[u8; COUNT] {
    bytes.first_chunk().expect("a block is as long as its fields")
}
