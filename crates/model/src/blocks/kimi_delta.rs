//! Kimi Delta Attention (Kimi Linear, arXiv:2510.26692): the gated delta rule with a decay per element of a key.
//!
//! Queries, keys and values pass a short causal convolution. The rule updates and reads the memories. The result is
//! normalised per head and gated. Decays and gates are projected through a narrow layer.

use super::Projection;
use super::activation::{sigmoid, softplus};
use super::gated_delta_net::{convolution, gate_heads};
use super::recurrence::{Recurrence, Rule};
use super::rows::for_rows;
use crate::recorded::RecordedRows;
use crate::recurrent::LayerState;
use crate::weights::Checkpoint;
use crate::{KimiDeltaShape, ModelError, SegmentPart};

/// The weights of one layer's token mixer.
pub struct KimiDeltaAttention {
    pub(super) shape: KimiDeltaShape,
    recurrence: Recurrence,
    /// Projection to queries, keys and values of all heads, for the convolution.
    pub mixed: Projection,
    /// Projection to the write strength, `[heads]`.
    pub strength: Projection,
    /// Projections to `[head_dim]` and then to the decay rates of the memory's rows, `[heads, head_dim]`.
    pub decay: [Projection; 2],
    /// Projections to `[head_dim]` and then to the gate of the reads, `[heads, head_dim]`.
    pub gate: [Projection; 2],
    /// Projection from the reads to `[hidden_size]`.
    pub output: Projection,
    /// `[heads]`, below zero.
    pub decay_rates: Vec<f32>,
    /// `[heads, head_dim]`.
    pub decay_biases: Vec<f32>,
    /// Weights `[head_dim]` of the root-mean-square norm of each head's reads.
    pub norm: Vec<f32>,
    /// The term that this norm adds to the mean square.
    pub norm_epsilon: f32,
}

impl KimiDeltaAttention {
    /// Loads the tensors below `name`, named as in transformers or in the released files.
    ///
    /// # Errors
    /// [`ModelError`] for tensors that are missing or of another shape.
    pub fn load(
        weights: &mut Checkpoint,
        name: &str,
        shape: &KimiDeltaShape,
        hidden: usize,
        norm_epsilon: f32,
    ) -> Result<KimiDeltaAttention, ModelError> {
        let (heads, head_dim, width) = (shape.heads, shape.head_dim, shape.width());
        let part = |part: &str| format!("{name}.{part}");
        let within = part("forget_gate.dt_bias");
        let prefix = if weights.info(&within).is_some() {
            "forget_gate."
        } else {
            ""
        };
        let gated = |name: &str| part(&format!("{prefix}{name}"));
        // GGUF files store the rates themselves.
        let decay_rates = if weights.info(&part("A")).is_some() {
            weights.values(&part("A"), heads)?
        } else {
            let logarithms = weights.values(&gated("A_log"), heads)?;
            logarithms.into_iter().map(|logarithm| -logarithm.exp()).collect()
        };
        let convolution = convolution(weights, part, shape.channels(), shape.kernel)?;
        let rows = ["q_proj", "k_proj", "v_proj"].map(|name| (part(&format!("{name}.weight")), width));
        let mixed = Projection::of_parts(weights.joined(&rows, hidden)?, None);
        let mut load = |name: String, outputs, inputs| Projection::load(weights, &name, outputs, inputs, false);
        Ok(KimiDeltaAttention {
            shape: *shape,
            recurrence: Recurrence {
                convolution: convolution.with_silu(),
                rule: Rule::delta_by_channel(shape),
            },
            mixed,
            strength: load(part("b_proj"), heads, hidden)?,
            decay: [
                load(gated("f_a_proj"), head_dim, hidden)?,
                load(gated("f_b_proj"), width, head_dim)?,
            ],
            gate: [
                load(part("g_a_proj"), head_dim, hidden)?,
                load(part("g_b_proj"), width, head_dim)?,
            ],
            output: load(part("o_proj"), hidden, width)?,
            decay_rates,
            decay_biases: weights.values(&gated("dt_bias"), width)?,
            norm: weights.vector(&part("o_norm.weight"), head_dim)?,
            norm_epsilon,
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
        let rows: usize = parts.iter().map(|part| part.rows.len()).sum();
        let head_dim = self.shape.head_dim;
        let mut block = self.recurrence.scratch(rows, scratch);
        // There are no reads yet, so their buffer holds the narrow layers.
        let [narrow_decay, narrow_gate] =
            [&mut *block.read, &mut *block.mixed].map(|values| &mut values[..rows * head_dim]);
        let projections = [&self.mixed, &self.strength, &self.decay[0], &self.gate[0]];
        let outputs = [
            &mut *block.raw,
            &mut *block.strength,
            &mut *narrow_decay,
            &mut *narrow_gate,
        ];
        Projection::apply_all(projections, input, outputs, parts);
        self.decay[1].apply(narrow_decay, block.decay, parts);
        self.gate[1].apply(narrow_gate, block.gated, parts);
        block
            .strength
            .iter_mut()
            .for_each(|strength| *strength = sigmoid(*strength));
        for_rows(block.decay, self.shape.width(), |_, decays| {
            for ((head, decays), rate) in decays.chunks_exact_mut(head_dim).enumerate().zip(&self.decay_rates) {
                let biases = &self.decay_biases[head * head_dim..];
                for (decay, bias) in decays.iter_mut().zip(biases) {
                    *decay = rate * softplus(*decay + bias);
                }
            }
        });
        self.recurrence.apply(parts, states, &mut block, |rows| {
            gate_heads(rows, self.shape.width(), (&self.norm, self.norm_epsilon), sigmoid);
        });
        self.output.apply(block.gated, output, parts);
    }

    /// Applies recorded rows to the state.
    pub(super) fn replay(&self, state: &mut LayerState, rows: RecordedRows<'_>) {
        self.recurrence.replay(state, rows);
    }

    /// Bytes in memory.
    pub(super) fn bytes(&self) -> u64 {
        let vectors = [&self.decay_rates, &self.decay_biases, &self.norm];
        let values: usize = vectors.into_iter().map(Vec::len).sum();
        let own = [&self.mixed, &self.strength, &self.output];
        let projections = own.into_iter().chain(&self.decay).chain(&self.gate);
        projections.map(Projection::bytes).sum::<u64>() + self.recurrence.convolution.bytes() + 4 * values as u64
    }
}
