//! A tensor's entry in a weight file, and reading its elements.

use std::fmt;
use std::ops::Range;

use half::{bf16, f16};
use rayon::prelude::*;
use riffle_linear::WeightFormat;

/// The element type of a stored tensor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TensorType {
    /// A format of weights this crate computes with.
    Weights(WeightFormat),
    /// A type this crate lists but does not compute with.
    Other {
        /// Name of the type in the file.
        name: String,
        /// Elements stored together.
        block_elements: u64,
        /// Bytes of these elements.
        block_bytes: u64,
    },
}

impl TensorType {
    /// Elements per block; 1 except for quantised types.
    pub fn block_elements(&self) -> u64 {
        match self {
            TensorType::Weights(format) => format.block_weights() as u64,
            TensorType::Other { block_elements, .. } => *block_elements,
        }
    }

    /// Bytes per block.
    pub fn block_bytes(&self) -> u64 {
        match self {
            TensorType::Weights(format) => format.block_bytes() as u64,
            TensorType::Other { block_bytes, .. } => *block_bytes,
        }
    }

    /// Bytes of `elements` elements; `None` if they are not a whole number of blocks, or too many.
    pub fn bytes_of(&self, elements: u64) -> Option<u64> {
        let whole = elements.is_multiple_of(self.block_elements());
        (elements / self.block_elements())
            .checked_mul(self.block_bytes())
            .filter(|_| whole)
    }

    fn other(name: &str, block_elements: u64, block_bytes: u64) -> TensorType {
        TensorType::Other {
            name: name.to_owned(),
            block_elements,
            block_bytes,
        }
    }

    /// The type named in a safetensors header; `None` if the format has no such type.
    pub(crate) fn from_safetensors(name: &str) -> Option<TensorType> {
        let (elements, bytes) = match name {
            "F32" => return Some(TensorType::Weights(WeightFormat::F32)),
            "F16" => return Some(TensorType::Weights(WeightFormat::F16)),
            "BF16" => return Some(TensorType::Weights(WeightFormat::Bf16)),
            "F4" => (2, 1),
            "F6_E2M3" | "F6_E3M2" => (4, 3),
            "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => (1, 1),
            "I16" | "U16" => (1, 2),
            "I32" | "U32" => (1, 4),
            "F64" | "I64" | "U64" | "C64" => (1, 8),
            _ => return None,
        };
        Some(TensorType::other(name, elements, bytes))
    }

    /// The type with this number in GGUF files, or the reason there is none.
    pub(crate) fn from_gguf(number: u32) -> Result<TensorType, NoSuchType> {
        if let Some(format) = WeightFormat::from_ggml_type(number) {
            return Ok(TensorType::Weights(format));
        }
        let (name, elements, bytes) = match number {
            9 => ("Q8_1", 32, 36),
            15 => ("Q8_K", 256, 292),
            24 => ("I8", 1, 1),
            25 => ("I16", 1, 2),
            26 => ("I32", 1, 4),
            27 => ("I64", 1, 8),
            28 => ("F64", 1, 8),
            _ => return Err(NoSuchType::new(number)),
        };
        Ok(TensorType::other(name, elements, bytes))
    }
}

/// A number without a type in current GGUF.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoSuchType {
    number: u32,
    /// The name, if ggml has removed the type.
    removed: Option<&'static str>,
}

impl NoSuchType {
    fn new(number: u32) -> NoSuchType {
        let removed = match number {
            4 => Some("Q4_2"),
            5 => Some("Q4_3"),
            31 => Some("Q4_0_4_4"),
            32 => Some("Q4_0_4_8"),
            33 => Some("Q4_0_8_8"),
            36 => Some("IQ4_NL_4_4"),
            37 => Some("IQ4_NL_4_8"),
            38 => Some("IQ4_NL_8_8"),
            _ => None,
        };
        NoSuchType { number, removed }
    }
}

impl fmt::Display for NoSuchType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.removed {
            Some(name) => write!(f, "{name} ({}), which GGUF no longer has", self.number),
            None => write!(f, "{}, which this version of Riffle does not know", self.number),
        }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TensorType::Weights(format) => format.name(),
            TensorType::Other { name, .. } => name,
        })
    }
}

/// One line of a weight file's table of contents.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorInfo {
    /// The tensor's name.
    pub name: String,
    /// Element type of the tensor.
    pub element_type: TensorType,
    /// Shape of the tensor, slowest dimension first.
    pub shape: Vec<usize>,
    /// Bytes in the file; in memory if it is computed from several tensors.
    pub bytes: u64,
}

/// Longest name of a tensor or a setting.
const LARGEST_NAME_BYTES: usize = 256;

/// Refuses names that cannot be shown in one line.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    if name.len() > LARGEST_NAME_BYTES {
        return Err(format!(
            "a name takes {} bytes, {LARGEST_NAME_BYTES} is the limit",
            name.len()
        ));
    }
    if name.chars().any(char::is_control) {
        Err(format!("the name {name:?} holds control characters"))
    } else {
        Ok(())
    }
}

/// A tensor and its byte range in the file.
#[derive(Debug, Clone)]
pub(crate) struct StoredTensor {
    pub(crate) info: TensorInfo,
    pub(crate) range: Range<usize>,
}

