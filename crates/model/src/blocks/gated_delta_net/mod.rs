//! Gated DeltaNet (Yang, Kautz, Hatamizadeh, "Gated Delta Networks", 2024): attention whose memory of the past is one
//! matrix for each head, renewed by the delta rule under a decay.
//!
//! Queries, keys and values pass a short causal convolution, the [`rule`] reads and renews the memories, and the
//! result is normalised by head and gated. Rows are taken in blocks, so scratch does not grow with the batch.

mod convolution;
mod rule;

use convolution::Convolution;
use rule::{HeadTokens, Rule};

use super::Projection;
use super::activation::{sigmoid, silu};
use super::norm::rms_scale;
use super::rows::for_rows;
use crate::recorded::RecordedRows;
use crate::recurrent::LayerState;
use crate::weights::Checkpoint;
use crate::{ModelError, RecurrentShape, SegmentPart};

/// How a file holds the parameters of the recurrence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeltaNetStorage {
    /// Value heads that share a key head are as many key heads apart, instead of side by side.
    pub(crate) heads_tiled: bool,
    /// Decay rates are stored as `-exp(A_log)` under the name `A`.
    pub(crate) decay_rates: bool,
}

/// The weights of one layer's token mixer.
pub struct GatedDeltaNet {
    hidden: usize,
    rule: Rule,
    convolution: Convolution,
    /// To queries, keys and values of all heads, before the convolution.
    pub mixed: Projection,
    /// To `[value_heads, value_dim]`, which opens what was read.
    pub gate: Projection,
    /// To `[value_heads]`, how much of a value is written.
    pub strength: Projection,
    /// To `[value_heads]`, how fast the memory decays.
    pub decay: Projection,
    /// From what was read to `[hidden_size]`.
    pub output: Projection,
    /// `[value_heads]`, below zero.
    pub decay_rates: Vec<f32>,
    /// `[value_heads]`.
    pub decay_biases: Vec<f32>,
    /// Weights `[value_dim]` of the root-mean-square norm of what each head read.
    pub norm: Vec<f32>,
    /// What that norm adds to the mean square.
    pub norm_epsilon: f32,
}

impl GatedDeltaNet {
    /// Takes the tensors below `name`.
    pub(crate) fn load(
        weights: &mut Checkpoint,
        name: &str,
        shape: &RecurrentShape,
        hidden: usize,
        norm_epsilon: f32,
        storage: DeltaNetStorage,
    ) -> Result<GatedDeltaNet, ModelError> {
        let (channels, value_width, value_heads) = (shape.channels(), shape.value_width(), shape.value_heads);
        let part = |part: &str| format!("{name}.{part}");
        let decay_rates = if storage.decay_rates {
            weights.vector(&part("A"), value_heads)?
        } else {
            let logarithms = weights.vector(&part("A_log"), value_heads)?;
            logarithms.into_iter().map(|logarithm| -logarithm.exp()).collect()
        };
        let decay_biases = weights.vector(&part("dt_bias"), value_heads)?;
        let norm = weights.vector(&part("norm.weight"), shape.value_dim)?;
        let convolution = Convolution::load(weights, &part("conv1d.weight"), channels, shape.kernel)?;
        let mut load = |name, outputs, inputs| Projection::load(weights, &part(name), outputs, inputs, false);
        Ok(GatedDeltaNet {
            hidden,
            rule: Rule::new(shape, storage.heads_tiled),
            mixed: load("in_proj_qkv", channels, hidden)?,
            gate: load("in_proj_z", value_width, hidden)?,
            strength: load("in_proj_b", value_heads, hidden)?,
            decay: load("in_proj_a", value_heads, hidden)?,
            output: load("out_proj", hidden, value_width)?,
            convolution,
            decay_rates,
            decay_biases,
            norm,
            norm_epsilon,
        })
    }

    /// Taps of the convolution, `[kernel, channels]`, the oldest token first.
    pub fn taps(&self) -> &[f32] {
        self.convolution.taps()
    }

    /// True if value heads that share a key head are as many key heads apart, instead of side by side.
    pub fn heads_tiled(&self) -> bool {
        self.rule.heads_tiled()
    }

    /// Values of scratch a token takes.
    pub(crate) fn scratch_width(shape: &RecurrentShape) -> usize {
        2 * (shape.channels() + shape.value_width() + shape.value_heads)
    }

