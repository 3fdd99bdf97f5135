mod scorer;
#[cfg(test)]
mod tests;

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use crate::error::expect_equal;
use crate::half::{f16_to_f32, f32_to_f16};
use crate::kernel::{GROUP, Line, SEGMENT, STRIPE, SignGroup, UNIT, byte_of};
use crate::{AttendError, rotate_heads};

pub use scorer::SignScorer;

/// An index of keys with one bit per element.
///
/// Keys are rotated by [`rotate_heads`]. The mean of every [`SEGMENT`](Self::SEGMENT) keys is subtracted and stored in
/// f16. The index stores the signs of the remainders, and a scale in f16 with the least squared error: the mean
/// magnitude of the remainder's elements. A key of 128 elements takes 22 bytes, compared with 256 bytes in f16.
///
/// A segment enters the index whole, so the bits of an index follow from the keys alone. A clone shares the memory of
/// the keys in whole groups of 1,024, and copies the last group when it grows.
///
/// Signs of rotated vectors as in RaBitQ (Gao and Long 2024, arXiv:2405.12497); signs of keys as an index as in
/// Self-Indexing Attention (arXiv:2609.13205); sums by byte shuffles as in FAISS's fast scan.
///
/// ```
/// # use riffle_attention::*;
/// # let noise = |count: usize| (0..count).map(|n| ((n * n + 7 * n) % 201) as f32 / 100.0 - 1.0).collect::<Vec<f32>>();
/// let mut keys: Vec<f32> = noise(2 * SignIndex::SEGMENT * 32);
/// let query: Vec<f32> = keys[20 * 32..21 * 32].to_vec();
/// let mut index = SignIndex::default();
/// index.push(&mut keys[..SignIndex::SEGMENT * 32], 32)?;
/// index.push(&mut keys[SignIndex::SEGMENT * 32..], 32)?;
/// let queries = QueryTile { data: &query, rows: 1, row_stride: 32, group: 1, head_dim: 32, start: 200 };
/// let mut scorer = SignScorer::default();
/// scorer.run(&queries, &index, &AttendOptions::new(1.0))?;
/// // Key 20 is in the second unit of 16 keys.
/// let row = scorer.row(0);
/// assert!((0..8).all(|unit| row[unit] <= row[1]));
/// # Ok::<(), AttendError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct SignIndex {
    head_dim: usize,
    tokens: usize,
    groups: Vec<Arc<SignGroup>>,
}

/// The places of a key in its group.
struct Place {
    /// Vector and lane of the scale.
    scale: [usize; 2],
    /// The vectors that have a byte of signs.
    signs: Range<usize>,
    byte: usize,
}

impl SignIndex {
    /// Keys of a segment: they share a mean and enter the index together.
    pub const SEGMENT: usize = SEGMENT;

    /// Keys of a unit; [`SignScorer`] returns the largest estimate of each unit.
    pub const UNIT: usize = UNIT;

    /// Number of keys in the index, a multiple of [`SEGMENT`](Self::SEGMENT).
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Elements of a key; 0 for an empty index.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Bytes of the index per key of `head_dim` elements.
    pub fn bytes_per_token(head_dim: usize) -> f64 {
        head_dim as f64 / 8.0 + 2.0 + 2.0 * head_dim as f64 / SEGMENT as f64
    }

    /// Adds the next [`SEGMENT`](Self::SEGMENT) keys, `[SEGMENT, head_dim]`. Overwrites them as scratch.
    ///
    /// # Errors
    /// A width that is no multiple of 16 or differs from the earlier keys' width; another number of keys.
    pub fn push(&mut self, keys: &mut [f32], head_dim: usize) -> Result<(), AttendError> {
        crate::format::check_head_dim(head_dim)?;
        if self.tokens == 0 {
            *self = Self {
                head_dim,
                ..Self::default()
            };
        }
        expect_equal("head_dim of keys and of the index", self.head_dim, head_dim)?;
        expect_equal("keys and a segment", SEGMENT * head_dim, keys.len())?;
        rotate_heads(keys, head_dim);
        let (group, lane) = self.next_segment();
        let mean = push_mean(group, lane, keys);
        for (n, key) in keys.chunks_exact_mut(head_dim).enumerate() {
            key.iter_mut().zip(&mean).for_each(|(key, mean)| *key -= mean);
            write_signs(group, &place(lane * SEGMENT + n, head_dim), key);
        }
        self.tokens += SEGMENT;
        Ok(())
    }

    /// Removes segments with keys at or after `tokens`.
    pub fn truncate(&mut self, tokens: usize) {
        self.tokens = self.tokens.min(tokens / SEGMENT * SEGMENT);
        self.groups.truncate(self.tokens.div_ceil(GROUP));
    }

