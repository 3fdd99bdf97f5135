//! The feed-forward block.

use super::{Activation, Projection};
use crate::SegmentPart;

/// A feed-forward block, gated or plain.
pub enum Mlp {
    /// down(activation(gate(x)) * up(x)).
    Gated {
        /// To the inner width.
        gate: Projection,
        /// To the inner width.
        up: Projection,
        /// From the inner width.
        down: Projection,
        /// The non-linearity.
        activation: Activation,
    },
    /// down(activation(up(x))).
    Plain {
        /// To the inner width.
        up: Projection,
        /// From the inner width.
        down: Projection,
        /// The non-linearity.
        activation: Activation,
    },
}

impl Mlp {
    /// `input` and `output` are `[rows, hidden]`; `inner` and `inner_gate` are scratch of at least `[rows, inner width]`;
    /// the `parts` of segments share out the rows.
    pub(crate) fn apply(
        &self,
        input: &[f32],
        inner: &mut [f32],
        inner_gate: &mut [f32],
        output: &mut [f32],
        parts: &[SegmentPart],
    ) {
        let (Mlp::Gated { up, .. } | Mlp::Plain { up, .. }) = self;
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
            Mlp::Gated { gate, up, down, .. } => gate.bytes() + up.bytes() + down.bytes(),
            Mlp::Plain { up, down, .. } => up.bytes() + down.bytes(),
        }
    }
}
