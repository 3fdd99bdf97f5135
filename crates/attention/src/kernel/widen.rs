use core::marker::PhantomData;

use super::quantised_values::four_tokens;
use super::{Element, Slot, halves};
use crate::Plane;
use crate::format::QUANT_BLOCK;
use crate::simd::{Kernel, Simd};

/// Widens the active stripes of a block of keys to f32, each at its own place.
pub(crate) struct WidenKeys<'a> {
    /// The block's part of the plane.
    pub(crate) keys: Plane<'a>,
    pub(crate) slots: &'a [Slot],
    pub(crate) head_dim: usize,
    /// `[stripes, head_dim, 16]`.
    pub(crate) out: &'a mut [f32],
}

impl Kernel for WidenKeys<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for slot in self.slots {
            let len = 16 * self.head_dim;
            let out = self.out[slot.stripe * len..][..len].as_chunks_mut::<16>().0;
            match self.keys {
                Plane::F32(data) => copy::<S, super::F32>(simd, &data[slot.stripe * len..][..len], out),
                Plane::F16(data) => copy::<S, super::F16>(simd, &data[slot.stripe * len..][..len], out),
                Plane::Bf16(data) => copy::<S, super::Bf16>(simd, &data[slot.stripe * len..][..len], out),
                Plane::Q8_0(data) => quantised_keys::<S, false>(simd, data, slot.stripe, self.head_dim, out),
                Plane::Q4_0(data) => quantised_keys::<S, true>(simd, data, slot.stripe, self.head_dim, out),
            }
        }
    }
}

/// Widens the active stripes of a block of values to f32, each at its own place.
pub(crate) struct WidenValues<'a> {
    pub(crate) values: Plane<'a>,
    pub(crate) slots: &'a [Slot],
    pub(crate) head_dim: usize,
    /// `[tokens, head_dim]`.
    pub(crate) out: &'a mut [f32],
}

impl Kernel for WidenValues<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for slot in self.slots {
            let (first, len) = (slot.stripe * 16 * self.head_dim, slot.tokens * self.head_dim);
            let out = self.out[first..first + len].as_chunks_mut::<16>().0;
            match self.values {
                Plane::F32(data) => copy::<S, super::F32>(simd, &data[first..first + len], out),
                Plane::F16(data) => copy::<S, super::F16>(simd, &data[first..first + len], out),
                Plane::Bf16(data) => copy::<S, super::Bf16>(simd, &data[first..first + len], out),
                Plane::Q8_0(data) => quantised_values::<S, false>(simd, data, slot, self.head_dim, out),
                Plane::Q4_0(data) => quantised_values::<S, true>(simd, data, slot, self.head_dim, out),
            }
        }
    }
}

#[inline(always)]
fn copy<S: Simd, E: Element>(simd: S, data: &[E::Raw], out: &mut [[f32; 16]]) {
    let marker: PhantomData<E> = PhantomData;
    let _ = marker;
    for (out, data) in out.iter_mut().zip(data.as_chunks::<16>().0) {
        simd.store(E::load(simd, data), out);
    }
}

#[inline(always)]
fn quantised_keys<S: Simd, const FOUR_BITS: bool>(
    simd: S,
    data: &[u8],
    stripe: usize,
    head_dim: usize,
    out: &mut [[f32; 16]],
) {
    let bits = if FOUR_BITS { 4 } else { 8 };
    let len = 32 * head_dim.div_ceil(QUANT_BLOCK) + 2 * bits * head_dim;
    let mut data = &data[stripe * len..][..len];
    for out in out.chunks_mut(QUANT_BLOCK) {
        let (scale, rest) = data.split_first_chunk::<32>().expect("a block begins with its scales");
        let (bytes, rest) = rest.split_at(2 * bits * out.len());
        data = rest;
        let scale = simd.load_f16(&halves(scale));
        let offset = simd.mul(scale, simd.splat(if FOUR_BITS { -8.0 } else { -128.0 }));
        let bytes = bytes.as_chunks::<64>().0;
        if FOUR_BITS {
            for (out, bytes) in out.as_chunks_mut::<8>().0.iter_mut().zip(bytes) {
                let bytes = simd.load_bytes(bytes);
                let (low, high) = out.split_at_mut(4);
                four(simd, simd.low_nibbles(bytes), scale, offset, low);
                four(simd, simd.high_nibbles(bytes), scale, offset, high);
            }
        } else {
            for (out, bytes) in out.as_chunks_mut::<4>().0.iter_mut().zip(bytes) {
                four(simd, simd.load_bytes(bytes), scale, offset, out);
            }
        }
    }
}

