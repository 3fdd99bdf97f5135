//! The instruction sets, and the one place that calls code compiled for them.

mod scalar;

use std::sync::OnceLock;

use crate::LANES;
use crate::float::{Element, GroupSums};

/// An instruction set this machine has: a value exists only for one that was detected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Isa(Set);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Set {
    Scalar,
}

impl Isa {
    /// The plain code every other set is compared with.
    pub(crate) const SCALAR: Isa = Isa(Set::Scalar);

    /// The fastest set of this machine.
    pub(crate) fn best() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| Isa::available().pop().unwrap_or(Isa::SCALAR))
    }

    /// Every set of this machine, slowest first.
    pub(crate) fn available() -> Vec<Isa> {
        vec![Isa::SCALAR]
    }

    /// Adds to `sums` the products of `weights`, `[inputs, blocks, 16]`, with each token's row of `inputs` values,
    /// panel by panel.
    pub(crate) fn float_tile<E: Element>(
        self,
        weights: &[[E::Bits; LANES]],
        blocks: usize,
        rows: &[&[f32]],
        sums: &mut [GroupSums],
    ) {
        match self.0 {
            Set::Scalar => scalar::float_tile::<E>(weights, blocks, rows, sums),
        }
    }

    /// Widens weights to f32.
    pub(crate) fn widen<E: Element>(self, weights: &[[E::Bits; LANES]], widened: &mut [[f32; LANES]]) {
        match self.0 {
            Set::Scalar => scalar::widen::<E>(weights, widened),
        }
    }
}
