//! The inputs of a recurrent layer from the latest rows, so that the layer can be taken back to any of them.
//!
//! A state of a recurrent layer cannot forget a token. Where drafted tokens are verified, a copy of the state is taken once, before them,
//! and each row's inputs are recorded. The inputs of the rows that are kept are then replayed into the copy: far less work than the rows
//! were, and the same bits.

use crate::{SegmentPart, StateShape};

/// Rows that can be recorded: those of a pass of answers.
pub(crate) const MOST_ROWS: usize = 16;

/// The inputs of one layer since [`begin`](Self::begin).
#[derive(Debug, Clone, Default)]
pub(crate) struct Recorded {
    /// True if every row since is here.
    is_whole: bool,
    rows: usize,
    /// `[rows, channels]`, before the convolution.
    raw: Vec<f32>,
    /// `[rows, heads]`, how much of a value is written.
    strength: Vec<f32>,
    /// `[rows, decays]`, the logarithm of what remains of the memory.
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
    /// Records from here on.
    pub(crate) fn begin(&mut self) {
        self.is_whole = true;
        self.truncate(0);
    }

    /// Records nothing more, until it is begun again.
    pub(crate) fn end(&mut self) {
        self.is_whole = false;
        self.truncate(0);
    }

    /// Takes the inputs of a part of a segment. Tokens of prompts, and more rows than can be recorded, end it.
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
            // Once, for all rows that can be recorded: the memory that is planned.
            recorded.reserve_exact(MOST_ROWS * (values.len() / inputs.rows) - recorded.len());
            recorded.extend_from_slice(values);
        }
    }

    /// Rows that are recorded; `None` where any since the beginning is missing.
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

    /// Forgets the rows behind the first `rows`.
    pub(crate) fn truncate(&mut self, rows: usize) {
        for values in [&mut self.raw, &mut self.strength, &mut self.decay] {
            values.truncate(values.len() / self.rows.max(1) * rows);
        }
        self.rows = self.rows.min(rows);
    }
}

/// Bytes of the recorded rows of one layer at most.
pub(crate) fn layer_bytes(shape: &StateShape) -> u64 {
    (MOST_ROWS * shape.input_width() * size_of::<f32>()) as u64
}
