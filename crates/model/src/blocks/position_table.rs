//! Learned embeddings of positions, in place of a rotation.

use riffle_linear::PackedMatrix;

use crate::weights::Checkpoint;
use crate::{Batch, ModelError};

/// One row per position, added to the embedding of the token there.
pub struct PositionTable {
    rows: PackedMatrix,
    /// Rows before the first position's row.
    first: usize,
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
        })
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
                hidden.iter_mut().zip(&row).for_each(|(value, added)| *value += added);
            }
        }
        Ok(())
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.rows.bytes() as u64
    }
}
