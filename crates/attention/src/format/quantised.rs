//! Integer formats with an f16 scale per 32 elements of a token; the last block of a head may be 16 wide.
//!
//! A stripe of 16 tokens with elements of `b` bits, unsigned by an offset:
//! - keys, per block: 16 scales, then for every eight dimensions `16 · b` bytes;
//! - values: scales `[blocks, 16]`, then per block `2 · b · width` bytes.
//!
//! Each format defines its own bit order within a block ([`Quant::get`]).

use alloc::vec::Vec;
use core::marker::PhantomData;
use core::ops::Range;

use super::{F32, PlaneFormat, PlaneKind, QUANT_BLOCK, Reading, Rows, ScoreTile};
use crate::LANES;
use crate::half::{f16_to_f32, f32_to_f16};
use crate::kernel::{
    AccumulateInt8, AccumulateQuantised, ByteKeys, FetchTokens, Gather, GatherQuantised, PairKeys, PairValues,
    QuantisedTile, ScoreInt8, WeighedRows, widen_quantised_keys, widen_quantised_values,
};
use crate::rounded::Rounding;
use crate::simd::{Level, Simd};

/// An element of a block.
#[derive(Clone, Copy)]
pub(crate) struct ElementPlace {
    pub(crate) kind: PlaneKind,
    /// Dimension within the block.
    pub(crate) d: usize,
    /// Lane of the token within its stripe.
    pub(crate) lane: usize,
    /// Dimensions of the block.
    pub(crate) width: usize,
}

impl ElementPlace {
    /// Byte of the element. Four bytes are shared by `together` dimensions of keys, or tokens of values.
    #[inline]
    pub(crate) fn byte(self, together: usize) -> usize {
        let Self { kind, d, lane, width } = self;
        match kind {
            PlaneKind::Keys => d / together * 4 * LANES + 4 * lane + d % 4,
            PlaneKind::Values => lane / together * 4 * width + 4 * d + lane % 4,
        }
    }

    /// True for the last four of eight dimensions of keys, or tokens of values.
    #[inline]
    pub(crate) fn is_upper_half(self) -> bool {
        match self.kind {
            PlaneKind::Keys => self.d % 8 >= 4,
            PlaneKind::Values => self.lane % 8 >= 4,
        }
    }
}

/// Integers of a few bits, and their layout in a block.
pub(crate) trait Quant {
    /// Bits of an element.
    const BITS: usize;
    /// The stored integer that represents zero.
    const OFFSET: i32;
    /// See [`PlaneFormat::GAINS_BY_ROTATION`].
    const GAINS_BY_ROTATION: bool;

    /// Scale of a block, before rounding to f16.
    fn scale(block: &[f32]) -> f32;
    /// Stored integer of an element that was divided by its scale.
    fn code(scaled: f32) -> u8;

    /// An element of a block.
    fn get(block: &[u8], place: ElementPlace) -> u8;
    /// Changes one element of a block.
    fn set(block: &mut [u8], place: ElementPlace, code: u8);

    /// Eight dimensions of 16 keys from their `16 · BITS` bytes: two vectors, each with four consecutive bytes per
    /// key.
    fn eight_dimensions<S: Simd>(simd: S, bytes: &[u8]) -> [S::B; 2];
    /// Columns `16·n..` of a block of `16·N` columns for tokens `4·four..`: four consecutive bytes per column.
    fn four_tokens<S: Simd, const N: usize>(simd: S, block: &[u8], four: usize, n: usize) -> S::B;

    /// Converts the integers to factors of an integer product.
    #[inline(always)]
    fn factors<S: Simd>(simd: S, bytes: S::B) -> S::Factors {
        if Self::BITS < 8 {
            simd.small_factors(bytes)
        } else {
            simd.factors(bytes)
        }
    }

    /// Correction per unit of the other factor: [`factors`](Self::factors) still contain the [`OFFSET`](Self::OFFSET)
    /// or a part of it.
    #[inline(always)]
    fn bias<S: Simd>() -> i32 {
        if Self::BITS < 8 {
            -Self::OFFSET
        } else {
            S::FACTOR_BIAS - Self::OFFSET
        }
    }
}

