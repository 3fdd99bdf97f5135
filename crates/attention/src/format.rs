//! The table of formats: one row each, from which all other code takes its facts.

mod floats;
mod plane_format;
mod q4_0;
mod q8_0;
mod quantised;
mod rows;

pub(crate) use floats::{Bf16, Element, F16, F32, Floats};
pub(crate) use plane_format::{PlaneFormat, PlaneKind, Reading, ScoreTile};
#[cfg(test)]
pub(crate) use q4_0::Q4_0;
#[cfg(test)]
pub(crate) use q8_0::Q8_0;
pub(crate) use quantised::{ElementPlace, Quant, Quantised, block_of, stripe_bytes};
pub use rows::Rows;

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use crate::{AttendError, LANES};

/// Elements along `head_dim` that share a scale in a quantised plane. The last block of a head may be narrower.
pub const QUANT_BLOCK: usize = 32;

/// Generates the public types and the dispatch over them, so that each format is defined once.
///
/// A row gives the format's name in code, the element of its slices, and its number in files. Then come its name on
/// command lines and the type that implements it. `$d` passes `$` to the macros that this one generates.
macro_rules! formats {
    ($d:tt $($(#[$doc:meta])* $Format:ident($Raw:ty) = $number:literal, $name:literal, $type:ty;)*) => {
        /// Element format of one plane of K or V.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Format {
            $($(#[$doc])* $Format = $number,)*
        }

        impl Format {
            /// Every format.
            pub const ALL: [Self; [$($number),*].len()] = [$(Self::$Format),*];

            /// Names of all formats, separated by `|`.
            pub const NAMES: &str = concat!($("|", $name),*).split_at(1).1;

            /// The name used on command lines, for example `q8_0`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$Format => $name,)*
                }
            }
        }

        /// One plane (K or V) of a page, read only. Quantised planes are bytes.
        #[derive(Debug, Clone, Copy)]
        #[non_exhaustive]
        pub enum Plane<'a> {
            $(#[doc = concat!("See [`Format::", stringify!($Format), "`].")] $Format(&'a [$Raw]),)*
        }

        /// One plane (K or V) of a page, writable.
        #[derive(Debug)]
        #[non_exhaustive]
        pub enum PlaneMut<'a> {
            $(#[doc = concat!("See [`Format::", stringify!($Format), "`].")] $Format(&'a mut [$Raw]),)*
        }

        /// A plane that owns its memory.
        #[derive(Debug, Clone, PartialEq)]
        #[non_exhaustive]
        pub enum PlaneBuf {
            $(#[doc = concat!("See [`Format::", stringify!($Format), "`].")] $Format(Vec<$Raw>),)*
        }

        impl Plane<'_> {
            /// The plane's element format.
            pub fn format(&self) -> Format {
                match self {
                    $(Self::$Format(_) => Format::$Format,)*
                }
            }

            /// A plane without tokens.
            pub fn empty(format: Format) -> Self {
                match format {
                    $(Format::$Format => Self::$Format(&[]),)*
                }
            }

            /// The elements in a range of the plane's slice.
            pub(crate) fn slice(self, range: Range<usize>) -> Self {
                match self {
                    $(Self::$Format(data) => Self::$Format(&data[range]),)*
                }
            }
        }

        impl PlaneMut<'_> {
            /// The same plane, read only.
            pub fn as_plane(&self) -> Plane<'_> {
                match self {
                    $(Self::$Format(data) => Plane::$Format(data),)*
                }
            }
        }

        impl PlaneBuf {
            /// A plane of `tokens` tokens, a multiple of 16, with every byte set to `byte`. Tests use 0xff, which any
            /// kernel that reads it by mistake reveals.
            pub fn filled(format: Format, tokens: usize, head_dim: usize, byte: u8) -> Self {
                let len = format.plane_len(tokens, head_dim);
                match format {
                    $(Format::$Format => {
                        let element = <$Raw>::from_ne_bytes([byte; size_of::<$Raw>()]);
                        Self::$Format(vec![element; len])
                    })*
                }
            }

            /// Grows the plane to `tokens` tokens, a multiple of 16, filled with zero bytes. Never shrinks it.
            pub fn grow(&mut self, tokens: usize, head_dim: usize) {
                let len = self.plane().format().plane_len(tokens, head_dim);
                match self {
                    $(Self::$Format(data) => data.resize(data.len().max(len), <$Raw>::default()),)*
                }
            }

            /// The plane, read only.
            pub fn plane(&self) -> Plane<'_> {
                match self {
                    $(Self::$Format(data) => Plane::$Format(data),)*
                }
            }

            /// The plane, writable.
            pub fn plane_mut(&mut self) -> PlaneMut<'_> {
                match self {
                    $(Self::$Format(data) => PlaneMut::$Format(data),)*
                }
            }
        }

        #[cfg(feature = "bytemuck")]
        impl<'a> Plane<'a> {
            /// A plane over these bytes.
            ///
            /// # Panics
            /// When the bytes are not aligned for the format's elements, or are not a whole number of elements.
            pub fn from_bytes(format: Format, bytes: &'a [u8]) -> Self {
                match format {
                    $(Format::$Format => Self::$Format(bytemuck::cast_slice(bytes)),)*
                }
            }

            /// The bytes of the plane.
            pub fn bytes(&self) -> &'a [u8] {
                match *self {
                    $(Self::$Format(data) => bytemuck::cast_slice(data),)*
                }
            }
        }

        #[cfg(feature = "bytemuck")]
        impl<'a> PlaneMut<'a> {
            /// A plane over these bytes.
            ///
            /// # Panics
            /// As [`Plane::from_bytes`].
            pub fn from_bytes(format: Format, bytes: &'a mut [u8]) -> Self {
                match format {
                    $(Format::$Format => Self::$Format(bytemuck::cast_slice_mut(bytes)),)*
                }
            }
        }

        /// The types that implement the formats, named like the formats.
        pub(crate) mod types {
            use super::*;

            $(pub(crate) type $Format = $type;)*
        }

        /// Evaluates an expression with `F` bound to the type that implements a format.
        macro_rules! with_format {
            ($d format:expr, $d F:ident => $d body:expr) => {
                match $d format {
                    $($crate::Format::$Format => {
                        type $d F = $crate::format::types::$Format;
                        $d body
                    })*
                }
            };
        }

        /// Evaluates an expression with `F` bound to a plane's format type and `data` to its slice. With two planes,
        /// a writable and a read-only one, evaluates only if their formats are equal.
        macro_rules! with_plane {
            (($d to:expr, $d from:expr), $d F:ident, $d a:ident, $d b:ident => $d body:expr) => {
                match ($d to, $d from) {
                    $(($crate::PlaneMut::$Format($d a), $crate::Plane::$Format($d b)) => {
                        type $d F = $crate::format::types::$Format;
                        $d body
                    })*
                    _ => {}
                }
            };
            ($d Plane:ident $d plane:expr, $d F:ident, $d data:ident => $d body:expr) => {
                match $d plane {
                    $($crate::$d Plane::$Format($d data) => {
                        #[allow(dead_code, reason = "some ask for the slice alone")]
                        type $d F = $crate::format::types::$Format;
                        $d body
                    })*
                }
            };
        }
        pub(crate) use with_plane;
    };
}