    /// Mixes rows, `input` and `output` `[rows, hidden]`, which the `parts` of segments share out; `states` are those of all
    /// segments. `scratch` holds at least [`scratch_width`](Self::scratch_width) values for each row.
    pub(crate) fn apply(
        &self,
        parts: &[SegmentPart],
        states: &mut [Option<&mut LayerState>],
        input: &[f32],
        scratch: &mut [f32],
        output: &mut [f32],
    ) {
        let (heads, value_width) = (self.decay_rates.len(), self.rule.value_width());
        let channels = self.convolution.channels();
        let rows = input.len() / self.hidden;
        let (raw, scratch) = scratch.split_at_mut(rows * channels);
        let (mixed, scratch) = scratch.split_at_mut(rows * channels);
        // [rows, value_heads, value_dim]
        let (gated, scratch) = scratch.split_at_mut(rows * value_width);
        // for each part [value_heads, rows, value_dim]
        let (read, scratch) = scratch.split_at_mut(rows * value_width);
        let (strength, scratch) = scratch.split_at_mut(rows * heads);
        let decay = &mut scratch[..rows * heads];

        let projections = [&self.mixed, &self.gate, &self.strength, &self.decay];
        Projection::apply_all(
            projections,
            input,
            [&mut *raw, &mut *gated, &mut *strength, &mut *decay],
        );
        strength.iter_mut().for_each(|strength| *strength = sigmoid(*strength));
        for decay in decay.chunks_exact_mut(heads) {
            for ((decay, rate), bias) in decay.iter_mut().zip(&self.decay_rates).zip(&self.decay_biases) {
                *decay = rate * softplus(*decay + bias);
            }
        }
        let first = parts.first().map_or(0, |part| part.rows.start);
        for part in parts {
            let Some(state) = &mut states[part.segment] else {
                continue;
            };
            let at = |width: usize| (part.rows.start - first) * width..(part.rows.end - first) * width;
            let inputs = RecordedRows {
                rows: part.rows.len(),
                raw: &raw[at(channels)],
                strength: &strength[at(heads)],
                decay: &decay[at(heads)],
            };
            state.recorded.take(part, inputs);
            let read = &mut read[at(value_width)];
            self.read(state, part.one_by_one, inputs, &mut mixed[at(channels)], read);
            self.gate_heads(read, &mut gated[at(value_width)]);
        }
        self.output.apply(gated, output);
    }

    /// Takes rows into the state; `mixed`, `[rows, channels]`, and `read`, `[value_heads, rows, value_dim]`, are written.
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

    /// Takes the first `rows` recorded rows into the state, which is the one where recording began, and forgets the others.
    pub(crate) fn replay(&self, state: &mut LayerState, rows: usize) {
        state.recorded.truncate(rows);
        if rows == 0 {
            return;
        }
        let recorded = std::mem::take(&mut state.recorded);
        let mut mixed = vec![0.0; rows * self.convolution.channels()];
        let mut read = vec![0.0; rows * self.rule.value_width()];
        self.read(state, true, recorded.first(rows), &mut mixed, &mut read);
        state.recorded = recorded;
    }

    /// `gated[row, head] = norm(read[head, row]) · silu(gated[row, head])`.
    fn gate_heads(&self, read: &[f32], gated: &mut [f32]) {
        let (width, value_dim) = (self.rule.value_width(), self.norm.len());
        let head_values = gated.len() / width * value_dim;
        for_rows(gated, width, |row, gated| {
            for (head, gated) in gated.chunks_exact_mut(value_dim).enumerate() {
                let read = &read[head * head_values + row * value_dim..][..value_dim];
                let scale = rms_scale(read, self.norm_epsilon);
                for ((gate, read), weight) in gated.iter_mut().zip(read).zip(&self.norm) {
                    *gate = read * scale * weight * silu(*gate);
                }
            }
        });
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        let vectors = [&self.decay_rates, &self.decay_biases, &self.norm];
        let values: usize = vectors.into_iter().map(Vec::len).sum();
        let projections = [&self.mixed, &self.gate, &self.strength, &self.decay, &self.output];
        let projections: u64 = projections.into_iter().map(Projection::bytes).sum();
        projections + self.convolution.bytes() + 4 * values as u64
    }
}

/// ln(1 + e^x).
fn softplus(x: f32) -> f32 {
    // Beyond 20 the one is lost in rounding.
    if x > 20.0 { x } else { x.exp().ln_1p() }
}
