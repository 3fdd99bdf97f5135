//! Records the inputs of a recurrent layer's latest rows, so that the layer can return to any of them.
//!
//! A recurrent state cannot remove a token. Before drafted tokens are verified, the state is copied once. Each row's
//! inputs are recorded. The inputs of accepted rows are then replayed into the copy. This gives the same bits, and is
//! much less work than the rows themselves.

use crate::{SegmentPart, StateShape};

/// Maximum number of recorded rows: the rows of a decode pass.
pub(crate) const MOST_ROWS: usize = 16;

/// The inputs of one layer since [`begin`](Self::begin).
#[derive(Debug, Clone, Default)]
pub(crate) struct Recorded {
    /// True if every row since then is recorded.
    is_whole: bool,
    rows: usize,
    /// `[rows, channels]`, before the convolution.
    raw: Vec<f32>,
    /// `[rows, heads]`: the write strength.
    strength: Vec<f32>,
    /// `[rows, decays]`: the logarithm of the memory's decay factor.
    decay: Vec<f32>,
}

/// The recorded inputs of some rows.
#[derive(Clone, Copy)]
pub(crate) struct RecordedRows<'a> {
    pub(crate) rows: usize,
    pub(crate) raw: &'a [f32],
    pub(crate) strength: &'a [f32],
    pub(crate) decay: &'a [f32],
}

impl Recorded {
    /// Starts recording.
    pub(crate) fn begin(&mut self) {
        self.is_whole = true;
        self.truncate(0);
    }

    /// Stops recording until the next [`begin`](Self::begin).
    pub(crate) fn end(&mut self) {
        self.is_whole = false;
        self.truncate(0);
    }

    /// Records the inputs of a part of a segment. Prompt tokens, and too many rows, stop the recording.
    pub(crate) fn take(&mut self, part: &SegmentPart, inputs: RecordedRows<'_>) {
        if !self.is_whole {
            return;
        }
        if !part.one_by_one || self.rows + inputs.rows > MOST_ROWS {
            self.end();
            return;
        }
        self.rows += inputs.rows;
        let values = [
            (&mut self.raw, inputs.raw),
            (&mut self.strength, inputs.strength),
            (&mut self.decay, inputs.decay),
        ];
        for (recorded, values) in values {
            // One allocation for the maximum number of rows, as planned.
            recorded.reserve_exact(MOST_ROWS * (values.len() / inputs.rows) - recorded.len());
            recorded.extend_from_slice(values);
        }
    }

    /// Number of recorded rows; `None` if any row since the start is missing.
    pub(crate) fn rows(&self) -> Option<usize> {
        self.is_whole.then_some(self.rows)
    }

    /// The inputs of the first `rows` rows.
    pub(crate) fn first(&self, rows: usize) -> RecordedRows<'_> {
        let of = |values: &'_ Vec<f32>| values.len() / self.rows.max(1) * rows;
        RecordedRows {
            rows,
            raw: &self.raw[..of(&self.raw)],
            strength: &self.strength[..of(&self.strength)],
            decay: &self.decay[..of(&self.decay)],
        }
    }

    /// Drops the rows after the first `rows`.
    pub(crate) fn truncate(&mut self, rows: usize) {
        for values in [&mut self.raw, &mut self.strength, &mut self.decay] {
            values.truncate(values.len() / self.rows.max(1) * rows);
        }
        self.rows = self.rows.min(rows);
    }
}

/// Maximum number of bytes of the recorded rows of one layer.
pub(crate) fn layer_bytes(shape: &StateShape) -> u64 {
    (MOST_ROWS * shape.input_width() * size_of::<f32>()) as u64
}
