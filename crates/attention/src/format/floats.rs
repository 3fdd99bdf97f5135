//! Formats of plain floats: keys `[tokens / 16, head_dim, 16]`, values `[tokens, head_dim]`.

use alloc::vec::Vec;
use core::marker::PhantomData;
use core::ops::Range;

use super::{PlaneFormat, PlaneKind, Reading, Rows, ScoreTile};
use crate::LANES;
use crate::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::kernel::{
    Accumulate, ByteKeys, FetchRows, FetchTokens, Gather, GatherRows, Pack, PairKeys, PairValues, StripeRows,
    WeighedRows, score,
};
use crate::rounded::Rounding;
use crate::simd::{Level, Simd};

/// A stored float type.
pub(crate) trait Element: Sized {
    type Raw: Copy + 'static;

    /// True if elements are already f32, so that widening is unnecessary.
    const IS_WIDE: bool = false;

    fn load<S: Simd>(simd: S, x: &[Self::Raw; 16]) -> S::V;
    fn of_f32(value: f32) -> Self::Raw;
    fn to_f32(raw: Self::Raw) -> f32;

    /// The elements of a row-major slice, if it has this element type.
    fn of_rows(rows: Rows<'_>) -> Option<&[Self::Raw]>;

    /// See [`PlaneFormat::write_stripe`].
    fn write_stripe(_: &mut [Self::Raw], _: Rows<'_>, _: usize) -> bool {
        false
    }
}

pub(crate) struct F32;
pub(crate) struct F16;
pub(crate) struct Bf16;

impl Element for F32 {
    type Raw = f32;
    const IS_WIDE: bool = true;
    #[inline(always)]
    fn load<S: Simd>(simd: S, x: &[f32; 16]) -> S::V {
        simd.load(x)
    }
    fn of_f32(value: f32) -> f32 {
        value
    }
    fn to_f32(raw: f32) -> f32 {
        raw
    }
    fn of_rows(rows: Rows<'_>) -> Option<&[f32]> {
        match rows {
            Rows::F32(rows) => Some(rows),
            _ => None,
        }
    }
    fn write_stripe(stripe: &mut [f32], keys: Rows<'_>, stride: usize) -> bool {
        match keys {
            Rows::F32(keys) => pack_stripe(stripe, keys, stride),
            Rows::F16(keys) => widen_stripe::<F16>(stripe, keys, stride),
            Rows::Bf16(keys) => widen_stripe::<Bf16>(stripe, keys, stride),
        }
        true
    }
}

impl Element for F16 {
    type Raw = u16;
    #[inline(always)]
    fn load<S: Simd>(simd: S, x: &[u16; 16]) -> S::V {
        simd.load_f16(x)
    }
    fn of_f32(value: f32) -> u16 {
        f32_to_f16(value)
    }
    fn to_f32(raw: u16) -> f32 {
        f16_to_f32(raw)
    }
    fn of_rows(rows: Rows<'_>) -> Option<&[u16]> {
        match rows {
            Rows::F16(rows) => Some(rows),
            _ => None,
        }
    }
}

impl Element for Bf16 {
    type Raw = u16;
    #[inline(always)]
    fn load<S: Simd>(simd: S, x: &[u16; 16]) -> S::V {
        simd.load_bf16(x)
    }
    fn of_f32(value: f32) -> u16 {
        f32_to_bf16(value)
    }
    fn to_f32(raw: u16) -> f32 {
        bf16_to_f32(raw)
    }
    fn of_rows(rows: Rows<'_>) -> Option<&[u16]> {
        match rows {
            Rows::Bf16(rows) => Some(rows),
            _ => None,
        }
    }
}

/// Interleaves 16 keys of f32 into a stripe, and prefetches the keys after the next stripe.
fn pack_stripe(stripe: &mut [f32], keys: &[f32], stride: usize) {
    let (level, head_dim) = (Level::best(), stripe.len() / LANES);
    level.run(FetchRows {
        data: keys.get(2 * LANES * stride..).unwrap_or_default(),
        stride,
        width: head_dim,
        rows: LANES,
    });
    let rows: [&[f32]; LANES] = core::array::from_fn(|lane| &keys[lane * stride..][..head_dim]);
    level.run(Pack {
        rows: &rows,
        scale: 1.0,
        out: stripe.as_chunks_mut::<LANES>().0,
    });
}

/// Interleaves 16 keys into a stripe of f32.
fn widen_stripe<E: Element>(stripe: &mut [f32], keys: &[E::Raw], stride: usize) {
    let head_dim = stripe.len() / LANES;
    let rows: [&[E::Raw]; LANES] = core::array::from_fn(|lane| &keys[lane * stride..][..head_dim]);
    Level::best().run(StripeRows::<E> {
        rows: &rows,
        head_dim,
        out: stripe,
    });
}

/// The format of planes of an element.
pub(crate) struct Floats<E>(PhantomData<E>);

impl<E: Element> PlaneFormat for Floats<E> {
    type Raw = E::Raw;