    /// The index as bytes for [`from_bytes`](Self::from_bytes): the width of a key, then each segment's means, scales
    /// and signs, in the order of the keys. They are the same on every machine. An empty index has no bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        if self.tokens == 0 {
            return Vec::new();
        }
        let mut bytes = Vec::with_capacity(8 + self.tokens / SEGMENT * segment_bytes(self.head_dim));
        bytes.extend((self.head_dim as u64).to_le_bytes());
        for first in (0..self.tokens).step_by(SEGMENT) {
            let (group, in_group) = (&self.groups[first / GROUP], first % GROUP);
            let means = group.means.iter();
            bytes.extend(means.flat_map(|means| means[in_group / SEGMENT].to_le_bytes()));
            for token in in_group..in_group + SEGMENT {
                let place = place(token, self.head_dim);
                bytes.extend(group.scales[place.scale[0]][place.scale[1]].to_le_bytes());
                bytes.extend(group.signs[place.signs].iter().map(|signs| signs.0[place.byte]));
            }
        }
        bytes
    }

    /// Restores an index from the bytes of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    /// Bytes that are no index, by their number or by the width of a key.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, AttendError> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        let (head_dim, rest) = bytes.split_first_chunk().unwrap_or((&[0; 8], &[]));
        let head_dim = usize::try_from(u64::from_le_bytes(*head_dim)).unwrap_or(usize::MAX);
        crate::format::check_head_dim(head_dim)?;
        // A width beyond the bytes would overflow the sizes below.
        let whole = head_dim.min(rest.len());
        expect_equal("the width of a key and its bytes", head_dim, whole)?;
        let segment_bytes = segment_bytes(head_dim);
        let segments = rest.len() / segment_bytes;
        expect_equal("bytes and segments", segments * segment_bytes, rest.len())?;
        let mut index = Self {
            head_dim,
            ..Self::default()
        };
        for bytes in rest.chunks_exact(segment_bytes) {
            let (group, lane) = index.next_segment();
            let (means, keys) = bytes.split_at(2 * head_dim);
            for (stored, mean) in group.means.iter_mut().zip(means.as_chunks().0) {
                stored[lane] = u16::from_le_bytes(*mean);
            }
            for (n, key) in keys.chunks_exact(2 + head_dim / 8).enumerate() {
                let place = place(lane * SEGMENT + n, head_dim);
                group.scales[place.scale[0]][place.scale[1]] = u16::from_le_bytes([key[0], key[1]]);
                for (signs, byte) in group.signs[place.signs].iter_mut().zip(&key[2..]) {
                    signs.0[place.byte] = *byte;
                }
            }
            index.tokens += SEGMENT;
        }
        Ok(index)
    }

    /// The group of the next segment, with room for it, and the segment's number there.
    fn next_segment(&mut self) -> (&mut SignGroup, usize) {
        let (number, token) = (self.tokens / GROUP, self.tokens % GROUP);
        if number == self.groups.len() {
            self.groups.push(Arc::default());
        }
        let group = Arc::make_mut(&mut self.groups[number]);
        let stripes = token / STRIPE + 1;
        group
            .signs
            .resize(stripes * STRIPE / 64 * self.head_dim / 8, Line([0; 64]));
        group.scales.resize(stripes * UNIT, [0; 16]);
        group.means.resize(self.head_dim, [0; 16]);
        (group, token / SEGMENT)
    }
}

/// The place of key `token` of a group.
fn place(token: usize, head_dim: usize) -> Place {
    let (stripe, unit, number) = (token / STRIPE, token % STRIPE / UNIT, token % UNIT);
    let vectors = head_dim / 8;
    let first = (4 * stripe + number / 4) * vectors;
    Place {
        scale: [stripe * UNIT + number, unit],
        signs: first..first + vectors,
        byte: byte_of(number, unit),
    }
}

/// Stores the mean of a segment and returns it in its rounded form.
fn push_mean(group: &mut SignGroup, lane: usize, keys: &[f32]) -> Vec<f32> {
    let mut mean = vec![0.0f32; group.means.len()];
    for key in keys.chunks_exact(mean.len()) {
        mean.iter_mut().zip(key).for_each(|(sum, key)| *sum += key);
    }
    for (mean, stored) in mean.iter_mut().zip(&mut group.means) {
        stored[lane] = finite_f16(*mean / SEGMENT as f32);
        *mean = f16_to_f32(stored[lane]);
    }
    mean
}

/// Stores the signs and the scale of a centred key.
fn write_signs(group: &mut SignGroup, place: &Place, key: &[f32]) {
    // Sums in lanes, which the compiler adds together, in an order that is the same on every machine.
    let mut magnitudes = [0.0f32; 8];
    let signs = &mut group.signs[place.signs.clone()];
    for (signs, eight) in signs.iter_mut().zip(key.as_chunks::<8>().0) {
        (0..8).for_each(|n| magnitudes[n] += eight[n].abs());
        signs.0[place.byte] = pack(&eight.map(|value| u8::from(value >= 0.0)));
    }
    let magnitude: f32 = magnitudes.iter().sum();
    group.scales[place.scale[0]][place.scale[1]] = finite_f16(magnitude / key.len() as f32);
}

/// Eight numbers 0 or 1 as the bits of one byte, the first as the lowest bit.
fn pack(bits: &[u8; 8]) -> u8 {
    // The product moves the bit of byte n to place 56 + n, and no sum has a carry.
    (u64::from_le_bytes(*bits).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
}

/// Bytes of a segment's means, scales and signs.
fn segment_bytes(head_dim: usize) -> usize {
    2 * head_dim + SEGMENT * (2 + head_dim / 8)
}

/// Rounds to f16; larger numbers become the largest f16.
fn finite_f16(value: f32) -> u16 {
    const MOST: f32 = 65504.0;
    f32_to_f16(value.clamp(-MOST, MOST))
}
