//! Mamba-2 (Dao, Gu, "Transformers are SSMs", 2024): attention with one memory matrix per head, which decays and adds
//! each token's value under its key.
//!
//! Values, keys (`B`) and queries (`C`) pass a short causal convolution. The additive rule updates and reads the
//! memories. The result is gated and normalised per group. Names in brackets are from the paper and `transformers`.

use super::Projection;
use super::activation::{silu, softplus};
use super::norm::rms_scale;
use super::recurrence::{Convolution, ReadRows, Recurrence, Rule};
use super::rows::for_rows;
use crate::recorded::RecordedRows;
use crate::recurrent::LayerState;
use crate::weights::Checkpoint;
use crate::{Mamba2Shape, ModelError, SegmentPart};

/// Settings that differ between families with Mamba2 layers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mamba2Settings {
    /// True if `in_proj` has a bias.
    pub input_bias: bool,
    /// True if `conv1d` has a bias.
    pub convolution_bias: bool,
    /// True if `out_proj` has a bias.
    pub output_bias: bool,
    /// The least and the largest time step (`time_step_limit`).
    pub time_step_limits: [f32; 2],
    /// The norm of the result; `None` if the result is only gated.
    pub norm: Option<Mamba2Norm>,
}

/// The root-mean-square norm beside the gate of a [`Mamba2`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mamba2Norm {
    /// Groups of values that are normalised separately.
    pub groups: usize,
    /// Number added to the mean of squares.
    pub epsilon: f32,
    /// True if the norm comes before the gate, false if after.
    pub before_gate: bool,
}

/// Factors on the outputs of a [`Mamba2`]'s projections.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Mamba2Factors {
    /// Factor on the input of all projections.
    pub(crate) input: f64,
    /// Factors on the gate, the values, the keys, the queries and the time step, including their biases.
    pub(crate) parts: [f64; 5],
    /// Factor on the result.
    pub(crate) output: f64,
}

impl Default for Mamba2Factors {
    fn default() -> Self {
        Self {
            input: 1.0,
            parts: [1.0; 5],
            output: 1.0,
        }
    }
}

/// The weights of one layer's token mixer.
pub struct Mamba2 {
    pub(super) shape: Mamba2Shape,
    settings: Mamba2Settings,
    recurrence: Recurrence,
    /// Projection to the gate of the result (`z`), `[heads, head_dim]`.
    pub gate: Projection,
    /// Projection to values, keys and queries, for the convolution (`xBC`).
    pub mixed: Projection,
    /// Projection to the time step (`dt`), `[heads]`.
    pub time_step: Projection,
    /// Projection from the result to `[hidden_size]`.
    pub output: Projection,
    /// `[heads]`, below zero (`A`).
    pub decay_rates: Vec<f32>,
    /// `[heads]`, added to the time step.
    pub time_step_biases: Vec<f32>,
    /// `[heads]`: the factor of a value that is added directly to the result (`D`).
    pub skips: Vec<f32>,
    /// Weights of the norm, `[heads, head_dim]`; empty without one.
    pub norm: Vec<f32>,
}

impl Default for Mamba2Settings {
    /// The form of `Mamba2ForCausalLM` with one group.
    fn default() -> Self {
        let norm = Mamba2Norm {
            groups: 1,
            epsilon: 1e-5,
            before_gate: false,
        };
        Self {
            input_bias: false,
            convolution_bias: true,
            output_bias: false,
            time_step_limits: [0.0, f32::INFINITY],
            norm: Some(norm),
        }
    }
}

impl Mamba2 {
    /// Loads the tensors below `name`: `in_proj` (gate, values, keys, queries and time step, stacked), `conv1d`,
    /// `dt_bias`, `A_log`, `D`, `norm.weight` and `out_proj`.
    ///
    /// # Errors
    /// [`ModelError`] for tensors that are missing or of another shape.
    pub fn load(
        weights: &mut Checkpoint,
        name: &str,
        shape: &Mamba2Shape,
        hidden: usize,
        settings: Mamba2Settings,
    ) -> Result<Mamba2, ModelError> {
        let part = |part: &str| format!("{name}.{part}");
        let (heads, inner, channels) = (shape.heads, shape.inner_width(), shape.channels());
        let parts = [inner, channels, heads];
        let [gate, mixed, time_step] =
            Projection::load_parts(weights, &part("in_proj"), 1, parts, hidden, settings.input_bias)?;
        // GGUF files store the rates themselves, and vectors as matrices.
        let decay_rates = if weights.info(&part("A")).is_some() {
            weights.values(&part("A"), heads)?
        } else {
            let logarithms = weights.vector(&part("A_log"), heads)?;
            logarithms.into_iter().map(|logarithm| -logarithm.exp()).collect()
        };
        let bias = settings.convolution_bias;
        let convolution = Convolution::load(weights, &part("conv1d"), channels, shape.kernel, bias)?;
        let norm = settings.norm.map(|_| weights.values(&part("norm.weight"), inner));
        Ok(Mamba2 {
            shape: *shape,
            settings,
            recurrence: Recurrence {
                convolution: convolution.with_silu(),
                rule: Rule::additive(shape),
            },
            gate,
            mixed,
            time_step,
            output: Projection::load(weights, &part("out_proj"), hidden, inner, settings.output_bias)?,
            decay_rates,
            time_step_biases: weights.vector(&part("dt_bias"), heads)?,
            skips: weights.values(&part("D"), heads)?,
            norm: norm.transpose()?.unwrap_or_default(),
        })
    }

