//! A format of blocks as data, for code that is compiled once for all of them.

use super::{ActivationBlock, Field, Quant, Shape};
use crate::LANES;
use crate::machine::Isa;

/// What packing and the drivers of products ask of a [`Quant`].
pub(crate) struct BlockFormat {
    /// Weights of a block.
    pub(crate) weights: usize,
    /// Bytes of a block.
    pub(crate) bytes: usize,
    pub(crate) fields: &'static [Field],
    pub(crate) shape: Shape,
    /// True if unpacked weights are shared by many tokens: see [`Codes::is_costly`](super::Codes::is_costly).
    pub(crate) is_costly: bool,
    /// Offsets of the halves of an arranged block, where these are scales.
    pub(crate) halves: Option<[usize; 2]>,
    pub(crate) arranges_halves: bool,
    pub(crate) arrange: fn(&mut [u8]),
    pub(crate) restore: fn(&mut [u8]),
    pub(crate) dequantise: fn(&[u8], &mut [f32]),
    /// `(isa, weights, activations, sums)`: see [`Isa::quant_band`].
    pub(crate) multiply_band: fn(Isa, &[u8], &[ActivationBlock], &mut [[f32; LANES]]),
}

impl BlockFormat {
    pub(crate) const fn new<Q: Quant>() -> BlockFormat {
        BlockFormat {
            weights: Q::WEIGHTS,
            bytes: Q::BYTES,
            fields: Q::FIELDS,
            shape: Q::SHAPE,
            is_costly: Q::CODES.is_costly(),
            halves: if Q::HAS_HALVES { Some(Q::HALVES) } else { None },
            arranges_halves: Q::ARRANGES_HALVES,
            arrange: Q::arrange,
            restore: Q::restore,
            dequantise: Q::dequantise,
            multiply_band: Isa::quant_band::<Q>,
        }
    }
}
