use super::Slot;
use crate::LANES;
use crate::simd::{Kernel, Level, Simd};

/// Interleaves rows, times `scale`: `R` rows of `[head_dim]` become `[head_dim, R]`. Missing rows are zero.
pub(crate) struct Pack<'a, const R: usize> {
    /// Rows to pack, at most R.
    pub(crate) rows: &'a [&'a [f32]],
    pub(crate) scale: f32,
    pub(crate) out: &'a mut [[f32; R]],
}

impl<const R: usize> Kernel for Pack<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let scale = simd.splat(self.scale);
        for (at, out) in self.out.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let mut block = [simd.splat(0.0); LANES];
            for (block, row) in block.iter_mut().zip(self.rows) {
                *block = simd.mul(simd.load(&row.as_chunks().0[at]), scale);
            }
            for (out, column) in out.iter_mut().zip(simd.transpose(block)) {
                let mut lanes = [0.0; LANES];
                simd.store(column, &mut lanes);
                out.copy_from_slice(&lanes[..R]);
            }
        }
    }
}

/// Transposes the first elements of keys from stripes, `[stripes, key_dim, 16]`, into rows, `[tokens, value_dim]`.
pub(crate) struct TurnStripes<'a> {
    pub(crate) keys: &'a [f32],
    pub(crate) slots: &'a [Slot],
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
    pub(crate) out: &'a mut [f32],
}

impl Kernel for TurnStripes<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for slot in self.slots {
            let stripe = &self.keys[slot.stripe * LANES * self.key_dim..][..LANES * self.value_dim];
            let rows = &mut self.out[slot.stripe * LANES * self.value_dim..][..LANES * self.value_dim];
            for (at, columns) in stripe.as_chunks::<LANES>().0.chunks_exact(LANES).enumerate() {
                let columns: [S::V; LANES] = simd.each(|d| simd.load(&columns[d]));
                let rows = rows.chunks_exact_mut(self.value_dim).take(slot.tokens);
                for (row, out) in simd.transpose(columns).into_iter().zip(rows) {
                    simd.store(row, &mut out.as_chunks_mut().0[at]);
                }
            }
        }
    }
}

/// Prefetches rows: `[rows, width]` in a larger tensor, `stride` elements apart.
pub(crate) struct FetchRows<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) width: usize,
    pub(crate) rows: usize,
}

impl Kernel for FetchRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for row in self.data.chunks(self.stride.max(1)).take(self.rows) {
            for at in (0..self.width).step_by(LANES) {
                simd.prefetch(row, at);
            }
        }
    }
}

/// [`Pack`] into `packed`, whose length is a multiple of R.
pub(crate) fn pack<const R: usize>(level: Level, rows: &[&[f32]], scale: f32, packed: &mut [f32]) {
    level.run(Pack::<R> {
        rows,
        scale,
        out: packed.as_chunks_mut().0,
    });
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;
    use crate::testing::noise;

    #[test]
    fn every_instruction_set_packs_the_same_rows() {
        let rows: Vec<Vec<f32>> = (0..LANES).map(|row| noise(row as u64, 48)).collect();
        let rows: Vec<&[f32]> = rows.iter().map(|row| &row[..]).collect();
        for level in Level::all() {
            let mut packed = vec![[0.0; LANES]; 48];
            level.run(Pack::<LANES> {
                rows: &rows,
                scale: 2.0,
                out: &mut packed,
            });
            for (d, column) in packed.iter().enumerate() {
                for (row, found) in rows.iter().zip(column) {
                    assert_eq!(*found, 2.0 * row[d], "{}", level.name());
                }
            }
        }
    }
}
