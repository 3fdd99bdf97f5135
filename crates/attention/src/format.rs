use alloc::vec::Vec;

use crate::half::{bf16_to_f32, f16_to_f32};
use crate::{AttendError, LANES};

/// Width along `head_dim` of the blocks that share a scale in a quantised plane. The last block of
/// a head may be narrower.
pub const QUANT_BLOCK: usize = 32;

/// Element format of one plane of K or V.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// IEEE single precision, 4 bytes an element.
    F32,
    /// IEEE half precision as bits, 2 bytes an element.
    F16,
    /// bfloat16 as bits, 2 bytes an element.
    Bf16,
    /// Signed 8-bit integers with one f16 scale for 32 elements of a token.
    Q8_0,
    /// 4-bit integers with one f16 scale for 32 elements of a token.
    Q4_0,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 5] = [Self::F32, Self::F16, Self::Bf16, Self::Q8_0, Self::Q4_0];

    /// Elements of the slice behind a plane of `page_tokens`: f32s, u16s, or bytes when quantised.
    pub fn plane_len(self, page_tokens: usize, head_dim: usize) -> usize {
        let scale_bytes = 2 * head_dim.div_ceil(QUANT_BLOCK);
        page_tokens
            * match self {
                Self::F32 | Self::F16 | Self::Bf16 => head_dim,
                Self::Q8_0 => head_dim + scale_bytes,
                Self::Q4_0 => head_dim / 2 + scale_bytes,
            }
    }

    /// Bytes of a plane of `page_tokens`.
    pub fn plane_bytes(self, page_tokens: usize, head_dim: usize) -> usize {
        self.plane_len(page_tokens, head_dim)
            * match self {
                Self::F32 => 4,
                Self::F16 | Self::Bf16 => 2,
                Self::Q8_0 | Self::Q4_0 => 1,
            }
    }

    /// The name used on command lines: `f32`, `f16`, `bf16`, `q8_0`, `q4_0`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
        }
    }
}

/// One plane (K or V) of a page, read only. Quantised planes are bytes.
#[derive(Debug, Clone, Copy)]
pub enum Plane<'a> {
    /// See [`Format::F32`].
    F32(&'a [f32]),
    /// See [`Format::F16`].
    F16(&'a [u16]),
    /// See [`Format::Bf16`].
    Bf16(&'a [u16]),
    /// See [`Format::Q8_0`].
    Q8_0(&'a [u8]),
    /// See [`Format::Q4_0`].
    Q4_0(&'a [u8]),
}

/// One plane (K or V) of a page, writable.
#[derive(Debug)]
pub enum PlaneMut<'a> {
    /// See [`Format::F32`].
    F32(&'a mut [f32]),
    /// See [`Format::F16`].
    F16(&'a mut [u16]),
    /// See [`Format::Bf16`].
    Bf16(&'a mut [u16]),
    /// See [`Format::Q8_0`].
    Q8_0(&'a mut [u8]),
    /// See [`Format::Q4_0`].
    Q4_0(&'a mut [u8]),
}

impl Plane<'_> {
    /// The plane's element format.
    pub fn format(&self) -> Format {
        match self {
            Self::F32(_) => Format::F32,
            Self::F16(_) => Format::F16,
            Self::Bf16(_) => Format::Bf16,
            Self::Q8_0(_) => Format::Q8_0,
            Self::Q4_0(_) => Format::Q4_0,
        }
    }

    /// Elements of the slice behind the plane (bytes when quantised).
    pub fn len(&self) -> usize {
        match self {
            Self::F32(data) => data.len(),
            Self::F16(data) | Self::Bf16(data) => data.len(),
            Self::Q8_0(data) | Self::Q4_0(data) => data.len(),
        }
    }

    /// True if the slice is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the slice begins, to tell planes from one another.
    pub(crate) fn address(&self) -> usize {
        match self {
            Self::F32(data) => data.as_ptr().addr(),
            Self::F16(data) | Self::Bf16(data) => data.as_ptr().addr(),
            Self::Q8_0(data) | Self::Q4_0(data) => data.as_ptr().addr(),
        }
    }

    /// True if both are the same slice in the same format.
    pub(crate) fn is_same_memory(&self, other: &Self) -> bool {
        self.format() == other.format() && (self.address(), self.len()) == (other.address(), other.len())
    }

    /// Checks that `tokens` (rounded up to whole stripes) of `head_dim` fit.
    pub(crate) fn check(&self, what: &'static str, tokens: usize, head_dim: usize) -> Result<(), AttendError> {
        let needed = self.format().plane_len(tokens.next_multiple_of(LANES), head_dim);
        let found = self.len();
        if found < needed {
            return Err(AttendError::Short { what, needed, found });
        }
        Ok(())
    }
}

impl PlaneMut<'_> {
    /// The same plane, read only.
    pub fn as_plane(&self) -> Plane<'_> {
        match self {
            Self::F32(data) => Plane::F32(data),
            Self::F16(data) => Plane::F16(data),
            Self::Bf16(data) => Plane::Bf16(data),
            Self::Q8_0(data) => Plane::Q8_0(data),
            Self::Q4_0(data) => Plane::Q4_0(data),
        }
    }
}

/// Tokens of a tensor that lies row by row: `[tokens, head_dim]`, from token to token a stride that the call names.
///
/// A slice, an array or a vector of f32 converts into it. Other crates' half types are bits here: `half::f16` slices
/// reinterpret as `&[u16]` (`bytemuck::cast_slice`, or `half`'s own `reinterpret_cast`).
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Rows<'a> {
    /// IEEE single precision.
    F32(&'a [f32]),
    /// IEEE half precision as bits.
    F16(&'a [u16]),
    /// bfloat16 as bits.
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

    /// The elements from `first` on; none if there are fewer.
    pub fn skip(self, first: usize) -> Self {
        match self {
            Self::F32(data) => Self::F32(data.get(first..).unwrap_or_default()),
            Self::F16(data) => Self::F16(data.get(first..).unwrap_or_default()),
            Self::Bf16(data) => Self::Bf16(data.get(first..).unwrap_or_default()),
        }
    }

    /// The format of its elements.
    pub fn format(&self) -> Format {
        match self {
            Self::F32(_) => Format::F32,
            Self::F16(_) => Format::F16,
            Self::Bf16(_) => Format::Bf16,
        }
    }

    /// The elements, where they are f32.
    pub(crate) fn floats(self) -> &'a [f32] {
        match self {
            Self::F32(data) => data,
            Self::F16(_) | Self::Bf16(_) => &[],
        }
    }

    /// The elements' bits, where they are of 16 bits.
    pub(crate) fn halves(self) -> &'a [u16] {
        match self {
            Self::F32(_) => &[],
            Self::F16(data) | Self::Bf16(data) => data,
        }
    }

    /// The first `len` elements as f32, in `buffer` unless they are f32 already.
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

pub(crate) fn check_head_dim(head_dim: usize) -> Result<(), AttendError> {
    if head_dim == 0 || !head_dim.is_multiple_of(LANES) {
        return Err(AttendError::HeadDim { head_dim });
    }
    Ok(())
}