    const IS_QUANTISED: bool = false;
    const GAINS_BY_ROTATION: bool = false;

    fn plane_len(tokens: usize, head_dim: usize) -> usize {
        tokens * head_dim
    }

    fn write(kind: PlaneKind, plane: &mut [E::Raw], slot: usize, row: Rows<'_>, buffer: &mut Vec<f32>) {
        match E::of_rows(row) {
            Some(row) => put(kind, plane, slot, row, |raw| raw),
            None => put(kind, plane, slot, row.widened(row.len(), buffer), E::of_f32),
        }
    }

    fn write_stripe(stripe: &mut [E::Raw], keys: Rows<'_>, stride: usize) -> bool {
        E::write_stripe(stripe, keys, stride)
    }

    fn read(kind: PlaneKind, plane: &[E::Raw], slot: usize, row: &mut [f32]) {
        let (lane, len) = (slot % LANES, LANES * row.len());
        let stripe = &plane[slot / LANES * len..][..len];
        match kind {
            PlaneKind::Keys => {
                for (value, lanes) in row.iter_mut().zip(stripe.chunks_exact(LANES)) {
                    *value = E::to_f32(lanes[lane]);
                }
            }
            PlaneKind::Values => {
                for (value, raw) in row.iter_mut().zip(&stripe[lane * len / LANES..]) {
                    *value = E::to_f32(*raw);
                }
            }
        }
    }

    fn copy(kind: PlaneKind, to: &mut [E::Raw], from: &[E::Raw], lanes: Range<usize>, head_dim: usize) {
        match kind {
            PlaneKind::Keys => {
                for (to, from) in to.chunks_exact_mut(LANES).zip(from.chunks_exact(LANES)) {
                    to[lanes.clone()].copy_from_slice(&from[lanes.clone()]);
                }
            }
            PlaneKind::Values => {
                let values = lanes.start * head_dim..lanes.end * head_dim;
                to[values.clone()].copy_from_slice(&from[values]);
            }
        }
    }

    #[inline(always)]
    fn widen_keys<S: Simd>(simd: S, stripe: &[E::Raw], _: usize, out: &mut [[f32; 16]]) {
        widen::<S, E>(simd, stripe, out);
    }

    #[inline(always)]
    fn widen_values<S: Simd>(simd: S, stripe: &[E::Raw], _: usize, _: usize, out: &mut [[f32; 16]]) {
        widen::<S, E>(simd, stripe, out);
    }

    /// Reading floats unwidened costs no more for a few rows, and multiplies the same floats.
    fn reads_in_place(_: PlaneKind, reading: Reading) -> bool {
        E::IS_WIDE || reading.rows <= reading.level.rows_in_place()
    }

    fn score<const R: usize>(tile: ScoreTile<'_, R>, keys: &[E::Raw]) {
        score::<E, R>(tile.level, tile.queries, keys, tile.ahead, tile.slots, tile.scores);
    }

    fn accumulate<const R: usize>(level: Level, rows: WeighedRows<'_, R>, values: &[E::Raw]) {
        level.run(Accumulate::<E, R> { rows, values });
    }

    fn fetch(level: Level, tokens: &[usize], values: &[E::Raw], head_dim: usize) {
        level.run(FetchTokens {
            values,
            tokens,
            head_dim,
            quantised: None,
        });
    }

    fn gather<const R: usize>(level: Level, list: Gather<'_, R>, values: &[E::Raw]) {
        level.run(GatherRows::<E, R> {
            list,
            values,
            element: PhantomData,
        });
    }

    fn round_keys(task: &Rounding<'_>, keys: &[E::Raw], _: &mut Vec<f32>, out: &mut PairKeys) {
        task.keys::<E>(keys, out);
    }

    fn round_values(task: &Rounding<'_>, values: &[E::Raw], _: &mut Vec<f32>, out: &mut PairValues) {
        task.values::<E>(values, out);
    }

    fn take_bytes(_: &[E::Raw], _: usize, _: usize, _: &mut ByteKeys) -> bool {
        false
    }
}

/// Writes a key into its lane of a stripe, or a value into its row.
#[inline]
fn put<T, F: Copy>(kind: PlaneKind, plane: &mut [T], slot: usize, row: &[F], convert: impl Fn(F) -> T) {
    let (lane, len) = (slot % LANES, LANES * row.len());
    match kind {
        PlaneKind::Keys => {
            let stripe = &mut plane[slot / LANES * len..][..len];
            for (out, value) in stripe.chunks_exact_mut(LANES).zip(row) {
                out[lane] = convert(*value);
            }
        }
        PlaneKind::Values => {
            for (out, value) in plane[slot * row.len()..][..row.len()].iter_mut().zip(row) {
                *out = convert(*value);
            }
        }
    }
}

/// Widens elements until `out` is full.
#[inline(always)]
fn widen<S: Simd, E: Element>(simd: S, data: &[E::Raw], out: &mut [[f32; 16]]) {
    for (out, data) in out.iter_mut().zip(data.as_chunks::<16>().0) {
        simd.store(E::load(simd, data), out);
    }
}
