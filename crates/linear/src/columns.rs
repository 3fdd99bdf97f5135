//! Small dense products of matrices that change between calls, with the kernels of packed weights.

use core::ops::Range;

use bytemuck::{Pod, Zeroable};

use crate::float::{F32, GROUP, GROUP_BLOCKS, GroupSums, TILE_TOKENS};
use crate::machine::Isa;

/// 64 columns of one row of a dense f32 matrix, aligned for vector loads.
///
/// A matrix `[rows, 64 · n]` is `n` slices of `rows` such pieces; missing columns are zero.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct Columns(pub [f32; Columns::COUNT]);

impl Columns {
    /// Values per piece.
    pub const COUNT: usize = GROUP;

    /// A piece of zeros.
    pub const ZERO: Columns = Columns([0.0; Columns::COUNT]);

    /// The values of `pieces` as one row-major matrix of 64 columns.
    pub fn values(pieces: &[Columns]) -> &[f32] {
        bytemuck::cast_slice(pieces)
    }

    /// `sums[row] += Σ left[row, inner] · right[inner]` on this thread, for `inner` in the range of `right`. The rows
    /// of `left` are `left_stride` values apart, and row `i` begins at `left[i · left_stride + inner.start]`. Sums
    /// have the order of [`PackedMatrix::matmul`].
    ///
    /// [`PackedMatrix::matmul`]: crate::PackedMatrix::matmul
    ///
    /// # Panics
    ///
    /// If `right` and `inner` differ in length, `inner` is longer than a row, or `left` has fewer rows than `sums`.
    pub fn multiply_add(
        left: &[f32],
        left_stride: usize,
        inner: Range<usize>,
        right: &[Columns],
        sums: &mut [Columns],
    ) {
        Columns::multiply_add_with(Isa::best(), left, left_stride, inner, right, sums);
    }

    fn multiply_add_with(
        isa: Isa,
        left: &[f32],
        left_stride: usize,
        inner: Range<usize>,
        right: &[Columns],
        sums: &mut [Columns],
    ) {
        assert_eq!(
            right.len(),
            inner.len(),
            "right must hold a row for each value of inner"
        );
        assert!(inner.end <= left_stride, "inner must lie within a row of left");
        if inner.is_empty() {
            return;
        }
        let right: &[GroupSums] = bytemuck::cast_slice(right);
        let sums: &mut [GroupSums] = bytemuck::cast_slice_mut(sums);
        for (tile, sums) in sums.chunks_mut(TILE_TOKENS).enumerate() {
            let mut rows = [&left[..0]; TILE_TOKENS];
            for (row, values) in rows.iter_mut().enumerate().take(sums.len()) {
                *values = &left[(tile * TILE_TOKENS + row) * left_stride..][inner.clone()];
            }
            isa.float_tile::<F32>(right.as_flattened(), GROUP_BLOCKS, &rows[..sums.len()], sums);
        }
    }
}

impl Default for Columns {
    fn default() -> Columns {
        Columns::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_equal_f64_and_are_the_same_bits_on_every_instruction_set() {
        for (rows, stride, inner) in [(1, 5, 0..5), (7, 300, 3..300), (64, 64, 0..17), (130, 9, 4..5)] {
            let left: Vec<f32> = (0..rows * stride)
                .map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0)
                .collect();
            let mut right = vec![Columns::ZERO; inner.len()];
            for (i, value) in right.iter_mut().flat_map(|piece| &mut piece.0).enumerate() {
                *value = ((i * 53) % 97) as f32 / 48.0 - 1.0;
            }
            let product = |isa| {
                let mut sums = vec![Columns([0.5; Columns::COUNT]); rows];
                Columns::multiply_add_with(isa, &left, stride, inner.clone(), &right, &mut sums);
                sums
            };
            let expected = product(Isa::SCALAR);
            for (row, sums) in expected.iter().enumerate() {
                for (column, sum) in sums.0.iter().enumerate() {
                    let exact: f64 = inner
                        .clone()
                        .zip(&right)
                        .map(|(at, right)| f64::from(left[row * stride + at]) * f64::from(right.0[column]))
                        .sum();
                    assert!(
                        (f64::from(*sum) - 0.5 - exact).abs() < 1e-4,
                        "row {row}, column {column}"
                    );
                }
            }
            for isa in Isa::available() {
                assert!(product(isa) == expected, "{isa:?}");
            }
        }
    }
}
