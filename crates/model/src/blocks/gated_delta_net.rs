//! Gated DeltaNet (Yang, Kautz, Hatamizadeh, "Gated Delta Networks", 2024): attention with one memory matrix per
//! head, which decays and is updated by the delta rule.
//!
//! Queries, keys and values pass a short causal convolution. The delta rule updates and reads the memories. The result
//! is normalised per head and gated.

use super::Projection;
use super::activation::{sigmoid, silu, softplus};
use super::norm::rms_scale;
use super::recurrence::{Convolution, ReadRows, Recurrence, Rule};
use super::rows::for_rows;
use crate::recorded::RecordedRows;
use crate::recurrent::LayerState;
use crate::weights::Checkpoint;
use crate::{GatedDeltaNetShape, ModelError, SegmentPart};

/// Storage of the recurrence's parameters in a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeltaNetStorage {
    /// True if value heads of one key head are `key_heads` apart, instead of adjacent.
    pub heads_tiled: bool,
    /// True if decay rates are stored as `-exp(A_log)` under the name `A`.
    pub decay_rates: bool,
    /// True if each projection is a separate tensor, named as in attention (OLMo-hybrid).
    pub is_apart: bool,
}

/// The weights of one layer's token mixer.
pub struct GatedDeltaNet {
    pub(super) shape: GatedDeltaNetShape,
    recurrence: Recurrence,
    /// Projection to queries, keys and values of all heads, for the convolution.
    pub mixed: Projection,
    /// Projection to the gate of the reads, `[value_heads, value_dim]`.
    pub gate: Projection,
    /// Projection to the write strength, `[value_heads]`.
    pub strength: Projection,
    /// The largest strength.
    strength_limit: f32,
    /// Projection to the decay rate of the memory, `[value_heads]`.
    pub decay: Projection,
    /// Projection from the reads to `[hidden_size]`.
    pub output: Projection,
    /// `[value_heads]`, below zero.
    pub decay_rates: Vec<f32>,
    /// `[value_heads]`.
    pub decay_biases: Vec<f32>,
    /// Weights `[value_dim]` of the root-mean-square norm of each head's reads.
    pub norm: Vec<f32>,
    /// The term that this norm adds to the mean square.
    pub norm_epsilon: f32,
    /// True if gates open by a sigmoid; otherwise by SiLU.
    opens_by_sigmoid: bool,
}

impl GatedDeltaNet {
    /// Loads the tensors below `name`.
    ///
    /// # Errors
    /// [`ModelError`] for tensors that are missing or of another shape.
    pub fn load(
        weights: &mut Checkpoint,
        name: &str,
        shape: &GatedDeltaNetShape,
        hidden: usize,
        norm_epsilon: f32,
        storage: DeltaNetStorage,
    ) -> Result<GatedDeltaNet, ModelError> {
        let (value_width, value_heads) = (shape.value_width(), shape.value_heads);
        let part = |part: &str| format!("{name}.{part}");
        let decay_rates = if storage.decay_rates {
            weights.vector(&part("A"), value_heads)?
        } else {
            let logarithms = weights.vector(&part("A_log"), value_heads)?;
            logarithms.into_iter().map(|logarithm| -logarithm.exp()).collect()
        };
        let decay_biases = weights.vector(&part("dt_bias"), value_heads)?;
        let [norm, output] = if storage.is_apart {
            ["o_norm", "o_proj"]
        } else if weights.info(&part("out_norm.weight")).is_some() {
            ["out_norm", "out_proj"]
        } else {
            ["norm", "out_proj"]
        };
        let norm = weights.vector(&part(&format!("{norm}.weight")), shape.value_dim)?;
        let convolution = convolution(weights, part, shape.channels(), shape.kernel)?;
        let [mixed, gate, strength, decay] = projections(weights, part, shape, hidden, storage)?;
        Ok(GatedDeltaNet {
            shape: *shape,
            recurrence: Recurrence {
                convolution: convolution.with_silu(),
                rule: Rule::delta(shape, storage.heads_tiled),
            },
            mixed,
            gate,
            strength,
            strength_limit: 1.0,
            decay,
            output: Projection::load(weights, &part(output), hidden, value_width, false)?,
            decay_rates,
            decay_biases,
            norm,
            norm_epsilon,
            opens_by_sigmoid: false,
        })
    }

