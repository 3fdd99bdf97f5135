//! The strength of each adapter for one sequence.

use std::fmt::{self, Display};

/// Adapters that may be loaded beside one model.
pub const MOST_ADAPTERS: usize = 8;

/// Factors on what the adapters of a model add, for one sequence; 0 is without the adapter.
///
/// ```
/// let scales = riffle_model::AdapterScales::new(&[0.0, 0.5]);
/// assert_eq!((scales.get(1), scales.get(7), scales.is_zero()), (0.5, 0.0, false));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AdapterScales {
    /// As bits, so that equal scales are equal to the bit.
    bits: [u32; MOST_ADAPTERS],
}

impl AdapterScales {
    /// The factors of the first adapters, in order; those behind [`MOST_ADAPTERS`] are left out.
    pub fn new(scales: &[f32]) -> Self {
        let mut bits = [0; MOST_ADAPTERS];
        for (bits, scale) in bits.iter_mut().zip(scales) {
            // Zero has one form, whatever its sign.
            *bits = if *scale == 0.0 { 0 } else { scale.to_bits() };
        }
        Self { bits }
    }

    /// The factor of an adapter.
    pub fn get(&self, adapter: usize) -> f32 {
        self.bits.get(adapter).map_or(0.0, |bits| f32::from_bits(*bits))
    }

    /// True without any adapter.
    pub fn is_zero(&self) -> bool {
        self.bits == [0; MOST_ADAPTERS]
    }
}

impl Display for AdapterScales {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.bits.iter().rposition(|bits| *bits != 0).map_or(0, |last| last + 1);
        let scales: Vec<String> = (0..used).map(|adapter| self.get(adapter).to_string()).collect();
        f.write_str(&scales.join(", "))
    }
}
