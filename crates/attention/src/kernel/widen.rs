use super::{Slot, halves};
use crate::Plane;
use crate::format::{PlaneFormat, PlaneKind, QUANT_BLOCK, Quant, block_of, with_plane};
use crate::simd::{Kernel, Level, Simd};

/// Widens the active stripes of a block of keys to f32, each to its own index.
pub(crate) struct WidenKeys<'a, F: PlaneFormat> {
    /// The block's slice of the plane.
    pub(crate) keys: &'a [F::Raw],
    pub(crate) slots: &'a [Slot],
    pub(crate) head_dim: usize,
    /// `[stripes, head_dim, 16]`.
    pub(crate) out: &'a mut [f32],
}

impl<F: PlaneFormat> Kernel for WidenKeys<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (len, stripe) = (16 * self.head_dim, F::plane_len(16, self.head_dim));
        for slot in self.slots {
            let out = self.out[slot.stripe * len..][..len].as_chunks_mut::<16>().0;
            F::widen_keys(simd, &self.keys[slot.stripe * stripe..][..stripe], self.head_dim, out);
        }
    }
}

/// Widens the active stripes of a block of values to f32, each to its own index.
pub(crate) struct WidenValues<'a, F: PlaneFormat> {
    pub(crate) values: &'a [F::Raw],
    pub(crate) slots: &'a [Slot],
    pub(crate) head_dim: usize,
    /// `[tokens, head_dim]`.
    pub(crate) out: &'a mut [f32],
}

impl<F: PlaneFormat> Kernel for WidenValues<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let stripe = F::plane_len(16, self.head_dim);
        for slot in self.slots {
            let (first, len) = (slot.stripe * 16 * self.head_dim, slot.tokens * self.head_dim);
            let out = self.out[first..first + len].as_chunks_mut::<16>().0;
            let values = &self.values[slot.stripe * stripe..][..stripe];
            F::widen_values(simd, values, slot.tokens, self.head_dim, out);
        }
    }
}

/// Runs [`WidenKeys`].
pub(crate) fn widen_keys(level: Level, keys: Plane, slots: &[Slot], head_dim: usize, out: &mut [f32]) {
    with_plane!(Plane keys, F, keys => level.run(WidenKeys::<F> {
        keys,
        slots,
        head_dim,
        out,
    }));
}

/// Runs [`WidenValues`].
pub(crate) fn widen_values(level: Level, values: Plane, slots: &[Slot], head_dim: usize, out: &mut [f32]) {
    with_plane!(Plane values, F, values => level.run(WidenValues::<F> {
        values,
        slots,
        head_dim,
        out,
    }));
}

/// Widens a stripe of keys to `[head_dim, 16]`.
#[inline(always)]
pub(crate) fn widen_quantised_keys<S: Simd, Q: Quant>(simd: S, stripe: &[u8], head_dim: usize, out: &mut [[f32; 16]]) {
    for (block, out) in out.chunks_mut(QUANT_BLOCK).enumerate() {
        let (scale, bytes) = block_of::<Q>(PlaneKind::Keys, stripe, head_dim, block);
        let scale = simd.load_f16(&halves(scale));
        let offset = simd.mul(scale, simd.splat(-Q::OFFSET as f32));
        let eights = bytes.chunks_exact(16 * Q::BITS);
        for (out, bytes) in out.as_chunks_mut::<8>().0.iter_mut().zip(eights) {
            let (low, high) = out.split_at_mut(4);
            let [low_bytes, high_bytes] = Q::eight_dimensions(simd, bytes);
            four(simd, low_bytes, scale, offset, low);
            four(simd, high_bytes, scale, offset, high);
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

/// Widens the first tokens of a stripe of values to `[tokens, head_dim]`.
#[inline(always)]
pub(crate) fn widen_quantised_values<S: Simd, Q: Quant>(
    simd: S,
    stripe: &[u8],
    tokens: usize,
    head_dim: usize,
    out: &mut [[f32; 16]],
) {
    let row = head_dim / 16;
    for block in 0..head_dim.div_ceil(QUANT_BLOCK) {
        let (scales, bytes) = block_of::<Q>(PlaneKind::Values, stripe, head_dim, block);
        let mut lanes = [0.0; 16];
        simd.store(simd.load_f16(&halves(scales)), &mut lanes);
        let out = &mut out[2 * block..];
        if row - 2 * block >= 2 {
            widen_columns::<S, Q, 2>(simd, bytes, &lanes, (tokens, row), out);
        } else {
            widen_columns::<S, Q, 1>(simd, bytes, &lanes, (tokens, row), out);
        }
    }
}

/// One column block of a stripe; `out` begins at the block's first column, with `row` vectors per token.
#[inline(always)]
fn widen_columns<S: Simd, Q: Quant, const N: usize>(
    simd: S,
    bytes: &[u8],
    scales: &[f32; 16],
    (tokens, row): (usize, usize),
    out: &mut [[f32; 16]],
) {
    for four in 0..tokens.min(16).div_ceil(4) {
        for n in 0..N {
            let bytes = Q::four_tokens::<S, N>(simd, bytes, four, n);
            let values = [
                simd.byte_to_f32::<0>(bytes),
                simd.byte_to_f32::<1>(bytes),
                simd.byte_to_f32::<2>(bytes),
                simd.byte_to_f32::<3>(bytes),
            ];
            for (t, value) in values.into_iter().enumerate().take(tokens - 4 * four) {
                let token = 4 * four + t;
                let scale = simd.splat(scales[token]);
                let offset = simd.splat(scales[token] * -Q::OFFSET as f32);
                simd.store(simd.fma(value, scale, offset), &mut out[token * row + n]);
            }
        }
    }
}
