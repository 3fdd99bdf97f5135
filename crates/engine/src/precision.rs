//! Precision of products in prompts' attention.

use std::fmt;

use riffle_attention::Arithmetic;
use riffle_policy::Phase;

/// The precision of attention of prompt tokens on the CPU. Generated tokens attend exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum AttentionPrecision {
    /// Multiplies in f32.
    #[default]
    Exact,
    /// Rounds to integers of up to 16 bits ([`Arithmetic::Rounded`]), which is faster.
    Rounded,
}

impl AttentionPrecision {
    /// Every precision.
    pub const ALL: [Self; 2] = [Self::Exact, Self::Rounded];

    /// The name used on command lines: `exact`, `rounded`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Rounded => "rounded",
        }
    }

    /// Arithmetic of attention in a phase.
    pub fn arithmetic(self, phase: Phase) -> Arithmetic {
        match (self, phase) {
            (Self::Rounded, Phase::Prefill) => Arithmetic::Rounded,
            _ => phase.arithmetic(),
        }
    }
}

impl fmt::Display for AttentionPrecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