    /// Sets the largest write strength: above one, a write flips the sign of the memory's value for a key.
    pub(crate) fn with_strength_limit(self, limit: f32) -> GatedDeltaNet {
        GatedDeltaNet {
            strength_limit: limit,
            ..self
        }
    }

    /// Makes the gates of reads sigmoids instead of SiLU.
    pub(crate) fn with_sigmoid_gates(self) -> GatedDeltaNet {
        GatedDeltaNet {
            opens_by_sigmoid: true,
            ..self
        }
    }

    /// Taps of the convolution, `[kernel, channels]`, the oldest token first.
    pub fn taps(&self) -> &[f32] {
        self.recurrence.convolution.taps()
    }

    /// True if value heads of one key head are `key_heads` apart, instead of adjacent.
    pub fn heads_tiled(&self) -> bool {
        self.recurrence.rule.heads_tiled()
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
        let projections = [&self.mixed, &self.gate, &self.strength, &self.decay];
        let outputs = [
            &mut *block.raw,
            &mut *block.gated,
            &mut *block.strength,
            &mut *block.decay,
        ];
        Projection::apply_all(projections, input, outputs, parts);
        block
            .strength
            .iter_mut()
            .for_each(|strength| *strength = self.strength_limit * sigmoid(*strength));
        for decay in block.decay.chunks_exact_mut(self.decay_rates.len()) {
            for ((decay, rate), bias) in decay.iter_mut().zip(&self.decay_rates).zip(&self.decay_biases) {
                *decay = rate * softplus(*decay + bias);
            }
        }
        self.recurrence.apply(parts, states, &mut block, |rows| {
            let norm = (&*self.norm, self.norm_epsilon);
            if self.opens_by_sigmoid {
                gate_heads(rows, self.shape.value_width(), norm, sigmoid);
            } else {
                gate_heads(rows, self.shape.value_width(), norm, silu);
            }
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
        let projections = [&self.mixed, &self.gate, &self.strength, &self.decay, &self.output];
        let projections: u64 = projections.into_iter().map(Projection::bytes).sum();
        projections + self.recurrence.convolution.bytes() + 4 * values as u64
    }
}

/// `gated[row, head] = norm(read[head, row]) · open(gated[row, head])`, with `width` values of all heads per row. The
/// norm has weights `[value_dim]` and an epsilon.
pub(super) fn gate_heads(
    rows: ReadRows<'_>,
    width: usize,
    (norm, epsilon): (&[f32], f32),
    open: impl Fn(f32) -> f32 + Sync,
) {
    let (value_dim, read) = (norm.len(), rows.read);
    let head_values = rows.gated.len() / width * value_dim;
    for_rows(rows.gated, width, |row, gated| {
        for (head, gated) in gated.chunks_exact_mut(value_dim).enumerate() {
            let read = &read[head * head_values + row * value_dim..][..value_dim];
            let scale = rms_scale(read, epsilon);
            for ((gate, read), weight) in gated.iter_mut().zip(read).zip(norm) {
                *gate = read * scale * weight * open(*gate);
            }
        }
    });
}

/// The convolution of all channels. Files of OLMo-hybrid store it separately for queries, keys and values.
pub(super) fn convolution(
    weights: &mut Checkpoint,
    part: impl Fn(&str) -> String,
    channels: usize,
    kernel: usize,
) -> Result<Convolution, ModelError> {
    let names = ["q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"].map(&part);
    if weights.info(&names[0]).is_none() {
        return Convolution::load(weights, &part("conv1d"), channels, kernel, false);
    }
    // transformers may split the channels at any two points.
    let mut taps = Vec::new();
    for name in &names {
        let count = weights.info(name).map_or(0, |info| info.shape.iter().product());
        taps.extend(weights.values(name, count)?);
    }
    if taps.len() == channels * kernel {
        Ok(Convolution::new(&taps, None, channels))
    } else {
        Convolution::load(weights, &part("conv1d"), channels, kernel, false)
    }
}

/// The projections to queries, keys and values, to the gate, to strengths and to decays. Lara has one tensor for all.
fn projections(
    weights: &mut Checkpoint,
    part: impl Fn(&str) -> String + Copy,
    shape: &GatedDeltaNetShape,
    hidden: usize,
    storage: DeltaNetStorage,
) -> Result<[Projection; 4], ModelError> {
    let fused = part("in_proj.weight");
    if weights.info(&fused).is_none() {
        let [mixed, gate] = inputs(weights, part, shape, hidden, storage)?;
        let [strength, decay] = decays(weights, part, shape, hidden, storage)?;
        return Ok([mixed, gate, strength, decay]);
    }
    let mut end = 0;
    let parts = [
        shape.channels(),
        shape.value_width(),
        shape.value_heads,
        shape.value_heads,
    ]
    .map(|rows| {
        end += rows;
        (end - rows..end).collect()
    });
    Projection::load_rows(weights, &fused, end, hidden, parts)
}

/// The projections to queries, keys and values, and to the gate. Qwen3-Next has one tensor, grouped by key head.
fn inputs(
    weights: &mut Checkpoint,
    part: impl Fn(&str) -> String,
    shape: &GatedDeltaNetShape,
    hidden: usize,
    storage: DeltaNetStorage,
) -> Result<[Projection; 2], ModelError> {
    let (channels, value_width, key_heads) = (shape.channels(), shape.value_width(), shape.key_heads);
    if storage.is_apart {
        let key_width = key_heads * shape.key_dim;
        let rows = [("q_proj", key_width), ("k_proj", key_width), ("v_proj", value_width)];
        let rows = rows.map(|(name, rows)| (part(&format!("{name}.weight")), rows));
        let mixed = Projection::of_parts(weights.joined(&rows, hidden)?, None);
        return Ok([
            mixed,
            Projection::load(weights, &part("g_proj"), value_width, hidden, false)?,
        ]);
    }
    let fused = part("in_proj_qkvz.weight");
    if weights.info(&fused).is_none() {
        let mut load = |name, outputs| Projection::load(weights, &part(name), outputs, hidden, false);
        return Ok([load("in_proj_qkv", channels)?, load("in_proj_z", value_width)?]);
    }
    let (keys, values) = (shape.key_dim, value_width / key_heads);
    let stride = 2 * keys + 2 * values;
    let of_heads = |first: usize, count: usize| {
        (0..key_heads).flat_map(move |head| head * stride + first..head * stride + first + count)
    };
    let mixed = of_heads(0, keys)
        .chain(of_heads(keys, keys))
        .chain(of_heads(2 * keys, values));
    let gate = of_heads(2 * keys + values, values);
    Projection::load_rows(
        weights,
        &fused,
        key_heads * stride,
        hidden,
        [mixed.collect(), gate.collect()],
    )
}

/// The projections to strengths and to decays; one tensor in Qwen3-Next.
fn decays(
    weights: &mut Checkpoint,
    part: impl Fn(&str) -> String,
    shape: &GatedDeltaNetShape,
    hidden: usize,
    storage: DeltaNetStorage,
) -> Result<[Projection; 2], ModelError> {
    let names = if storage.is_apart {
        ["b_proj", "a_proj"]
    } else {
        ["in_proj_b", "in_proj_a"]
    };
    let fused = part("in_proj_ba.weight");
    if weights.info(&fused).is_none() {
        let mut load = |name| Projection::load(weights, &part(name), shape.value_heads, hidden, false);
        return Ok([load(names[0])?, load(names[1])?]);
    }
    let group = shape.value_heads / shape.key_heads;
    let of_heads = |first: usize| {
        let heads = 0..shape.key_heads;
        heads.flat_map(move |head| (0..group).map(move |value| 2 * head * group + first + value))
    };
    let parts = [of_heads(0).collect(), of_heads(group).collect()];
    Projection::load_rows(weights, &fused, 2 * shape.value_heads, hidden, parts)
}
