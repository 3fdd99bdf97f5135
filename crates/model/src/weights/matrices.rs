//! Takes tensors as f32 values or as packed matrices.

use std::borrow::Cow;

use riffle_linear::PackedMatrix;

use super::checkpoint::Taken;
use super::stack::all;
use super::{Checkpoint, TensorType, to_f32};
use crate::ModelError;

impl Checkpoint {
    /// A vector as f32.
    pub fn vector(&mut self, name: &str, length: usize) -> Result<Vec<f32>, ModelError> {
        self.array(name, &[length])
    }

    /// The values of a tensor of any shape as f32.
    pub fn array(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let Taken { format, bytes, .. } = self.take(name, shape)?;
        let values = to_f32(format, &bytes);
        self.unmap(name);
        values.ok_or_else(|| ModelError::WrongType {
            tensor: name.to_owned(),
            expected: "f32, f16 or bf16",
            found: TensorType::Weights(format),
        })
    }

    /// The values of a matrix `[rows, columns]` as f32, from any format.
    pub(crate) fn unpacked(&mut self, name: &str, shape: [usize; 2]) -> Result<Vec<f32>, ModelError> {
        let format = match self.info(name).map(|info| &info.element_type) {
            Some(TensorType::Weights(format)) if format.block_weights() > 1 => *format,
            _ => return self.array(name, &shape),
        };
        let [rows, columns] = shape;
        let taken = self.take(name, &shape)?;
        let mut values = vec![0.0; rows * columns];
        let row_bytes = taken.bytes.len() / rows;
        for (bytes, values) in taken
            .bytes
            .chunks_exact(row_bytes)
            .zip(values.chunks_exact_mut(columns))
        {
            format.decode_row(bytes, values);
        }
        self.unmap(name);
        Ok(values)
    }

    /// The values of a tensor of `count` elements, of any shape, as f32.
    pub(crate) fn values(&mut self, name: &str, count: usize) -> Result<Vec<f32>, ModelError> {
        let shape = self.info(name).map(|info| info.shape.clone());
        match shape.filter(|shape| shape.iter().product::<usize>() == count) {
            Some(shape) => self.array(name, &shape),
            None => self.array(name, &[count]),
        }
    }

    /// A matrix `[rows, columns]`, packed in its own format.
    pub fn matrix(&mut self, name: &str, rows: usize, columns: usize) -> Result<PackedMatrix, ModelError> {
        let [matrix] = self.matrices(name, 1, [rows], columns)?;
        Ok(matrix)
    }

    /// Separate matrices stacked in one tensor, with the given rows of each, for each of `heads` heads.
    pub fn matrices<const PARTS: usize>(
        &mut self,
        name: &str,
        heads: usize,
        rows: [usize; PARTS],
        columns: usize,
    ) -> Result<[PackedMatrix; PARTS], ModelError> {
        let stride: usize = rows.iter().sum();
        let activations = self.activations;
        let is_turned = self.turned.contains(name);
        let shape = if is_turned {
            [columns, heads * stride]
        } else {
            [heads * stride, columns]
        };
        let taken = self.take(name, &shape)?;
        let format = taken.format;
        if is_turned && format.block_weights() > 1 {
            return Err(ModelError::WrongType {
                tensor: name.to_owned(),
                expected: "f32, f16 or bf16",
                found: TensorType::Weights(format),
            });
        }
        let bytes = match is_turned.then(|| turned(&taken.bytes, shape)) {
            Some(turned) => Cow::Owned(turned),
            None => Cow::Borrowed(&*taken.bytes),
        };
        let row_bytes = format.row_bytes(columns).unwrap_or_default();
        let mut first = 0;
        let parts = rows.map(|rows| {
            let own = first * row_bytes..(first + rows) * row_bytes;
            first += rows;
            let part = match heads {
                1 => Cow::Borrowed(&bytes[own]),
                _ => Cow::Owned(
                    bytes
                        .chunks_exact((stride * row_bytes).max(1))
                        .flat_map(|head| &head[own.clone()])
                        .copied()
                        .collect(),
                ),
            };
            taken.pack(activations, [heads * rows, columns], &part)
        });
        self.unmap(name);
        all(name, parts)
    }

    /// A matrix for each of `heads` heads, stored as `[heads, rows, columns]` or with stacked heads. With several
    /// `rows`, each head has several stacked matrices. Each is packed separately.
    pub fn head_matrices<const PARTS: usize>(
        &mut self,
        name: &str,
        heads: usize,
        rows: [usize; PARTS],
        columns: usize,
    ) -> Result<[Vec<PackedMatrix>; PARTS], ModelError> {
        let stride: usize = rows.iter().sum();
        let activations = self.activations;
        let has_heads = self.info(name).is_some_and(|info| info.shape.len() == 3);
        let shape = if has_heads {
            vec![heads, stride, columns]
        } else {
            vec![heads * stride, columns]
        };
        let taken = self.take(name, &shape)?;
        let row_bytes = taken.format.row_bytes(columns).unwrap_or_default();
        let pack = |rows: usize, first: usize| {
            let bytes = &taken.bytes[first * row_bytes..(first + rows) * row_bytes];
            taken.pack(activations, [rows, columns], bytes)
        };
        let mut first = 0;
        let parts = rows.map(|rows| {
            let own = first;
            first += rows;
            (0..heads)
                .map(|head| pack(rows, head * stride + own))
                .collect::<Result<Vec<_>, _>>()
        });
        self.unmap(name);
        all(name, parts)
    }
}

/// A matrix of this shape with rows and columns exchanged.
fn turned(bytes: &[u8], [rows, columns]: [usize; 2]) -> Vec<u8> {
    let width = bytes.len() / (rows * columns).max(1);
    let mut output = Vec::with_capacity(bytes.len());
    for column in 0..columns {
        for row in 0..rows {
            output.extend_from_slice(&bytes[(row * columns + column) * width..][..width]);
        }
    }
    output
}