/// Four dimensions of 16 keys from their interleaved bytes.
#[inline(always)]
fn four<S: Simd>(simd: S, bytes: S::B, scale: S::V, offset: S::V, out: &mut [[f32; 16]]) {
    let Some(out) = out.first_chunk_mut::<4>() else { return };
    simd.store(simd.fma(simd.byte_to_f32::<0>(bytes), scale, offset), &mut out[0]);
    simd.store(simd.fma(simd.byte_to_f32::<1>(bytes), scale, offset), &mut out[1]);
    simd.store(simd.fma(simd.byte_to_f32::<2>(bytes), scale, offset), &mut out[2]);
    simd.store(simd.fma(simd.byte_to_f32::<3>(bytes), scale, offset), &mut out[3]);
}

#[inline(always)]
fn quantised_values<S: Simd, const FOUR_BITS: bool>(
    simd: S,
    data: &[u8],
    slot: &Slot,
    head_dim: usize,
    out: &mut [[f32; 16]],
) {
    let scales_len = 32 * head_dim.div_ceil(QUANT_BLOCK);
    let bytes_per_column = if FOUR_BITS { 8 } else { 16 };
    let len = scales_len + bytes_per_column * head_dim;
    let (scales, bytes) = data[slot.stripe * len..][..len].split_at(scales_len);
    let mut bytes = bytes.as_chunks::<64>().0;
    let row = head_dim / 16;
    for (block, scales) in scales.as_chunks::<32>().0.iter().enumerate() {
        let wide = row - 2 * block >= 2;
        let (now, rest) = bytes.split_at(bytes_per_column * if wide { 32 } else { 16 } / 64);
        bytes = rest;
        let mut lanes = [0.0; 16];
        simd.store(simd.load_f16(&halves(scales)), &mut lanes);
        let out = &mut out[2 * block..];
        if wide {
            widen_columns::<S, FOUR_BITS, 2>(simd, now, &lanes, slot.tokens, row, out);
        } else {
            widen_columns::<S, FOUR_BITS, 1>(simd, now, &lanes, slot.tokens, row, out);
        }
    }
}

/// One block of columns of a stripe; `out` begins at the block's first column, `row` vectors to a token.
#[inline(always)]
fn widen_columns<S: Simd, const FOUR_BITS: bool, const N: usize>(
    simd: S,
    bytes: &[[u8; 64]],
    scales: &[f32; 16],
    tokens: usize,
    row: usize,
    out: &mut [[f32; 16]],
) {
    for four in 0..tokens.min(16).div_ceil(4) {
        for n in 0..N {
            let bytes = four_tokens::<S, FOUR_BITS, N>(simd, bytes, four, n);
            let values = [
                simd.byte_to_f32::<0>(bytes),
                simd.byte_to_f32::<1>(bytes),
                simd.byte_to_f32::<2>(bytes),
                simd.byte_to_f32::<3>(bytes),
            ];
            for (t, value) in values.into_iter().enumerate().take(tokens - 4 * four) {
                let token = 4 * four + t;
                let scale = simd.splat(scales[token]);
                let offset = simd.splat(scales[token] * if FOUR_BITS { -8.0 } else { -128.0 });
                simd.store(simd.fma(value, scale, offset), &mut out[token * row + n]);
            }
        }
    }
}