/// Elements of float tensors as f32, little endian; `None` for quantised formats.
pub(crate) fn to_f32(format: WeightFormat, bytes: &[u8]) -> Option<Vec<f32>> {
    let pairs = || bytes.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes));
    match format {
        WeightFormat::F32 => Some(
            bytes
                .as_chunks()
                .0
                .iter()
                .map(|bytes| f32::from_le_bytes(*bytes))
                .collect(),
        ),
        WeightFormat::F16 => Some(pairs().map(|bits| f16::from_bits(bits).to_f32()).collect()),
        WeightFormat::Bf16 => Some(pairs().map(|bits| bf16::from_bits(bits).to_f32()).collect()),
        _ => None,
    }
}

/// The first NaN or infinite element with its index; for quantised formats, the first element of a block with such a
/// scale.
pub(crate) fn first_not_finite(format: WeightFormat, bytes: &[u8]) -> Option<(usize, f32)> {
    // Only infinities and NaNs have exponent bits of all ones.
    match format {
        WeightFormat::F32 => {
            let bits = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes) & 0x7f80_0000 == 0x7f80_0000;
            first_element(bytes, bits).map(|(index, bytes)| (index, f32::from_le_bytes(bytes)))
        }
        WeightFormat::F16 => {
            first_element(bytes, is_not_finite_half).map(|(index, bytes)| (index, f16::from_le_bytes(bytes).to_f32()))
        }
        WeightFormat::Bf16 => {
            let bits = |bytes: &[u8; 2]| u16::from_le_bytes(*bytes) & 0x7f80 == 0x7f80;
            first_element(bytes, bits).map(|(index, bytes)| (index, bf16::from_le_bytes(bytes).to_f32()))
        }
        _ => first_block(format, bytes),
    }
}

fn is_not_finite_half(bytes: &[u8; 2]) -> bool {
    u16::from_le_bytes(*bytes) & 0x7c00 == 0x7c00
}

/// The first element for which `suspicious` is true. Ranges are first checked as a whole, so that the common case is
/// one vectorised pass.
fn first_element<const BYTES: usize>(
    bytes: &[u8],
    suspicious: impl Fn(&[u8; BYTES]) -> bool + Sync,
) -> Option<(usize, [u8; BYTES])> {
    const STRETCH: usize = 1 << 14;
    let elements = bytes.as_chunks::<BYTES>().0;
    let any = |stretch: &[[u8; BYTES]]| stretch.iter().fold(false, |any, element| any | suspicious(element));
    let stretch = elements.par_chunks(STRETCH).position_first(any)?;
    let within = elements[stretch * STRETCH..].iter().position(suspicious)?;
    let index = stretch * STRETCH + within;
    Some((index, elements[index]))
}

/// The first element of a block with a scale that is NaN or infinite, and the scale.
fn first_block(format: WeightFormat, bytes: &[u8]) -> Option<(usize, f32)> {
    /// Blocks that a thread checks per task.
    const BLOCKS: usize = 1 << 12;
    let parts = bytes.par_chunks(BLOCKS * format.block_bytes()).enumerate();
    let (part, (block, value)) =
        parts.find_map_first(|(part, blocks)| Some((part, format.first_block_not_finite(blocks)?)))?;
    Some(((part * BLOCKS + block) * format.block_weights(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_not_finite_element_is_found_in_every_float_type() {
        for at in [0usize, 1, 32_767, 32_768, 99_998] {
            let mut values = vec![1.5f32; 99_999];
            values[at] = f32::NEG_INFINITY;
            values[99_998] = f32::INFINITY;
            values[at] = if at == 99_998 { f32::INFINITY } else { values[at] };
            let f32_bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            let f16_bytes: Vec<u8> = values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
            let bf16_bytes: Vec<u8> = values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect();
            let expected = Some((at, values[at]));
            assert_eq!(first_not_finite(WeightFormat::F32, &f32_bytes), expected);
            assert_eq!(first_not_finite(WeightFormat::F16, &f16_bytes), expected);
            assert_eq!(first_not_finite(WeightFormat::Bf16, &bf16_bytes), expected);
        }
        assert_eq!(first_not_finite(WeightFormat::F32, &f32::MAX.to_le_bytes()), None);
    }

    #[test]
    fn a_bad_scale_is_found_in_every_quantised_format() {
        for format in WeightFormat::ALL
            .iter()
            .copied()
            .filter(|format| format.block_weights() > 1)
        {
            let mut bytes = vec![0u8; 5000 * format.block_bytes()];
            assert_eq!(first_not_finite(format, &bytes), None);
            // A block of all-one bits has NaN in every scale.
            let block = 4500 * format.block_bytes();
            bytes[block..][..format.block_bytes()].fill(0xff);
            let found = first_not_finite(format, &bytes);
            if matches!(format, WeightFormat::Mxfp4 | WeightFormat::Nvfp4) {
                assert_eq!(found, None, "every scale of {format} is finite");
                continue;
            }
            let (element, value) = found.unwrap();
            assert!(value.is_nan() && element == 4500 * format.block_weights(), "{format}");
        }
    }
}
