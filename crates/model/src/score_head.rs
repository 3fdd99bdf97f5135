//! The head of a model that scores a text.

use riffle_linear::PackedMatrix;

use crate::Dense;

/// Layers from the state of one token to the scores of a text.
#[derive(Debug, Clone)]
pub struct ScoreHead {
    /// Layers of the head, at least one, first to last.
    layers: Vec<Dense>,
    takes_first: bool,
}

impl ScoreHead {
    /// One matrix, `[outputs, hidden_size]`, for the state of the last token.
    pub(crate) fn of_last(matrix: PackedMatrix) -> Self {
        Self {
            layers: vec![Dense::of_matrix(matrix)],
            takes_first: false,
        }
    }

    /// Layers for the state of the first token.
    pub(crate) fn of_first(layers: Vec<Dense>) -> Self {
        Self {
            layers,
            takes_first: true,
        }
    }

    /// True if the head reads the first token's state, false if it reads the last one's.
    pub fn takes_first(&self) -> bool {
        self.takes_first
    }

    /// Number of outputs.
    pub fn outputs(&self) -> usize {
        self.layers.last().map_or(0, Dense::outputs)
    }

    /// The outputs for a token's state after the final norm, `[hidden_size]`.
    pub fn apply(&self, state: &[f32]) -> Vec<f32> {
        let apply = |values: Vec<f32>, layer: &Dense| layer.apply(&values);
        self.layers.iter().fold(state.to_vec(), apply)
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.layers.iter().map(Dense::bytes).sum()
    }
}
