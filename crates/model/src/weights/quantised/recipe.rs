//! Computes the bytes of a packed format from a matrix's stored tensors.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use riffle_linear::WeightFormat;

use super::e2m1::E2m1;
use super::float8::Float8;
use super::integers::Integers;
use crate::weights::{StoredTensor, TensorType, to_f32};
use crate::{ModelError, TensorInfo};

/// A file's tensor that is a part of a matrix.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    /// Number of the part's file in the checkpoint.
    pub(crate) file: usize,
    pub(crate) stored: StoredTensor,
}

/// The parts of a matrix, by content.
#[derive(Debug, Clone)]
pub(crate) struct Parts<P> {
    pub(crate) codes: P,
    pub(crate) scales: P,
    /// Zero points, or the terms added to scaled codes.
    pub(crate) zeros: Option<P>,
    /// The group of each input.
    pub(crate) order: Option<P>,
    /// A scale of the whole tensor.
    pub(crate) whole: Option<P>,
}

/// Conversion of codes and scales to a packed format.
#[derive(Debug, Clone)]
pub(crate) enum Conversion {
    Float8(Float8),
    Integers(Integers),
    E2m1(E2m1),
}

/// A matrix of several tensors.
#[derive(Debug, Clone)]
pub(crate) struct Recipe {
    /// Name of the matrix in errors.
    pub(crate) name: String,
    /// Number of stacked matrices, if the tensor has a dimension for them.
    pub(crate) experts: Option<usize>,
    /// Rows of all parts.
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) format: WeightFormat,
    pub(crate) conversion: Conversion,
    pub(crate) parts: Parts<Part>,
}

/// The bytes of a matrix in its packed format, and facts that no format stores.
pub(crate) struct Made {
    pub(crate) bytes: Vec<u8>,
    /// A scale of all weights.
    pub(crate) factor: f32,
    /// The input number of each column, if it differs from the column's number.
    pub(crate) order: Option<Arc<[u32]>>,
}

/// A part and its bytes.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) path: &'a Path,
    pub(crate) info: &'a TensorInfo,
    pub(crate) bytes: &'a [u8],
}

impl<P> Parts<P> {
    pub(crate) fn all(&self) -> impl Iterator<Item = &P> {
        let more = [&self.zeros, &self.order, &self.whole];
        [&self.codes, &self.scales]
            .into_iter()
            .chain(more.into_iter().flatten())
    }
}

impl Recipe {
    /// The matrix's bytes in memory, without the padding of its last rows.
    pub(crate) fn bytes(&self) -> Option<usize> {
        self.format.row_bytes(self.columns)?.checked_mul(self.rows)
    }

    /// Computes the matrix from the bytes that `of` returns for each part.
    pub(crate) fn make<'a>(
        &'a self,
        of: impl Fn(&'a Part) -> Result<(&'a Path, &'a [u8]), ModelError>,
    ) -> Result<Made, ModelError> {
        let source = |part: &'a Part| {
            let info = &part.stored.info;
            of(part).map(|(path, bytes)| Source { path, info, bytes })
        };
        let optional = |part: &'a Option<Part>| part.as_ref().map(source).transpose();
        let sources = Parts {
            codes: source(&self.parts.codes)?,
            scales: source(&self.parts.scales)?,
            zeros: optional(&self.parts.zeros)?,
            order: optional(&self.parts.order)?,
            whole: optional(&self.parts.whole)?,
        };
        match &self.conversion {
            Conversion::Float8(float8) => float8.make(self, &sources),
            Conversion::Integers(integers) => integers.make(self, &sources),
            Conversion::E2m1(e2m1) => e2m1.make(self, &sources),
        }
    }
}

impl Source<'_> {
    /// The values of scales, each finite.
    pub(crate) fn scales(&self) -> Result<Vec<f32>, ModelError> {
        let values = match &self.info.element_type {
            TensorType::Weights(format) => to_f32(*format, self.bytes),
            TensorType::Other { name, .. } if ["F8_E8M0", "U8"].contains(&name.as_str()) => {
                Some(self.bytes.iter().map(|byte| power_of_two(*byte)).collect())
            }
            TensorType::Other { .. } => None,
        };
        let values: Vec<f32> = values.ok_or_else(|| ModelError::WrongType {
            tensor: self.info.name.clone(),
            expected: "f32, f16, bf16 or F8_E8M0",
            found: self.info.element_type.clone(),
        })?;
        match values.iter().position(|value| !value.is_finite()) {
            Some(element) => Err(self.not_finite(element, values[element])),
            None => Ok(values),
        }
    }

    /// 32-bit words.
    pub(crate) fn words(&self) -> Vec<u32> {
        self.bytes
            .as_chunks()
            .0
            .iter()
            .map(|bytes| u32::from_le_bytes(*bytes))
            .collect()
    }

    pub(crate) fn not_finite(&self, element: usize, value: f32) -> ModelError {
        ModelError::NotFinite {
            tensor: self.info.name.clone(),
            element,
            value,
        }
    }
}

/// The value of an E8M0, 2^(byte − 127); the largest code is NaN.
pub(super) fn power_of_two(byte: u8) -> f32 {
    match byte {
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(byte) << 23),
    }
}

/// The value of an 8-bit float (4 bits of exponent, 3 of mantissa); the largest code is NaN.
pub(super) fn float8(byte: u8) -> f32 {
    let magnitude = f32::from_bits(u32::from(byte & 0x7f) << 20) * f32::from_bits(0x7b80_0000);
    let magnitude = if byte & 0x7f == 0x7f { f32::NAN } else { magnitude };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The bytes of rows of f32; `fill` writes one row at a time.
pub(super) fn plain_rows(recipe: &Recipe, fill: impl Fn(usize, &mut [f32]) + Sync) -> Vec<u8> {
    use rayon::prelude::*;
    let mut bytes = vec![0; recipe.bytes().unwrap_or_default()];
    bytes
        .par_chunks_mut(4 * recipe.columns)
        .enumerate()
        .for_each(|(row, bytes)| {
            let mut values = vec![0.0; recipe.columns];
            fill(row, &mut values);
            for (to, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
                *to = value.to_le_bytes();
            }
        });
    bytes
}

/// True if the element type has this name in its file.
pub(super) fn is_type(info: &TensorInfo, name: &str) -> bool {
    matches!(&info.element_type, TensorType::Other { name: found, .. } if found == name)
}

/// Rows that a thread converts together.
pub(super) const BAND_ROWS: usize = 32;

/// The rows of band `band` of `rows`.
pub(super) fn band_rows(band: usize, rows: usize) -> Range<usize> {
    band * BAND_ROWS..((band + 1) * BAND_ROWS).min(rows)
}
