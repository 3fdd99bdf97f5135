//! A causal convolution followed by an update rule: the recurrence of layers with a memory matrix per head.
//!
//! [`GatedDeltaNet`](super::GatedDeltaNet) and [`Mamba2`](super::Mamba2) differ in their projections, in the [`Rule`]
//! and in the use of the result. Rows are processed in blocks, so scratch does not grow with the batch.

mod convolution;
mod rule;

use std::ops::Range;

pub(super) use convolution::Convolution;
pub(super) use rule::Rule;

use crate::SegmentPart;
use crate::recorded::RecordedRows;
use crate::recurrent::LayerState;
use rule::HeadTokens;

/// The part of a mixer that updates a state.
pub(super) struct Recurrence {
    pub(super) convolution: Convolution,
    pub(super) rule: Rule,
}

/// Scratch of a mixer for a block of rows.
pub(super) struct Scratch<'a> {
    /// `[rows, channels]`, before the convolution.
    pub(super) raw: &'a mut [f32],
    /// `[rows, channels]`, after the convolution.
    pub(super) mixed: &'a mut [f32],
    /// `[rows, heads, columns]`: a gate, then the gated result.
    pub(super) gated: &'a mut [f32],
    /// For each part `[heads, rows, columns]`: reads from the memories.
    pub(super) read: &'a mut [f32],
    /// `[rows, heads]`: the write strength.
    pub(super) strength: &'a mut [f32],
    /// `[rows, heads]`, or `[rows, heads, key_dim]` by channel: logarithm of the memory's decay.
    pub(super) decay: &'a mut [f32],
}

/// Rows of one segment, after the update of the state.
pub(super) struct ReadRows<'a> {
    /// `[rows, channels]`, after the convolution.
    pub(super) mixed: &'a mut [f32],
    /// `[rows, heads, columns]`: a gate.
    pub(super) gated: &'a mut [f32],
    /// `[heads, rows, columns]`: reads of the memories.
    pub(super) read: &'a [f32],
}

impl Recurrence {
    /// Splits `scratch`, which has at least [`StateShape::scratch_width`](crate::StateShape) values per row.
    pub(super) fn scratch<'a>(&self, rows: usize, scratch: &'a mut [f32]) -> Scratch<'a> {
        let (channels, memory) = (self.convolution.channels(), self.rule.memory());
        let (raw, scratch) = scratch.split_at_mut(rows * channels);
        let (mixed, scratch) = scratch.split_at_mut(rows * channels);
        let (gated, scratch) = scratch.split_at_mut(rows * memory.width());
        let (read, scratch) = scratch.split_at_mut(rows * memory.width());
        let (strength, scratch) = scratch.split_at_mut(rows * memory.heads);
        Scratch {
            raw,
            mixed,
            gated,
            read,
            strength,
            decay: &mut scratch[..rows * self.rule.decays()],
        }
    }

    /// Reads the rows of a block into the states of their segments, and passes each segment's rows to `each`.
    pub(super) fn apply(
        &self,
        parts: &[SegmentPart],
        states: &mut [Option<&mut LayerState>],
        block: &mut Scratch<'_>,
        mut each: impl FnMut(ReadRows<'_>),
    ) {
        let memory = self.rule.memory();
        let (heads, width, channels) = (memory.heads, memory.width(), self.convolution.channels());
        let first = parts.first().map_or(0, |part| part.rows.start);
        for part in parts {
            let Some(state) = &mut states[part.segment] else {
                continue;
            };
            let of = |width: usize| values_of(part, first, width);
            let inputs = RecordedRows {
                rows: part.rows.len(),
                raw: &block.raw[of(channels)],
                strength: &block.strength[of(heads)],
                decay: &block.decay[of(self.rule.decays())],
            };
            state.recorded.take(part, inputs);
            let (mixed, read) = (&mut block.mixed[of(channels)], &mut block.read[of(width)]);
            self.read(state, part.one_by_one, inputs, mixed, read);
            each(ReadRows {
                mixed,
                gated: &mut block.gated[of(width)],
                read,
            });
        }
    }

    /// Reads rows into the state; writes `mixed`, `[rows, channels]`, and `read`, `[heads, rows, columns]`.
    fn read(
        &self,
        state: &mut LayerState,
        one_by_one: bool,
        inputs: RecordedRows<'_>,
        mixed: &mut [f32],
        read: &mut [f32],
    ) {
        self.convolution.apply(&mut state.convolution, inputs.raw, mixed);
        let tokens = HeadTokens {
            start_position: state.tokens,
            one_by_one,
            rows: inputs.rows,
            mixed,
            strength: inputs.strength,
            decay: inputs.decay,
        };
        self.rule.apply(&tokens, &mut state.memory, read);
        state.tokens += inputs.rows;
    }

    /// Applies recorded rows to the state.
    pub(super) fn replay(&self, state: &mut LayerState, rows: RecordedRows<'_>) {
        let mut mixed = vec![0.0; rows.rows * self.convolution.channels()];
        let mut read = vec![0.0; rows.rows * self.rule.memory().width()];
        self.read(state, true, rows, &mut mixed, &mut read);
    }
}

/// The values of a part in a block of rows of `width` values; `first` is the block's first row.
pub(super) fn values_of(part: &SegmentPart, first: usize, width: usize) -> Range<usize> {
    (part.rows.start - first) * width..(part.rows.end - first) * width
}
