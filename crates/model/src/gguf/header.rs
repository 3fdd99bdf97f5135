//! The header of a GGUF file: metadata and the table of tensors.

use std::collections::HashMap;

use crate::weights::{StoredTensor, TensorInfo, TensorType, check_name};

const MAGIC: &[u8] = b"GGUF";
/// Bytes a header may take, so that one that is made up cannot ask for more memory than a machine has; the largest
/// vocabularies with their merges take a tenth.
const LARGEST_HEADER_BYTES: usize = 256 << 20;
/// Values all metadata arrays together may hold; the largest vocabularies with their merges hold a third.
const LARGEST_METADATA: u64 = 1 << 22;
const LARGEST_TENSOR_COUNT: usize = 1 << 18;
const LARGEST_ALIGNMENT: u64 = 1 << 20;
const DEFAULT_ALIGNMENT: u64 = 32;

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Metadata {
    Integer(i128),
    Float(f64),
    Flag(bool),
    Text(String),
    List(Vec<Metadata>),
}

/// What a file says before its data.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) metadata: HashMap<String, Metadata>,
    pub(crate) tensors: Vec<StoredTensor>,
}

/// Reads and checks the header of a whole mapped file.
pub(crate) fn parse(file: &[u8]) -> Result<Header, String> {
    let mut reader = Reader {
        file: &file[..file.len().min(LARGEST_HEADER_BYTES)],
        position: 0,
        values_left: LARGEST_METADATA,
    };
    if reader.take(4)? != MAGIC {
        return Err("it does not begin with GGUF".into());
    }
    let version = reader.u32()?;
    if !(2..=3).contains(&version) {
        return Err(format!(
            "GGUF version {version} is not supported; supported are 2 and 3, little endian"
        ));
    }
    let tensor_count = reader.count(24)?;
    if tensor_count > LARGEST_TENSOR_COUNT {
        return Err(format!(
            "{tensor_count} tensors are not plausible, {LARGEST_TENSOR_COUNT} is the limit"
        ));
    }
    let metadata_count = reader.count(13)?;
    let mut metadata = HashMap::new();
    for _ in 0..metadata_count {
        let key = reader.name()?;
        let kind = reader.u32()?;
        let value = reader
            .value(kind, 0)
            .map_err(|problem| format!("metadata {key}: {problem}"))?;
        if metadata.insert(key.clone(), value).is_some() {
            return Err(format!("metadata {key} stands twice"));
        }
    }
    let alignment = match metadata.get("general.alignment") {
        None => DEFAULT_ALIGNMENT,
        Some(Metadata::Integer(alignment)) => u64::try_from(*alignment).unwrap_or(0),
        Some(_) => 0,
    };
    if !alignment.is_power_of_two() || alignment > LARGEST_ALIGNMENT {
        return Err("general.alignment must be a power of two".into());
    }
    let mut entries = Vec::new();
    for _ in 0..tensor_count {
        entries.push(reader.entry()?);
    }
    let data_start = (reader.position as u64).next_multiple_of(alignment);
    let mut tensors = Vec::with_capacity(entries.len());
    for entry in entries {
        tensors.push(place(entry, data_start, alignment, file.len() as u64)?);
    }
    check_distinct(&tensors)?;
    Ok(Header { metadata, tensors })
}

struct Entry {
    name: String,
    element_type: TensorType,
    // slowest dimension first, unlike in the file
    shape: Vec<u64>,
    offset: u64,
}

fn place(entry: Entry, data_start: u64, alignment: u64, file_bytes: u64) -> Result<StoredTensor, String> {
    let Entry {
        name,
        element_type,
        shape,
        offset,
    } = entry;
    if shape.contains(&0) {
        return Err(format!("tensor {name} has a dimension of zero: {shape:?}"));
    }
    let elements = shape
        .iter()
        .try_fold(1u64, |product, &dimension| product.checked_mul(dimension));
    // Blocks of quantised types lie within rows.
    let rows = shape
        .last()
        .map_or(0, |columns| columns % element_type.block_elements());
    let bytes = elements
        .filter(|_| rows == 0)
        .and_then(|elements| element_type.bytes_of(elements));
    let Some(bytes) = bytes else {
        return Err(format!(
            "tensor {name} has an impossible shape {shape:?} for its type {element_type}"
        ));
    };
    let begin = data_start.checked_add(offset);
    let end = begin
        .and_then(|begin| begin.checked_add(bytes))
        .filter(|end| *end <= file_bytes);
    let (Some(begin), Some(end)) = (begin, end) else {
        return Err(format!(
            "tensor {name} claims {bytes} bytes at offset {offset}, beyond the end of the file"
        ));
    };
    if !offset.is_multiple_of(alignment) {
        return Err(format!(
            "tensor {name} lies at offset {offset}, which is not a multiple of {alignment}"
        ));
    }
    Ok(StoredTensor {
        info: TensorInfo {
            name,
            element_type,
            shape: shape.into_iter().map(|dimension| dimension as usize).collect(),
            bytes,
        },
        range: begin as usize..end as usize,
    })
}

