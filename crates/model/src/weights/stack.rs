//! Tensors with several matrices of one size, such as experts.

use std::borrow::Cow;
use std::ops::Range;

use rayon::prelude::*;
use riffle_linear::{LinearError, PackedMatrix, WeightFormat};

use super::checkpoint::Taken;
use super::{Checkpoint, TensorType};
use crate::ModelError;

/// Matrices `[rows, columns]` in one tensor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stack {
    /// Matrices.
    pub(crate) count: usize,
    /// Rows per matrix, over all parts.
    pub(crate) rows: usize,
    /// Columns per matrix.
    pub(crate) columns: usize,
    /// True if each is stored as `[columns, rows]`.
    pub(crate) transposed: bool,
    /// The parts of each matrix.
    pub(crate) parts: StackParts,
}

/// The assignment of a matrix's rows to parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StackParts {
    /// The matrix is one part.
    Whole,
    /// The first half and the second.
    Halves,
    /// Even rows and odd rows.
    Alternating,
}

impl StackParts {
    /// Parts of a matrix.
    pub(crate) fn count(self) -> usize {
        match self {
            StackParts::Whole => 1,
            StackParts::Halves | StackParts::Alternating => 2,
        }
    }

    /// The rows of a part in a matrix of `rows` rows.
    pub(crate) fn rows(self, part: usize, rows: usize) -> std::iter::StepBy<Range<usize>> {
        match self {
            StackParts::Whole => (0..rows).step_by(1),
            StackParts::Halves => (part * rows / 2..(part + 1) * rows / 2).step_by(1),
            StackParts::Alternating => (part..rows).step_by(2),
        }
    }
}

impl Stack {
    /// The bytes of a part of a matrix, row by row.
    pub(super) fn part<'a>(
        &self,
        format: WeightFormat,
        bytes: &'a [u8],
        part: usize,
        transposed: bool,
    ) -> Cow<'a, [u8]> {
        let rows = self.parts.rows(part, self.rows);
        let row_bytes = bytes.len() / self.rows;
        if transposed {
            let size = format.block_bytes();
            let element = |row: usize, column: usize| &bytes[(column * self.rows + row) * size..][..size];
            let rows = rows.flat_map(|row| (0..self.columns).flat_map(move |column| element(row, column)));
            return Cow::Owned(rows.copied().collect());
        }
        if self.parts != StackParts::Alternating {
            let first = part * bytes.len() / self.parts.count();
            return Cow::Borrowed(&bytes[first..][..bytes.len() / self.parts.count()]);
        }
        Cow::Owned(
            rows.flat_map(|row| &bytes[row * row_bytes..][..row_bytes])
                .copied()
                .collect(),
        )
    }
}

impl Checkpoint {
    /// A tensor `[rows, columns]` split into matrices with these rows.
    pub(crate) fn matrices_of_rows<const PARTS: usize>(
        &mut self,
        name: &str,
        rows: usize,
        columns: usize,
        parts: [Vec<usize>; PARTS],
    ) -> Result<[PackedMatrix; PARTS], ModelError> {
        let activations = self.activations;
        let taken = self.take(name, &[rows, columns])?;
        let row_bytes = taken.format.row_bytes(columns).unwrap_or_default();
        let packed = parts.map(|rows| {
            let own = rows.iter().flat_map(|row| &taken.bytes[row * row_bytes..][..row_bytes]);
            let own: Vec<u8> = own.copied().collect();
            taken.pack(activations, [rows.len(), columns], &own)
        });
        self.unmap(name);
        all(name, packed)
    }

    /// Joins tensors `[rows, columns]`, each given by name and rows, to one matrix. They must have the same format.
    pub(crate) fn joined(&mut self, parts: &[(String, usize)], columns: usize) -> Result<PackedMatrix, ModelError> {
        let activations = self.activations;
        let (mut joined, mut found) = (Vec::new(), None);
        for (name, rows) in parts {
            let Taken {
                format,
                bytes,
                factor,
                order,
            } = self.take(name, &[*rows, columns])?;
            let is_plain = factor == 1.0 && order.is_none();
            if !is_plain || *found.get_or_insert(format) != format {
                return Err(ModelError::TwoFormats {
                    tensor: name.clone(),
                    first: parts[0].0.clone(),
                });
            }
            joined.extend_from_slice(&bytes);
            self.unmap(name);
        }
        let rows = parts.iter().map(|(_, rows)| rows).sum();
        let format = found.unwrap_or(WeightFormat::F32);
        let matrix = PackedMatrix::pack(format, rows, columns, &joined).map_err(|source| ModelError::Pack {
            tensor: parts[0].0.clone(),
            source,
        })?;
        Ok(matrix.with_activations(activations))
    }

    /// The matrices of a tensor with several, `[part][matrix]`.
    pub(crate) fn stack(&mut self, name: &str, stack: &Stack) -> Result<Vec<Vec<PackedMatrix>>, ModelError> {
        let Stack {
            count, rows, columns, ..
        } = *stack;
        let activations = self.activations;
        // Matrices computed from other tensors are stacked.
        let is_flat = self.info(name).is_some_and(|info| info.shape.len() == 2);
        let shape = match (is_flat, stack.transposed) {
            (true, _) => vec![count * rows, columns],
            (false, false) => vec![count, rows, columns],
            (false, true) => vec![count, columns, rows],
        };
        let Taken {
            format, bytes, factor, ..
        } = self.take(name, &shape)?;
        let transposed = stack.transposed && !is_flat;
        if transposed && format.block_weights() > 1 {
            return Err(ModelError::WrongType {
                tensor: name.to_owned(),
                expected: "f32, f16 or bf16",
                found: TensorType::Weights(format),
            });
        }
        let matrix_bytes = bytes.len() / count;
        let pack = |index: usize, part: usize| -> Result<PackedMatrix, LinearError> {
            let bytes = &bytes[index * matrix_bytes..][..matrix_bytes];
            let own = stack.part(format, bytes, part, transposed);
            let matrix = PackedMatrix::pack(format, own.len() * rows / matrix_bytes, columns, &own)?;
            Ok(matrix.with_activations(activations).with_factor(factor))
        };
        let parts = 0..stack.parts.count();
        let packed: Result<Vec<Vec<PackedMatrix>>, LinearError> = parts
            .map(|part| (0..count).into_par_iter().map(|index| pack(index, part)).collect())
            .collect();
        self.unmap(name);
        packed.map_err(|source| ModelError::Pack {
            tensor: name.to_owned(),
            source,
        })
    }
}

/// All parts of a tensor, or the first error.
pub(super) fn all<T, const PARTS: usize>(
    name: &str,
    parts: [Result<T, LinearError>; PARTS],
) -> Result<[T; PARTS], ModelError> {
    let mut packed = Vec::with_capacity(PARTS);
    for part in parts {
        packed.push(part.map_err(|source| ModelError::Pack {
            tensor: name.to_owned(),
            source,
        })?);
    }
    packed.try_into().map_err(|_| ModelError::MissingTensor {
        tensor: name.to_owned(),
    })
}
