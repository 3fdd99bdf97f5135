//! Learned embeddings of positions, in place of a rotation.

use riffle_linear::PackedMatrix;

use super::add;
use crate::weights::Checkpoint;
use crate::{Batch, ModelError};

/// One row per position, added to the embedding of the token there.
pub struct PositionTable {
    rows: PackedMatrix,
    /// Rows before the first position's row.
    first: usize,
    /// Rows that are added to tokens by their type: of a first text, and of a second one. Empty in models without
    /// types.
    types: Vec<Vec<f32>>,
}

impl PositionTable {
    /// Loads the matrix `name`, which has `first` unused rows and then a row for each of `positions` positions.
    ///
    /// # Errors
    /// [`ModelError`] for a tensor that is missing or of another shape.
    pub fn load(
        weights: &mut Checkpoint,
        name: &str,
        first: usize,
        positions: usize,
        hidden: usize,
    ) -> Result<PositionTable, ModelError> {
        Ok(PositionTable {
            rows: weights.matrix(name, first + positions, hidden)?,
            first,
            types: Vec::new(),
        })
    }

    /// Adds the types of tokens, `[types, hidden_size]`: the first row for all tokens, and with `has_pairs` the second
    /// for the tokens of a second text.
    #[must_use]
    pub fn with_types(mut self, types: &PackedMatrix, has_pairs: bool) -> PositionTable {
        let count = types.out_features().min(1 + usize::from(has_pairs));
        let row = |number| {
            let mut row = vec![0.0; types.in_features()];
            types.row_into(number, &mut row);
            row
        };
        self.types = (0..count).map(row).collect();
        self
    }

    /// Number of positions with a row.
    pub fn positions(&self) -> usize {
        self.rows.out_features() - self.first
    }

    /// Adds the rows of a batch's positions to its embeddings, `[rows, hidden_size]`.
    ///
    /// # Errors
    /// [`ModelError::NoPosition`] for a position without a row; nothing is then added.
    pub(crate) fn add(&self, batch: &Batch, hidden: &mut [f32]) -> Result<(), ModelError> {
        let parts: Vec<_> = batch.parts(0..batch.rows()).collect();
        if let Some(part) = parts
            .iter()
            .find(|part| part.position + part.rows.len() > self.positions())
        {
            return Err(ModelError::NoPosition {
                position: part.position + part.rows.len() - 1,
                positions: self.positions(),
            });
        }
        let width = self.rows.in_features();
        let mut row = vec![0.0; width];
        for part in parts {
            for (number, hidden) in hidden[part.rows.start * width..part.rows.end * width]
                .chunks_exact_mut(width)
                .enumerate()
            {
                self.rows.row_into(self.first + part.position + number, &mut row);
                add(hidden, &row);
                if let Some(first_text) = self.types.first() {
                    add(hidden, first_text);
                }
            }
        }
        Ok(())
    }

    /// Turns rows from the first text's, `[rows, hidden_size]`, into rows of the second text, if the model tells them
    /// apart.
    pub(crate) fn turn_to_second_text(&self, hidden: &mut [f32]) {
        let [first, second] = self.types.as_slice() else { return };
        let difference: Vec<f32> = second.iter().zip(first).map(|(second, first)| second - first).collect();
        hidden
            .chunks_exact_mut(difference.len())
            .for_each(|row| add(row, &difference));
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        let types: usize = self.types.iter().map(|row| size_of_val(row.as_slice())).sum();
        (self.rows.bytes() + types) as u64
    }
}