fn check_distinct(tensors: &[StoredTensor]) -> Result<(), String> {
    let mut order: Vec<&StoredTensor> = tensors.iter().collect();
    order.sort_by_key(|tensor| tensor.range.start);
    for pair in order.windows(2) {
        if pair[1].range.start < pair[0].range.end {
            return Err(format!(
                "tensors {} and {} overlap",
                pair[0].info.name, pair[1].info.name
            ));
        }
    }
    Ok(())
}

/// A cursor that never leaves the file and never promises more than the file can hold.
struct Reader<'a> {
    file: &'a [u8],
    position: usize,
    values_left: u64,
}

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], String> {
        let rest = &self.file[self.position..];
        let Some(taken) = rest.get(..bytes) else {
            return Err(match self.file.len() {
                LARGEST_HEADER_BYTES => format!("its header takes more than {LARGEST_HEADER_BYTES} bytes"),
                length => format!("it ends within its header, at byte {length}"),
            });
        };
        self.position += bytes;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N)?);
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A number of things that take at least `least_bytes` each.
    fn count(&mut self, least_bytes: u64) -> Result<usize, String> {
        let count = self.u64()?;
        let left = (self.file.len() - self.position) as u64;
        if count > left / least_bytes {
            return Err(format!("it claims {count} entries but only {left} bytes follow"));
        }
        Ok(count as usize)
    }

    fn text(&mut self) -> Result<String, String> {
        let length = self.count(1)?;
        let bytes = self.take(length)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| "a text is not valid UTF-8".to_owned())
    }

    /// The name of a tensor or of metadata, which may be shown.
    fn name(&mut self) -> Result<String, String> {
        let name = self.text()?;
        check_name(&name)?;
        Ok(name)
    }

    fn value(&mut self, kind: u32, depth: usize) -> Result<Metadata, String> {
        Ok(match kind {
            0 => Metadata::Integer(self.take(1)?[0].into()),
            1 => Metadata::Integer(i8::from_le_bytes(self.array()?).into()),
            2 => Metadata::Integer(u16::from_le_bytes(self.array()?).into()),
            3 => Metadata::Integer(i16::from_le_bytes(self.array()?).into()),
            4 => Metadata::Integer(self.u32()?.into()),
            5 => Metadata::Integer(i32::from_le_bytes(self.array()?).into()),
            6 => Metadata::Float(f32::from_le_bytes(self.array()?).into()),
            7 => Metadata::Flag(self.take(1)?[0] != 0),
            8 => Metadata::Text(self.text()?),
            9 => self.list(depth)?,
            10 => Metadata::Integer(self.u64()?.into()),
            11 => Metadata::Integer(i64::from_le_bytes(self.array()?).into()),
            12 => Metadata::Float(f64::from_le_bytes(self.array()?)),
            other => return Err(format!("value type {other} does not exist")),
        })
    }

    fn list(&mut self, depth: usize) -> Result<Metadata, String> {
        if depth == 2 {
            return Err("lists are nested too deep".into());
        }
        let kind = self.u32()?;
        let least_bytes = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            _ => 8,
        };
        let count = self.count(least_bytes)?;
        let Some(left) = self.values_left.checked_sub(count as u64) else {
            return Err(format!("more than {LARGEST_METADATA} values are not plausible"));
        };
        self.values_left = left;
        (0..count)
            .map(|_| self.value(kind, depth + 1))
            .collect::<Result<_, _>>()
            .map(Metadata::List)
    }

    fn entry(&mut self) -> Result<Entry, String> {
        let name = self.name()?;
        let dimensions = self.u32()?;
        if !(1..=4).contains(&dimensions) {
            return Err(format!(
                "tensor {name} has {dimensions} dimensions, 1 to 4 are possible"
            ));
        }
        let mut shape = (0..dimensions).map(|_| self.u64()).collect::<Result<Vec<_>, _>>()?;
        shape.reverse();
        let kind = self.u32()?;
        let element_type =
            TensorType::from_gguf(kind).ok_or_else(|| format!("tensor {name} has the unknown element type {kind}"))?;
        Ok(Entry {
            name,
            element_type,
            shape,
            offset: self.u64()?,
        })
    }
}