/// The ranges of the 16 scales and of the integers of a block in a stripe.
#[inline(always)]
fn parts_of<Q: Quant>(kind: PlaneKind, head_dim: usize, block: usize) -> (Range<usize>, Range<usize>) {
    let (scales, codes) = (2 * LANES, 2 * Q::BITS * QUANT_BLOCK);
    let width = (head_dim - block * QUANT_BLOCK).min(QUANT_BLOCK);
    let (scales_at, codes_at) = match kind {
        PlaneKind::Keys => (block * (scales + codes), block * (scales + codes) + scales),
        PlaneKind::Values => (block * scales, head_dim.div_ceil(QUANT_BLOCK) * scales + block * codes),
    };
    (scales_at..scales_at + scales, codes_at..codes_at + 2 * Q::BITS * width)
}

/// The 16 scales and the integers of a block of a stripe.
#[inline(always)]
pub(crate) fn block_of<Q: Quant>(kind: PlaneKind, stripe: &[u8], head_dim: usize, block: usize) -> (&[u8; 32], &[u8]) {
    let (scales, codes) = parts_of::<Q>(kind, head_dim, block);
    let scales = stripe[scales].first_chunk().expect("a block has 16 scales");
    (scales, &stripe[codes])
}

/// Bytes of a stripe.
#[inline(always)]
pub(crate) fn stripe_bytes<Q: Quant>(head_dim: usize) -> usize {
    2 * LANES * head_dim.div_ceil(QUANT_BLOCK) + 2 * Q::BITS * head_dim
}

/// The plane format of integers `Q`.
pub(crate) struct Quantised<Q>(PhantomData<Q>);

impl<Q: Quant> PlaneFormat for Quantised<Q> {
    type Raw = u8;

    const IS_QUANTISED: bool = true;
    const GAINS_BY_ROTATION: bool = Q::GAINS_BY_ROTATION;

    fn plane_len(tokens: usize, head_dim: usize) -> usize {
        tokens * (head_dim * Q::BITS / 8 + 2 * head_dim.div_ceil(QUANT_BLOCK))
    }

    fn write(kind: PlaneKind, plane: &mut [u8], slot: usize, row: Rows<'_>, buffer: &mut Vec<f32>) {
        let row = row.widened(row.len(), buffer);
        let (lane, len) = (slot % LANES, stripe_bytes::<Q>(row.len()));
        let stripe = &mut plane[slot / LANES * len..][..len];
        for (b, block) in row.chunks(QUANT_BLOCK).enumerate() {
            let (scales, codes) = parts_of::<Q>(kind, row.len(), b);
            let scale = f32_to_f16(Q::scale(block));
            stripe[scales][2 * lane..][..2].copy_from_slice(&scale.to_le_bytes());
            // Uses the stored scale, so that the integers match it.
            let scale = f16_to_f32(scale);
            let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
            let (codes, width) = (&mut stripe[codes], block.len());
            for (d, value) in block.iter().enumerate() {
                Q::set(codes, ElementPlace { kind, d, lane, width }, Q::code(value * inverse));
            }
        }
    }

    fn write_stripe(_: &mut [u8], _: Rows<'_>, _: usize) -> bool {
        false
    }

    fn read(kind: PlaneKind, plane: &[u8], slot: usize, row: &mut [f32]) {
        let (head_dim, lane, len) = (row.len(), slot % LANES, stripe_bytes::<Q>(row.len()));
        let stripe = &plane[slot / LANES * len..][..len];
        for (b, block) in row.chunks_mut(QUANT_BLOCK).enumerate() {
            let (scales, codes) = parts_of::<Q>(kind, head_dim, b);
            let scale = &stripe[scales][2 * lane..];
            let scale = f16_to_f32(u16::from_le_bytes([scale[0], scale[1]]));
            let (codes, width) = (&stripe[codes], block.len());
            for (d, value) in block.iter_mut().enumerate() {
                let code = Q::get(codes, ElementPlace { kind, d, lane, width });
                *value = (i32::from(code) - Q::OFFSET) as f32 * scale;
            }
        }
    }

