//! Lightning attention (MiniMax-01, arXiv:2501.08313): linear attention with a memory that decays at a fixed rate per
//! head.
//!
//! Queries, keys and values pass an activation. The additive rule updates and reads the memories. The results of all
//! heads are normalised together and gated.

use super::norm::rms_scale;
use super::recurrence::{Convolution, ReadRows, Recurrence, Rule};
use super::rows::for_rows;
use super::{Activation, Projection};
use crate::recorded::RecordedRows;
use crate::recurrent::LayerState;
use crate::weights::Checkpoint;
use crate::{LightningShape, ModelError, SegmentPart};

/// Epsilon of the norm, independent of the settings for other norms.
const EPSILON: f32 = 1e-6;

/// The weights of one layer's token mixer.
pub struct LightningAttention {
    pub(super) shape: LightningShape,
    recurrence: Recurrence,
    activation: Activation,
    /// Projection to queries, keys and values of all heads, for the activation.
    pub mixed: Projection,
    /// Projection to the gate of the result, `[heads, head_dim]`.
    pub gate: Projection,
    /// Projection from the result to `[hidden_size]`.
    pub output: Projection,
    /// `[heads]`: the logarithm of the memory's decay factor per token.
    pub decays: Vec<f32>,
    /// Weights of the norm, `[heads, head_dim]`.
    pub norm: Vec<f32>,
}

impl LightningAttention {
    /// Loads the tensors below `name`: `qkv_proj` (query, key and value for each head), `norm`, `output_gate` and
    /// `out_proj`. This is layer `layer` of `layers`: later layers decay more slowly.
    ///
    /// # Errors
    /// [`ModelError`] for tensors that are missing or of another shape.
    pub fn load(
        weights: &mut Checkpoint,
        name: &str,
        shape: &LightningShape,
        hidden: usize,
        (layer, layers): (usize, usize),
        activation: Activation,
    ) -> Result<LightningAttention, ModelError> {
        let part = |part: &str| format!("{name}.{part}");
        // Files contain factors that are computed from the settings.
        let factors = ["slope_rate", "query_decay", "key_decay", "diagonal_decay"].map(part);
        weights.forget(|name| factors.iter().any(|factor| factor == name));
        let (heads, head_dim, width) = (shape.heads, shape.head_dim, shape.width());
        let row = |kind: usize| (0..width).map(move |at| (at / head_dim * 3 + kind) * head_dim + at % head_dim);
        let rows = (0..3).flat_map(row).collect();
        let qkv = part("qkv_proj.weight");
        let [mixed] = Projection::load_rows(weights, &qkv, shape.channels(), hidden, [rows])?;
        let later = 1.0 - layer as f64 / (layers as f64 - 1.0 + 1e-5) + 1e-5;
        let decay = |head: usize| -((-8.0 / heads as f64) * (head + 1) as f64).exp2() * later;
        let identity = vec![1.0; shape.channels()];
        Ok(LightningAttention {
            shape: *shape,
            recurrence: Recurrence {
                convolution: Convolution::new(&identity, None, shape.channels()),
                rule: Rule::lightning(shape),
            },
            activation,
            mixed,
            gate: Projection::load(weights, &part("output_gate"), width, hidden, false)?,
            output: Projection::load(weights, &part("out_proj"), hidden, width, false)?,
            decays: (0..heads).map(|head| decay(head) as f32).collect(),
            norm: weights.vector(&part("norm.weight"), width)?,
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
        let rows = parts.iter().map(|part| part.rows.len()).sum();
        let mut block = self.recurrence.scratch(rows, scratch);
        let outputs = [&mut *block.raw, &mut *block.gated];
        Projection::apply_all([&self.mixed, &self.gate], input, outputs, parts);
        self.activation.apply(block.raw);
        block.strength.fill(1.0);
        for decays in block.decay.chunks_exact_mut(self.decays.len()) {
            decays.copy_from_slice(&self.decays);
        }
        self.recurrence
            .apply(parts, states, &mut block, |rows| self.gate_rows(rows));
        self.output.apply(block.gated, output, parts);
    }

    /// Applies recorded rows to the state.
    pub(super) fn replay(&self, state: &mut LayerState, rows: RecordedRows<'_>) {
        self.recurrence.replay(state, rows);
    }

    /// `gated[row] = norm(read[row]) · sigmoid(gated[row])`, over all heads.
    fn gate_rows(&self, rows: ReadRows<'_>) {
        let (width, head_dim) = (self.shape.width(), self.shape.head_dim);
        let head_values = rows.gated.len() / width * head_dim;
        let read = rows.read;
        for_rows(rows.gated, width, |row, gated| {
            let of_head = |head: usize| &read[head * head_values + row * head_dim..][..head_dim];
            let result: Vec<f32> = (0..self.shape.heads).flat_map(of_head).copied().collect();
            let scale = rms_scale(&result, EPSILON);
            for ((gate, read), weight) in gated.iter_mut().zip(&result).zip(&self.norm) {
                *gate = read * scale * weight * super::activation::sigmoid(*gate);
            }
        });
    }

    /// Bytes in memory.
    pub(super) fn bytes(&self) -> u64 {
        let projections = [&self.mixed, &self.gate, &self.output].map(Projection::bytes);
        let values = self.decays.len() + self.norm.len();
        projections.iter().sum::<u64>() + self.recurrence.convolution.bytes() + 4 * values as u64
    }
}
