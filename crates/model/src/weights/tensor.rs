//! What a weight file says about a tensor, and how its elements are read.

use std::fmt;
use std::ops::Range;

use half::{bf16, f16};

/// The element type of a stored tensor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TensorType {
    /// 32-bit float.
    F32,
    /// 16-bit IEEE float.
    F16,
    /// 16-bit brain float.
    Bf16,
    /// A type this crate lists but does not compute with.
    Other {
        /// Its name in the file.
        name: String,
        /// Elements stored together.
        block_elements: u64,
        /// Bytes they take.
        block_bytes: u64,
    },
}

impl TensorType {
    /// Elements stored together; 1 for all but quantised types.
    pub fn block_elements(&self) -> u64 {
        match self {
            TensorType::F32 | TensorType::F16 | TensorType::Bf16 => 1,
            TensorType::Other { block_elements, .. } => *block_elements,
        }
    }

    /// Bytes a block takes.
    pub fn block_bytes(&self) -> u64 {
        match self {
            TensorType::F32 => 4,
            TensorType::F16 | TensorType::Bf16 => 2,
            TensorType::Other { block_bytes, .. } => *block_bytes,
        }
    }

    /// Bytes that `elements` take; `None` where they are no whole number of blocks or too many.
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

    /// The type a safetensors header names, `None` when the format has no such type.
    pub(crate) fn from_safetensors(name: &str) -> Option<TensorType> {
        let (elements, bytes) = match name {
            "F32" => return Some(TensorType::F32),
            "F16" => return Some(TensorType::F16),
            "BF16" => return Some(TensorType::Bf16),
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

    /// The type a GGUF file numbers so, `None` when the format has no such type.
    pub(crate) fn from_gguf(number: u32) -> Option<TensorType> {
        let (name, elements, bytes) = match number {
            0 => return Some(TensorType::F32),
            1 => return Some(TensorType::F16),
            30 => return Some(TensorType::Bf16),
            2 => ("Q4_0", 32, 18),
            3 => ("Q4_1", 32, 20),
            6 => ("Q5_0", 32, 22),
            7 => ("Q5_1", 32, 24),
            8 => ("Q8_0", 32, 34),
            9 => ("Q8_1", 32, 36),
            10 => ("Q2_K", 256, 84),
            11 => ("Q3_K", 256, 110),
            12 => ("Q4_K", 256, 144),
            13 => ("Q5_K", 256, 176),
            14 => ("Q6_K", 256, 210),
            15 => ("Q8_K", 256, 292),
            16 => ("IQ2_XXS", 256, 66),
            17 => ("IQ2_XS", 256, 74),
            18 => ("IQ3_XXS", 256, 98),
            19 => ("IQ1_S", 256, 50),
            20 => ("IQ4_NL", 32, 18),
            21 => ("IQ3_S", 256, 110),
            22 => ("IQ2_S", 256, 82),
            23 => ("IQ4_XS", 256, 136),
            24 => ("I8", 1, 1),
            25 => ("I16", 1, 2),
            26 => ("I32", 1, 4),
            27 => ("I64", 1, 8),
            28 => ("F64", 1, 8),
            29 => ("IQ1_M", 256, 56),
            34 => ("TQ1_0", 256, 54),
            35 => ("TQ2_0", 256, 66),
            39 => ("MXFP4", 32, 17),
            _ => return None,
        };
        Some(TensorType::other(name, elements, bytes))
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TensorType::F32 => "f32",
            TensorType::F16 => "f16",
            TensorType::Bf16 => "bf16",
            TensorType::Other { name, .. } => name,
        })
    }
}

/// One line of a weight file's table of contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// The tensor's name.
    pub name: String,
    /// Its element type.
    pub element_type: TensorType,
    /// Its shape, slowest dimension first.
    pub shape: Vec<usize>,
    /// Bytes it takes in the file.
    pub bytes: u64,
}

/// A tensor and the bytes of the file that hold it.
#[derive(Debug, Clone)]
pub(crate) struct StoredTensor {
    pub(crate) info: TensorInfo,
    pub(crate) range: Range<usize>,
}

/// Elements of float tensors as f32, little endian; `bytes` holds whole elements.
pub(crate) fn to_f32(element_type: &TensorType, bytes: &[u8]) -> Option<Vec<f32>> {
    let pairs = || bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    match element_type {
        TensorType::F32 => Some(
            bytes
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect(),
        ),
        TensorType::F16 => Some(pairs().map(|bits| f16::from_bits(bits).to_f32()).collect()),
        TensorType::Bf16 => Some(pairs().map(|bits| bf16::from_bits(bits).to_f32()).collect()),
        TensorType::Other { .. } => None,
    }
}

/// The first element that is NaN or infinite, with its index.
pub(crate) fn first_not_finite(element_type: &TensorType, bytes: &[u8]) -> Option<(usize, f32)> {
    // The exponent bits are all ones in infinities and NaNs and in nothing else. Blocks are checked whole first so
    // that the common case is one vectorised pass.
    const BLOCK_BYTES: usize = 1 << 16;
    let element_bytes = element_type.block_bytes() as usize;
    let suspicious = |block: &[u8]| match element_type {
        TensorType::F32 => block.chunks_exact(4).fold(false, |any, b| {
            any | (u32::from_le_bytes([b[0], b[1], b[2], b[3]]) & 0x7f80_0000 == 0x7f80_0000)
        }),
        TensorType::F16 => block.chunks_exact(2).fold(false, |any, b| {
            any | (u16::from_le_bytes([b[0], b[1]]) & 0x7c00 == 0x7c00)
        }),
        TensorType::Bf16 => block.chunks_exact(2).fold(false, |any, b| {
            any | (u16::from_le_bytes([b[0], b[1]]) & 0x7f80 == 0x7f80)
        }),
        TensorType::Other { .. } => false,
    };
    use rayon::prelude::*;
    let block = bytes.par_chunks(BLOCK_BYTES).position_first(suspicious)?;
    let values = to_f32(element_type, bytes[block * BLOCK_BYTES..].chunks(BLOCK_BYTES).next()?)?;
    let within = values.iter().position(|value| !value.is_finite())?;
    Some((block * (BLOCK_BYTES / element_bytes) + within, values[within]))
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
            assert_eq!(first_not_finite(&TensorType::F32, &f32_bytes), expected);
            assert_eq!(first_not_finite(&TensorType::F16, &f16_bytes), expected);
            assert_eq!(first_not_finite(&TensorType::Bf16, &bf16_bytes), expected);
        }
        assert_eq!(first_not_finite(&TensorType::F32, &f32::MAX.to_le_bytes()), None);
    }
}
