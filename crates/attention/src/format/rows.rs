use alloc::vec::Vec;

use super::Format;
use crate::half::{bf16_to_f32, f16_to_f32};

/// Tokens of a row-major tensor, `[tokens, head_dim]`. The call gives the stride between tokens.
///
/// A slice, an array or a vector of f32 converts into it. Half-precision types of other crates are passed as bits:
/// `half::f16` slices reinterpret as `&[u16]` (`bytemuck::cast_slice`, or `half`'s own `reinterpret_cast`).
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Rows<'a> {
    /// IEEE single precision.
    F32(&'a [f32]),
    /// IEEE half precision, as bits.
    F16(&'a [u16]),
    /// bfloat16, as bits.
    Bf16(&'a [u16]),
}

impl<'a> Rows<'a> {
    /// Elements of the slice.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(data) => data.len(),
            Self::F16(data) | Self::Bf16(data) => data.len(),
        }
    }

    /// True if the slice is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements from `first` on; empty if there are fewer.
    pub fn skip(self, first: usize) -> Self {
        match self {
            Self::F32(data) => Self::F32(data.get(first..).unwrap_or_default()),
            Self::F16(data) => Self::F16(data.get(first..).unwrap_or_default()),
            Self::Bf16(data) => Self::Bf16(data.get(first..).unwrap_or_default()),
        }
    }

    /// The first `len` elements.
    pub(crate) fn first(self, len: usize) -> Self {
        match self {
            Self::F32(data) => Self::F32(&data[..len]),
            Self::F16(data) => Self::F16(&data[..len]),
            Self::Bf16(data) => Self::Bf16(&data[..len]),
        }
    }

    /// The format of the elements.
    pub fn format(&self) -> Format {
        match self {
            Self::F32(_) => Format::F32,
            Self::F16(_) => Format::F16,
            Self::Bf16(_) => Format::Bf16,
        }
    }

    /// The first `len` elements as f32; `buffer` is used unless they are already f32.
    pub(crate) fn widened<'b>(self, len: usize, buffer: &'b mut Vec<f32>) -> &'b [f32]
    where
        'a: 'b,
    {
        let (bits, widen): (_, fn(u16) -> f32) = match self {
            Self::F32(data) => return &data[..len],
            Self::F16(bits) => (bits, f16_to_f32),
            Self::Bf16(bits) => (bits, bf16_to_f32),
        };
        buffer.clear();
        buffer.extend(bits[..len].iter().map(|bits| widen(*bits)));
        buffer
    }
}

impl<'a> From<&'a [f32]> for Rows<'a> {
    fn from(data: &'a [f32]) -> Self {
        Self::F32(data)
    }
}

impl<'a> From<&'a Vec<f32>> for Rows<'a> {
    fn from(data: &'a Vec<f32>) -> Self {
        Self::F32(data)
    }
}

impl<'a, const N: usize> From<&'a [f32; N]> for Rows<'a> {
    fn from(data: &'a [f32; N]) -> Self {
        Self::F32(data)
    }
}