    /// Applies factors.
    pub(crate) fn scaled(mut self, factors: &Mamba2Factors) -> Mamba2 {
        let [gate, values, keys, queries, time_step] = factors.parts;
        self.gate = self.gate.scaled(factors.input * gate, gate);
        self.time_step = self.time_step.scaled(factors.input * time_step, time_step);
        self.output = self.output.scaled(factors.output, factors.output);
        // The convolution includes the factors of its channels.
        self.mixed = self.mixed.scaled(factors.input, 1.0);
        let (inner, shared) = (self.shape.inner_width(), self.shape.groups * self.shape.state_width);
        let ends = [(inner, values), (inner + shared, keys), (inner + 2 * shared, queries)];
        let mut first = 0;
        for (end, factor) in ends {
            if factor != 1.0 {
                self.recurrence.convolution.scale(first..end, factor as f32);
            }
            first = end;
        }
        self
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
        let rows = parts.iter().map(|part| part.rows.len()).sum();
        let mut block = self.recurrence.scratch(rows, scratch);
        let projections = [&self.gate, &self.mixed, &self.time_step];
        let outputs = [&mut *block.gated, &mut *block.raw, &mut *block.strength];
        Projection::apply_all(projections, input, outputs, parts);
        let [least, largest] = self.settings.time_step_limits;
        let heads = self.shape.heads;
        let of_rows = block
            .strength
            .chunks_exact_mut(heads)
            .zip(block.decay.chunks_exact_mut(heads));
        for (steps, decays) in of_rows {
            let weights = self.time_step_biases.iter().zip(&self.decay_rates);
            for ((step, decay), (bias, rate)) in steps.iter_mut().zip(decays).zip(weights) {
                *step = softplus(*step + bias).max(least).min(largest);
                *decay = rate * *step;
            }
        }
        self.recurrence
            .apply(parts, states, &mut block, |rows| self.gate_rows(rows));
        self.output.apply(block.gated, output, parts);
    }

    /// Applies recorded rows to the state.
    pub(super) fn replay(&self, state: &mut LayerState, rows: RecordedRows<'_>) {
        self.recurrence.replay(state, rows);
    }

    /// `gated[row] = norm((read[row] + skip · value[row]) · silu(gated[row]))`, or with the norm before the gate.
    fn gate_rows(&self, rows: ReadRows<'_>) {
        let (width, head_dim, channels) = (self.shape.inner_width(), self.shape.head_dim, self.shape.channels());
        let head_values = rows.gated.len() / width * head_dim;
        for_rows(rows.mixed, channels, |row, mixed| {
            let heads = mixed[..width].chunks_exact_mut(head_dim).zip(&self.skips);
            for (head, (values, skip)) in heads.enumerate() {
                let read = &rows.read[head * head_values + row * head_dim..][..head_dim];
                for (value, read) in values.iter_mut().zip(read) {
                    *value = read + skip * *value;
                }
            }
        });
        let results = &*rows.mixed;
        for_rows(rows.gated, width, |row, gated| {
            self.gate_row(&results[row * channels..][..width], gated);
        });
    }

    fn gate_row(&self, result: &[f32], gated: &mut [f32]) {
        let Some(norm) = self.settings.norm else {
            gate(gated, result);
            return;
        };
        if !norm.before_gate {
            gate(gated, result);
        }
        let width = gated.len() / norm.groups;
        let groups = gated.chunks_exact_mut(width).zip(result.chunks_exact(width));
        for ((gated, result), weights) in groups.zip(self.norm.chunks_exact(width)) {
            if norm.before_gate {
                let scale = rms_scale(result, norm.epsilon);
                for ((gated, result), weight) in gated.iter_mut().zip(result).zip(weights) {
                    *gated = result * scale * weight * silu(*gated);
                }
            } else {
                let scale = rms_scale(gated, norm.epsilon);
                for (gated, weight) in gated.iter_mut().zip(weights) {
                    *gated = *gated * scale * weight;
                }
            }
        }
    }

    /// Bytes in memory.
    pub(super) fn bytes(&self) -> u64 {
        let vectors = [&self.decay_rates, &self.time_step_biases, &self.skips, &self.norm];
        let values: usize = vectors.into_iter().map(Vec::len).sum();
        let projections = [&self.gate, &self.mixed, &self.time_step, &self.output];
        let projections: u64 = projections.into_iter().map(Projection::bytes).sum();
        projections + self.recurrence.convolution.bytes() + 4 * values as u64
    }
}

/// `gated = result · silu(gated)`.
fn gate(gated: &mut [f32], result: &[f32]) {
    for (gated, result) in gated.iter_mut().zip(result) {
        *gated = result * silu(*gated);
    }
}