    fn copy(kind: PlaneKind, to: &mut [u8], from: &[u8], lanes: Range<usize>, head_dim: usize) {
        for b in 0..head_dim.div_ceil(QUANT_BLOCK) {
            let (scales, codes) = parts_of::<Q>(kind, head_dim, b);
            let scales = scales.start + 2 * lanes.start..scales.start + 2 * lanes.end;
            to[scales.clone()].copy_from_slice(&from[scales]);
            let (to, from) = (&mut to[codes.clone()], &from[codes]);
            let width = (head_dim - b * QUANT_BLOCK).min(QUANT_BLOCK);
            for lane in lanes.clone() {
                for d in 0..width {
                    let place = ElementPlace { kind, d, lane, width };
                    Q::set(to, place, Q::get(from, place));
                }
            }
        }
    }

    #[inline(always)]
    fn widen_keys<S: Simd>(simd: S, stripe: &[u8], head_dim: usize, out: &mut [[f32; 16]]) {
        widen_quantised_keys::<S, Q>(simd, stripe, head_dim, out);
    }

    #[inline(always)]
    fn widen_values<S: Simd>(simd: S, stripe: &[u8], tokens: usize, head_dim: usize, out: &mut [[f32; 16]]) {
        widen_quantised_values::<S, Q>(simd, stripe, tokens, head_dim, out);
    }

    fn reads_in_place(kind: PlaneKind, reading: Reading) -> bool {
        reading.is_fused && (kind == PlaneKind::Values || reading.level.int8_dot())
    }

    fn score<const R: usize>(tile: ScoreTile<'_, R>, keys: &[u8]) {
        let head_dim = tile.queries.len();
        let (integers, before) = tile.integers;
        tile.level.run(ScoreInt8::<Q, R> {
            queries: integers.tile(before, R, head_dim),
            keys,
            ahead: tile.ahead,
            slots: tile.slots,
            head_dim,
            scores: tile.scores,
            format: PhantomData,
        });
    }

    fn accumulate<const R: usize>(level: Level, rows: WeighedRows<'_, R>, values: &[u8]) {
        let tile = QuantisedTile::<Q, R> {
            rows,
            values,
            format: PhantomData,
        };
        if level.int8_dot() {
            level.run(AccumulateInt8(tile));
        } else {
            level.run(AccumulateQuantised(tile));
        }
    }

    fn fetch(level: Level, tokens: &[usize], values: &[u8], head_dim: usize) {
        level.run(FetchTokens {
            values,
            tokens,
            head_dim,
            quantised: Some((2 * LANES * head_dim.div_ceil(QUANT_BLOCK), 2 * Q::BITS)),
        });
    }

    fn gather<const R: usize>(level: Level, list: Gather<'_, R>, values: &[u8]) {
        level.run(GatherQuantised::<Q, R> {
            list,
            values,
            format: PhantomData,
        });
    }

    fn round_keys(task: &Rounding<'_>, keys: &[u8], buffer: &mut Vec<f32>, out: &mut PairKeys) {
        task.keys::<F32>(task.widened_keys::<Self>(keys, buffer), out);
    }

    fn round_values(task: &Rounding<'_>, values: &[u8], buffer: &mut Vec<f32>, out: &mut PairValues) {
        task.values::<F32>(task.widened_values::<Self>(values, buffer), out);
    }

    fn take_bytes(keys: &[u8], stripes: usize, head_dim: usize, out: &mut ByteKeys) -> bool {
        if Q::BITS == 8 {
            out.take(keys, stripes, head_dim);
        }
        Q::BITS == 8
    }
}

/// Rounds to nearest, ties to even, for |x| < 2^22; `f32::round` is not in `core`.
pub(super) fn round(x: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0;
    (x + MAGIC) - MAGIC
}