formats! { $
    /// IEEE single precision, 4 bytes an element.
    F32(f32) = 0, "f32", Floats<floats::F32>;
    /// IEEE half precision as bits, 2 bytes per element.
    F16(u16) = 1, "f16", Floats<floats::F16>;
    /// bfloat16 as bits, 2 bytes per element.
    Bf16(u16) = 2, "bf16", Floats<floats::Bf16>;
    /// Signed 8-bit integers with one f16 scale per 32 elements of a token.
    Q8_0(u8) = 3, "q8_0", Quantised<q8_0::Q8_0>;
    /// 4-bit integers with one f16 scale per 32 elements of a token.
    Q4_0(u8) = 4, "q4_0", Quantised<q4_0::Q4_0>;
}

impl PlaneBuf {
    /// A plane of `tokens` tokens, a multiple of 16, filled with zero bytes.
    pub fn new(format: Format, tokens: usize, head_dim: usize) -> Self {
        Self::filled(format, tokens, head_dim, 0)
    }
}

impl Format {
    /// Elements of the slice of a plane of `page_tokens` tokens: f32s, u16s, or bytes when quantised.
    pub fn plane_len(self, page_tokens: usize, head_dim: usize) -> usize {
        with_format!(self, F => F::plane_len(page_tokens, head_dim))
    }

    /// Bytes per element of a plane's slice: 4, 2 or 1.
    pub fn element_bytes(self) -> usize {
        with_format!(self, F => size_of::<<F as PlaneFormat>::Raw>())
    }

    /// Bytes of a plane of `page_tokens`.
    pub fn plane_bytes(self, page_tokens: usize, head_dim: usize) -> usize {
        self.plane_len(page_tokens, head_dim) * self.element_bytes()
    }

    /// True if the format stores integers with shared scales.
    pub fn is_quantised(self) -> bool {
        with_format!(self, F => F::IS_QUANTISED)
    }

    /// True if the format is so coarse that heads should be rotated before storage, see
    /// [`rotate_heads`](crate::rotate_heads).
    pub fn gains_by_rotation(self) -> bool {
        with_format!(self, F => F::GAINS_BY_ROTATION)
    }

    /// Number of the format in files. It never changes.
    pub fn number(self) -> u64 {
        self as u64
    }

    /// True if planes of this format are read without widening.
    pub(crate) fn reads_in_place(self, kind: PlaneKind, reading: Reading) -> bool {
        with_format!(self, F => F::reads_in_place(kind, reading))
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Plane<'_> {
    /// Elements of the plane's slice (bytes when quantised).
    pub fn len(&self) -> usize {
        with_plane!(Plane self, F, data => data.len())
    }

    /// True if the slice is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Address of the slice, which identifies the plane.
    pub(crate) fn address(&self) -> usize {
        with_plane!(Plane self, F, data => data.as_ptr().addr())
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

pub(crate) fn check_head_dim(head_dim: usize) -> Result<(), AttendError> {
    if head_dim == 0 || !head_dim.is_multiple_of(LANES) {
        return Err(AttendError::HeadDim { head_dim });
    }
    Ok(())
}
