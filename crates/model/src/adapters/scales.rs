//! The strength of each adapter for one sequence.

use std::fmt::{self, Display};

/// The most adapters beside one model.
pub const MOST_ADAPTERS: usize = 8;

/// Factors on the parts of a model's adapters, for one sequence; 0 disables the adapter.
///
/// ```
/// let scales = riffle_model::AdapterScales::new(&[0.0, 0.5]);
/// assert_eq!((scales.get(1), scales.get(7), scales.is_zero()), (0.5, 0.0, false));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AdapterScales {
    /// Stored as bits, so that equal scales compare equal.
    bits: [u32; MOST_ADAPTERS],
}

impl AdapterScales {
    /// The factors of the first adapters, in order; entries beyond [`MOST_ADAPTERS`] are ignored.
    pub fn new(scales: &[f32]) -> Self {
        let mut bits = [0; MOST_ADAPTERS];
        for (bits, scale) in bits.iter_mut().zip(scales) {
            // Positive and negative zero get the same bits.
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
