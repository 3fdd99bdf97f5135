//! The gated short convolution of LFM2: a causal convolution over a few tokens, with gates before and after it.

use super::Projection;
use super::recurrence::{Convolution, values_of};
use super::rows::for_pairs;
use crate::recorded::RecordedRows;
use crate::recurrent::LayerState;
use crate::weights::Checkpoint;
use crate::{ModelError, SegmentPart, ShortConvolutionShape};

/// The weights of one layer's token mixer: `output(C · convolution(B · x))`, where `B`, `C` and `x` are projections of
/// its input.
pub struct ShortConvolution {
    pub(super) shape: ShortConvolutionShape,
    convolution: Convolution,
    /// Projection to `B`, `[channels]`.
    pub input_gate: Projection,
    /// Projection to `C`, `[channels]`.
    pub output_gate: Projection,
    /// Projection to `x`, `[channels]`.
    pub value: Projection,
    /// Projection to `[hidden_size]`.
    pub output: Projection,
}

impl ShortConvolution {
    /// Loads the tensors below `name`: `in_proj` (`B`, `C` and `x`, stacked), `conv` and `out_proj`, all with or
    /// without biases.
    ///
    /// # Errors
    /// [`ModelError`] for tensors that are missing or of another shape.
    pub fn load(
        weights: &mut Checkpoint,
        name: &str,
        shape: &ShortConvolutionShape,
        hidden: usize,
        biased: bool,
    ) -> Result<ShortConvolution, ModelError> {
        let (part, channels) = (|part: &str| format!("{name}.{part}"), shape.channels);
        let parts = [channels; 3];
        let [input_gate, output_gate, value] =
            Projection::load_parts(weights, &part("in_proj"), 1, parts, hidden, biased)?;
        Ok(ShortConvolution {
            shape: *shape,
            convolution: Convolution::load(weights, &part("conv"), channels, shape.kernel, biased)?,
            input_gate,
            output_gate,
            value,
            output: Projection::load(weights, &part("out_proj"), hidden, channels, biased)?,
        })
    }

    /// Mixes rows; `input` and `output` are `[rows, hidden]`. `parts` assigns the rows to segments, and `states` has
    /// the state of each segment.
    pub(super) fn apply(
        &self,
        parts: &[SegmentPart],
        states: &mut [Option<&mut LayerState>],
        input: &[f32],
        scratch: &mut [f32],
        output: &mut [f32],
    ) {
        let (rows, channels) = (
            parts.iter().map(|part| part.rows.len()).sum::<usize>(),
            self.shape.channels,
        );
        let (raw, scratch) = scratch.split_at_mut(rows * channels);
        let (gates, scratch) = scratch.split_at_mut(rows * channels);
        let values = &mut scratch[..rows * channels];
        let projections = [&self.input_gate, &self.output_gate, &self.value];
        Projection::apply_all(projections, input, [&mut *raw, &mut *gates, &mut *values], parts);
        multiply(raw, values);
        let first = parts.first().map_or(0, |part| part.rows.start);
        for part in parts {
            let Some(state) = &mut states[part.segment] else {
                continue;
            };
            let of = values_of(part, first, channels);
            let inputs = RecordedRows {
                rows: part.rows.len(),
                raw: &raw[of.clone()],
                strength: &[],
                decay: &[],
            };
            state.recorded.take(part, inputs);
            self.convolution
                .apply(&mut state.convolution, inputs.raw, &mut values[of]);
            state.tokens += inputs.rows;
        }
        multiply(values, gates);
        self.output.apply(values, output, parts);
    }

    /// Applies recorded rows to the state.
    pub(super) fn replay(&self, state: &mut LayerState, rows: RecordedRows<'_>) {
        Convolution::keep_last(&mut state.convolution, rows.raw);
        state.tokens += rows.rows;
    }

    /// Bytes in memory.
    pub(super) fn bytes(&self) -> u64 {
        let projections = [&self.input_gate, &self.output_gate, &self.value, &self.output];
        let projections: u64 = projections.into_iter().map(Projection::bytes).sum();
        projections + self.convolution.bytes()
    }
}

/// `values = values · factors`.
fn multiply(values: &mut [f32], factors: &[f32]) {
    for_pairs(values, factors, |values, factors| {
        for (value, factor) in values.iter_mut().zip(factors) {
            *value *= factor;
        }
    });
}
