//! The feed-forward block.

use super::{Activation, Projection};

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
    /// `input` and `output` are `[rows, hidden]`; `inner` and `inner_gate` are scratch, `[rows, intermediate]`.
    pub(crate) fn apply(&self, input: &[f32], inner: &mut [f32], inner_gate: &mut [f32], output: &mut [f32]) {
        match self {
            Mlp::Gated {
                gate,
                up,
                down,
                activation,
            } => {
                Projection::apply_all([gate, up], input, [&mut *inner_gate, &mut *inner]);
                activation.gate(inner_gate, inner);
                down.apply(inner_gate, output);
            }
            Mlp::Plain { up, down, activation } => {
                up.apply(input, inner);
                activation.apply(inner);
                down.apply(inner, output);
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
