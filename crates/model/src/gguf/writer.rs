//! Writes the header of a GGUF file: metadata and the table of tensors.

use riffle_linear::WeightFormat;

use super::header::StoredValue;
use super::reader::{LIST, TEXT};

const VERSION: u32 = 3;
/// Alignment of tensors within the data, in bytes.
pub(crate) const ALIGNMENT: u64 = 32;

const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
const FLAG: u32 = 7;

/// A metadata key of a GGUF file, with its encoded value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufEntry {
    key: String,
    /// The value's GGUF type number.
    kind: u32,
    bytes: Vec<u8>,
}

impl GgufEntry {
    /// A text.
    pub fn text(key: impl Into<String>, text: &str) -> GgufEntry {
        GgufEntry::new(key, TEXT, text_bytes(text))
    }

    /// A 32-bit unsigned integer.
    pub fn count(key: impl Into<String>, count: u32) -> GgufEntry {
        GgufEntry::new(key, U32, count.to_le_bytes().to_vec())
    }

    /// A float of 32 bits.
    pub fn number(key: impl Into<String>, number: f32) -> GgufEntry {
        GgufEntry::new(key, F32, number.to_le_bytes().to_vec())
    }

    /// True or false.
    pub fn flag(key: impl Into<String>, flag: bool) -> GgufEntry {
        GgufEntry::new(key, FLAG, vec![flag.into()])
    }

    /// A list of texts.
    pub fn texts<'a>(key: impl Into<String>, texts: impl ExactSizeIterator<Item = &'a str>) -> GgufEntry {
        let mut bytes = list_head(TEXT, texts.len());
        texts.for_each(|text| bytes.extend(text_bytes(text)));
        GgufEntry::new(key, LIST, bytes)
    }

    /// A list of floats of 32 bits.
    pub fn numbers(key: impl Into<String>, numbers: &[f32]) -> GgufEntry {
        let mut bytes = list_head(F32, numbers.len());
        numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        GgufEntry::new(key, LIST, bytes)
    }

    /// A list of signed 32-bit integers.
    pub fn integers(key: impl Into<String>, integers: impl ExactSizeIterator<Item = i32>) -> GgufEntry {
        let mut bytes = list_head(I32, integers.len());
        integers.for_each(|integer| bytes.extend(integer.to_le_bytes()));
        GgufEntry::new(key, LIST, bytes)
    }

    /// A list of true and false.
    pub fn flags(key: impl Into<String>, flags: &[bool]) -> GgufEntry {
        let mut bytes = list_head(FLAG, flags.len());
        bytes.extend(flags.iter().map(|flag| u8::from(*flag)));
        GgufEntry::new(key, LIST, bytes)
    }

    /// The key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The value as a non-negative integer, if it has up to 32 bits, or 64.
    pub fn as_count(&self) -> Option<u64> {
        match (self.kind, &self.bytes[..]) {
            (0, [byte]) => Some(u64::from(*byte)),
            (2, [a, b]) => Some(u64::from(u16::from_le_bytes([*a, *b]))),
            (U32, bytes) => Some(u64::from(u32::from_le_bytes(bytes.try_into().ok()?))),
            (I32, bytes) => u64::try_from(i32::from_le_bytes(bytes.try_into().ok()?)).ok(),
            (10 | 11, bytes) => Some(u64::from_le_bytes(bytes.try_into().ok()?)),
            _ => None,
        }
    }

    /// The value, if it is a text.
    pub fn as_text(&self) -> Option<&str> {
        let text = self.bytes.get(8..).filter(|_| self.kind == TEXT)?;
        std::str::from_utf8(text).ok()
    }

    /// The texts of a list of texts; `None` for another value.
    pub fn as_texts(&self) -> Option<Vec<String>> {
        let is_list = self.kind == LIST && self.bytes.get(..4) == Some(&TEXT.to_le_bytes());
        let mut rest = self.bytes.get(12..).filter(|_| is_list)?;
        let mut texts = Vec::new();
        while let Some((length, behind)) = rest.split_first_chunk() {
            let (text, behind) = behind.split_at_checked(u64::from_le_bytes(*length) as usize)?;
            texts.push(String::from_utf8_lossy(text).into_owned());
            rest = behind;
        }
        Some(texts)
    }

    /// The first count of a list of 32-bit counts: some files give one per layer.
    pub fn first_count(&self) -> Option<u64> {
        let is_list = self.kind == LIST && matches!(self.bytes.get(..4)?, [4 | 5, 0, 0, 0]);
        let bytes = self.bytes.get(12..16).filter(|_| is_list)?;
        Some(u64::from(u32::from_le_bytes(bytes.try_into().ok()?)))
    }

    fn new(key: impl Into<String>, kind: u32, bytes: Vec<u8>) -> GgufEntry {
        GgufEntry {
            key: key.into(),
            kind,
            bytes,
        }
    }
}

impl From<StoredValue<'_>> for GgufEntry {
    fn from(stored: StoredValue<'_>) -> GgufEntry {
        GgufEntry::new(stored.key, stored.kind, stored.bytes.to_vec())
    }
}

/// A tensor of a GGUF file to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufTensor {
    /// Name of the tensor.
    pub name: String,
    /// Shape of the tensor, slowest dimension first.
    pub shape: Vec<usize>,
    /// Format of the tensor, which ggml must have.
    pub format: WeightFormat,
}

impl GgufTensor {
    /// Bytes of the tensor; `None` if its rows are not a whole number of blocks, or it is too large.
    pub fn bytes(&self) -> Option<u64> {
        let (columns, outer) = self.shape.split_last()?;
        let rows = outer
            .iter()
            .try_fold(1usize, |rows, dimension| rows.checked_mul(*dimension))?;
        Some(self.format.row_bytes(*columns)?.checked_mul(rows)? as u64)
    }
}

/// The header of a GGUF file with these tensors, and the offset of each tensor in the file. Each tensor is padded
/// with zeros to the next multiple of 32 bytes.
///
/// Returns `None` for a tensor with an impossible size or a format that ggml does not have.
pub fn gguf_header(entries: &[GgufEntry], tensors: &[GgufTensor]) -> Option<(Vec<u8>, Vec<u64>)> {
    let mut header = b"GGUF".to_vec();
    header.extend(VERSION.to_le_bytes());
    header.extend((tensors.len() as u64).to_le_bytes());
    header.extend((entries.len() as u64).to_le_bytes());
    for entry in entries {
        header.extend(text_bytes(&entry.key));
        header.extend(entry.kind.to_le_bytes());
        header.extend(&entry.bytes);
    }
    let mut offsets = Vec::with_capacity(tensors.len());
    let mut offset = 0u64;
    for tensor in tensors {
        header.extend(text_bytes(&tensor.name));
        header.extend((tensor.shape.len() as u32).to_le_bytes());
        for dimension in tensor.shape.iter().rev() {
            header.extend((*dimension as u64).to_le_bytes());
        }
        header.extend(tensor.format.ggml_type()?.to_le_bytes());
        header.extend(offset.to_le_bytes());
        offsets.push(offset);
        offset = offset
            .checked_add(tensor.bytes()?)?
            .checked_next_multiple_of(ALIGNMENT)?;
    }
    header.resize(header.len().next_multiple_of(ALIGNMENT as usize), 0);
    let start = header.len() as u64;
    Some((header, offsets.into_iter().map(|offset| start + offset).collect()))
}

fn text_bytes(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

fn list_head(kind: u32, count: usize) -> Vec<u8> {
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend((count as u64).to_le_bytes());
    bytes
}
