//! The feed-forward block.

use super::rows::for_rows;
use super::{Activation, Projection};
use crate::SegmentPart;

/// A feed-forward block, gated or plain.
pub enum Mlp {
    /// down(activation(gate(x)) * up(x)).
    Gated {
        /// Projection to the inner width.
        gate: Projection,
        /// Projection to the inner width.
        up: Projection,
        /// Projection from the inner width.
        down: Projection,
        /// The non-linearity.
        activation: Activation,
    },
    /// As `Gated`. A gate opens only above the mean of its token's gates plus this many standard deviations.
    Sparse {
        /// Projection to the inner width.
        gate: Projection,
        /// Projection to the inner width.
        up: Projection,
        /// Projection from the inner width.
        down: Projection,
        /// The activation of the excess.
        activation: Activation,
        /// Standard deviations.
        deviations: f32,
    },
    /// down(activation(up(x))).
    Plain {
        /// Projection to the inner width.
        up: Projection,
        /// Projection from the inner width.
        down: Projection,
        /// The non-linearity.
        activation: Activation,
    },
}

impl Mlp {
    /// `input` and `output` are `[rows, hidden]`; `inner` and `inner_gate` are scratch of at least
    /// `[rows, inner width]`. `parts` assigns the rows to segments.
    pub(crate) fn apply(
        &self,
        input: &[f32],
        inner: &mut [f32],
        inner_gate: &mut [f32],
        output: &mut [f32],
        parts: &[SegmentPart],
    ) {
        let (Mlp::Gated { up, .. } | Mlp::Sparse { up, .. } | Mlp::Plain { up, .. }) = self;
        let used = input.len() / up.weight().in_features() * up.weight().out_features();
        let (inner, inner_gate) = (&mut inner[..used], &mut inner_gate[..used]);
        match self {
            Mlp::Gated {
                gate,
                up,
                down,
                activation,
            } => {
                Projection::apply_all([gate, up], input, [&mut *inner_gate, &mut *inner], parts);
                activation.gate(inner_gate, inner);
                down.apply(inner_gate, output, parts);
            }
            Mlp::Sparse {
                gate,
                up,
                down,
                activation,
                deviations,
            } => {
                Projection::apply_all([gate, up], input, [&mut *inner_gate, &mut *inner], parts);
                for_rows(inner_gate, up.weight().out_features(), |_, gate| {
                    keep_above(gate, *deviations)
                });
                activation.gate(inner_gate, inner);
                down.apply(inner_gate, output, parts);
            }
            Mlp::Plain { up, down, activation } => {
                up.apply(input, inner, parts);
                activation.apply(inner);
                down.apply(inner, output, parts);
            }
        }
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Mlp::Gated { gate, up, down, .. } | Mlp::Sparse { gate, up, down, .. } => {
                gate.bytes() + up.bytes() + down.bytes()
            }
            Mlp::Plain { up, down, .. } => up.bytes() + down.bytes(),
        }
    }
}

/// Subtracts mean plus `deviations` standard deviations from the values, and sets negative results to zero.
fn keep_above(values: &mut [f32], deviations: f32) {
    let count = values.len() as f64;
    let mean = values.iter().map(|value| f64::from(*value)).sum::<f64>() / count;
    let square = values.iter().map(|value| (f64::from(*value) - mean).powi(2));
    let limit = (mean + (square.sum::<f64>() / count).sqrt() * f64::from(deviations)) as f32;
    values.iter_mut().for_each(|value| *value = (*value - limit).max(0.0));
}
