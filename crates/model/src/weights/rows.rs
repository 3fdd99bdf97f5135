//! Reads rows of a tensor as f32, a few at a time.

use std::ops::Range;
use std::sync::Arc;

use memmap2::Mmap;
use rayon::prelude::*;
use riffle_linear::WeightFormat;

use crate::ModelError;

/// The rows of a tensor: all dimensions except the last are flattened.
pub(crate) struct TensorRows {
    /// Name of the tensor in its file.
    pub(super) name: String,
    pub(super) format: WeightFormat,
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// A scale of all weights.
    pub(super) factor: f32,
    /// The column of each stored column.
    pub(super) order: Option<Arc<[u32]>>,
    pub(super) source: RowSource,
}

pub(super) enum RowSource {
    Mapped(Mmap, Range<usize>),
    Made(Vec<u8>),
}

impl TensorRows {
    /// Rows of the tensor.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of rows from `first` on, as in the file; `None` if no file stores them.
    pub(crate) fn stored(&self, first: usize, bytes: usize) -> Option<&[u8]> {
        let is_plain = self.factor == 1.0 && self.order.is_none();
        match &self.source {
            RowSource::Mapped(map, range) if is_plain => {
                let all = &map[range.clone()];
                Some(&all[first * (all.len() / self.rows)..][..bytes])
            }
            _ => None,
        }
    }

    /// Reads the rows `first..first + output.len() / columns`, on the threads of the current rayon pool.
    ///
    /// # Errors
    /// [`ModelError::NotFinite`] for a weight that is infinite or NaN.
    ///
    /// # Panics
    ///
    /// If `output` is not whole rows of the tensor.
    pub(crate) fn read(&self, first: usize, output: &mut [f32]) -> Result<(), ModelError> {
        self.read_as(output, |row| first + row)
    }

    /// Reads row `row_of(i)` as row `i` of `output`.
    pub(crate) fn read_as(&self, output: &mut [f32], row_of: impl Fn(usize) -> usize + Sync) -> Result<(), ModelError> {
        assert!(output.len().is_multiple_of(self.columns), "whole rows");
        let bytes: &[u8] = match &self.source {
            RowSource::Mapped(map, range) => &map[range.clone()],
            RowSource::Made(bytes) => bytes,
        };
        let row_bytes = bytes.len() / self.rows;
        let read = |(index, output): (usize, &mut [f32])| {
            let row = row_of(index);
            self.format.decode_row(&bytes[row * row_bytes..][..row_bytes], output);
            if let Some(order) = &self.order {
                let stored = output.to_vec();
                for (column, value) in order.iter().zip(stored) {
                    output[*column as usize] = value;
                }
            }
            if self.factor != 1.0 {
                output.iter_mut().for_each(|value| *value *= self.factor);
            }
            // The fold has no branches, so a row of finite values costs little.
            let is_finite = output.iter().fold(true, |all, value| all & value.is_finite());
            let bad = output
                .iter()
                .position(|value| !value.is_finite())
                .filter(|_| !is_finite);
            match bad {
                None => Ok(()),
                Some(column) => Err(ModelError::NotFinite {
                    tensor: self.name.clone(),
                    element: row * self.columns + column,
                    value: output[column],
                }),
            }
        };
        output.par_chunks_exact_mut(self.columns).enumerate().try_for_each(read)
    }
}
