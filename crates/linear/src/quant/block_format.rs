//! A block format as data, for code that is compiled once for all formats.

use super::{ActivationBlock, Field, Quant, Shape};
use crate::LANES;
use crate::machine::Isa;

/// Adds the products of a band of 16 rows to sums, by the arguments of [`Isa::quant_band`].
type MultiplyBand = fn(Isa, &[u8], &[ActivationBlock], &mut [[f32; LANES]]);

/// The scale and the minimum of a block.
type Numbers = fn(&[u8]) -> [f32; 2];

/// The facts of a [`Quant`] that packing and the drivers of products need.
pub(crate) struct BlockFormat {
    /// Weights of a block.
    pub(crate) weights: usize,
    /// Bytes of a block.
    pub(crate) bytes: usize,
    pub(crate) fields: &'static [Field],
    pub(crate) shape: Shape,
    /// True if many tokens share unpacked weights: see [`Codes::is_costly`](super::Codes::is_costly).
    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(dead_code, reason = "tiles differ on x86-64 alone")
    )]
    pub(crate) is_costly: bool,
    /// Scale and minimum of an arranged block, for formats in which they may be non-finite.
    pub(crate) numbers: Option<Numbers>,
    pub(crate) arranges_halves: bool,
    pub(crate) arrange: fn(&mut [u8]),
    pub(crate) restore: fn(&mut [u8]),
    pub(crate) dequantise: fn(&[u8], &mut [f32]),
    pub(crate) multiply_band: MultiplyBand,
}

impl BlockFormat {
    pub(crate) const fn new<Q: Quant>() -> BlockFormat {
        BlockFormat {
            weights: Q::WEIGHTS,
            bytes: Q::BYTES,
            fields: Q::FIELDS,
            shape: Q::SHAPE,
            is_costly: Q::CODES.is_costly(),
            numbers: if Q::HAS_HALVES { Some(Q::numbers) } else { None },
            arranges_halves: Q::ARRANGES_HALVES,
            arrange: Q::arrange,
            restore: Q::restore,
            dequantise: Q::dequantise,
            multiply_band: Isa::quant_band::<Q>,
        }
    }
}
