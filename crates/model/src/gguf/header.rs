//! The header of a GGUF file: metadata and the table of tensors.
//!
//! Texts and lists stay in the mapped file; a list is decoded on request.

use std::collections::HashMap;
use std::path::Path;

use super::list::List;
use super::reader::Reader;
use crate::ModelError;
use crate::weights::{NoSuchType, StoredTensor, TensorInfo, TensorType};

const MAGIC: &[u8] = b"GGUF";
const LARGEST_TENSOR_COUNT: usize = 1 << 18;
/// Maximum number of pairs of key and value; models have a few dozen.
const LARGEST_METADATA_COUNT: usize = 1 << 14;
const LARGEST_ALIGNMENT: u64 = 1 << 20;
const DEFAULT_ALIGNMENT: u64 = 32;

/// A metadata value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Metadata<'a> {
    Integer(i128),
    Float(f64),
    Flag(bool),
    Text(&'a str),
    List(List<'a>),
}

/// The header of a file, before its data.
#[derive(Debug)]
pub(crate) struct Header<'a> {
    pub(crate) path: &'a Path,
    pub(crate) metadata: HashMap<String, Metadata<'a>>,
    /// The metadata, in the file's order and encoding.
    pub(crate) stored: Vec<StoredValue<'a>>,
    pub(crate) tensors: Vec<StoredTensor>,
}

/// A key and the bytes of its value, whose GGUF type number is `kind`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoredValue<'a> {
    pub(crate) key: &'a str,
    pub(crate) kind: u32,
    pub(crate) bytes: &'a [u8],
}

impl<'a> Header<'a> {
    /// Reads and checks the header of a mapped file.
    pub(crate) fn parse(path: &'a Path, file: &'a [u8]) -> Result<Header<'a>, ModelError> {
        let Contents {
            metadata,
            stored,
            tensors,
        } = parse(file).map_err(|problem| problem.at(path))?;
        Ok(Header {
            path,
            metadata,
            stored,
            tensors,
        })
    }

    /// A text; other types are errors.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>, ModelError> {
        self.typed(key, "a text", |value| match value {
            Metadata::Text(text) => Some(text),
            _ => None,
        })
    }

    /// An integer; other types are errors.
    pub(crate) fn integer(&self, key: &str) -> Result<Option<i128>, ModelError> {
        self.typed(key, "a whole number", |value| match value {
            Metadata::Integer(number) => Some(number),
            _ => None,
        })
    }

    /// A list; other types are errors.
    pub(crate) fn list(&self, key: &str) -> Result<Option<List<'a>>, ModelError> {
        self.typed(key, "a list", |value| match value {
            Metadata::List(list) => Some(list),
            _ => None,
        })
    }

    /// An error about a key of the metadata.
    pub(crate) fn error(&self, key: &str, problem: impl Into<String>) -> ModelError {
        ModelError::Config {
            path: self.path.to_owned(),
            field: key.to_owned(),
            problem: problem.into(),
        }
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl Fn(Metadata<'a>) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        let Some(value) = self.metadata.get(key) else {
            return Ok(None);
        };
        match read(*value) {
            Some(value) => Ok(Some(value)),
            None => Err(self.error(key, format!("must be {expected}, found {}", value.show()))),
        }
    }
}

impl Metadata<'_> {
    /// The value for an error.
    pub(crate) fn show(&self) -> String {
        match self {
            Metadata::Integer(number) => number.to_string(),
            Metadata::Float(number) => number.to_string(),
            Metadata::Flag(flag) => flag.to_string(),
            Metadata::Text(text) if text.chars().count() > 60 => {
                format!("{:?}...", text.chars().take(57).collect::<String>())
            }
            Metadata::Text(text) => format!("{text:?}"),
            Metadata::List(list) => format!("a list of {} values", list.len()),
        }
    }
}

struct Contents<'a> {
    metadata: HashMap<String, Metadata<'a>>,
    stored: Vec<StoredValue<'a>>,
    tensors: Vec<StoredTensor>,
}

/// A reason not to read a header.
enum Problem {
    /// The header contradicts the format.
    Damage(String),
    /// A tensor has a type that no longer exists, or does not exist yet.
    Type { tensor: String, found: NoSuchType },
}

impl Problem {
    fn at(self, path: &Path) -> ModelError {
        let path = path.to_owned();
        match self {
            Problem::Damage(problem) => ModelError::CorruptWeights { path, problem },
            Problem::Type { tensor, found } => ModelError::UnknownType {
                path,
                tensor,
                found: found.to_string(),
            },
        }
    }
}

impl From<String> for Problem {
    fn from(problem: String) -> Problem {
        Problem::Damage(problem)
    }
}

fn parse(file: &[u8]) -> Result<Contents<'_>, Problem> {
    let mut reader = Reader::new(file);
    if reader.take(4)? != MAGIC {
        return Err("it does not begin with GGUF".to_owned().into());
    }
    let version = reader.u32()?;
    if !(2..=3).contains(&version) {
        return Err(format!("GGUF version {version} is not supported; supported are 2 and 3, little endian").into());
    }
    let tensor_count = reader.count(24)?;
    let metadata_count = reader.count(13)?;
    for (count, limit, what) in [
        (tensor_count, LARGEST_TENSOR_COUNT, "tensors"),
        (metadata_count, LARGEST_METADATA_COUNT, "metadata keys"),
    ] {
        if count > limit {
            return Err(format!("{count} {what} are not plausible, {limit} is the limit").into());
        }
    }
    let mut metadata = HashMap::new();
    let mut stored = Vec::new();
    for _ in 0..metadata_count {
        let key = reader.name()?;
        let kind = reader.u32()?;
        let start = reader.position();
        let value = reader
            .value(kind)
            .map_err(|problem| format!("metadata {key}: {problem}"))?;
        let bytes = &file[start..reader.position()];
        stored.push(StoredValue { key, kind, bytes });
        if metadata.insert(key.to_owned(), value).is_some() {
            return Err(format!("metadata {key} stands twice").into());
        }
    }
    let alignment = match metadata.get("general.alignment") {
        None => DEFAULT_ALIGNMENT,
        Some(Metadata::Integer(alignment)) => u64::try_from(*alignment).unwrap_or(0),
        Some(_) => 0,
    };
    if !alignment.is_power_of_two() || alignment > LARGEST_ALIGNMENT {
        return Err("general.alignment must be a power of two".to_owned().into());
    }
    let mut entries = Vec::new();
    for _ in 0..tensor_count {
        entries.push(entry(&mut reader)?);
    }
    let data_start = (reader.position() as u64).next_multiple_of(alignment);
    let mut tensors = Vec::with_capacity(entries.len());
    for entry in entries {
        tensors.push(place(entry, data_start, alignment, file.len() as u64)?);
    }
    check_layout(&tensors, data_start, alignment, file.len() as u64)?;
    Ok(Contents {
        metadata,
        stored,
        tensors,
    })
}

struct Entry {
    name: String,
    element_type: TensorType,
    // slowest dimension first, unlike in the file
    shape: Vec<u64>,
    offset: u64,
}

fn entry(reader: &mut Reader<'_>) -> Result<Entry, Problem> {
    let name = reader.name()?;
    let dimensions = reader.u32()?;
    if !(1..=4).contains(&dimensions) {
        return Err(format!("tensor {name} has {dimensions} dimensions, 1 to 4 are possible").into());
    }
    let mut shape = (0..dimensions).map(|_| reader.u64()).collect::<Result<Vec<_>, _>>()?;
    shape.reverse();
    let kind = reader.u32()?;
    let element_type = TensorType::from_gguf(kind).map_err(|found| Problem::Type {
        tensor: name.to_owned(),
        found,
    })?;
    Ok(Entry {
        name: name.to_owned(),
        element_type,
        shape,
        offset: reader.u64()?,
    })
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
    // Blocks of quantised types do not cross rows.
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

/// Tensors must follow each other from the start of the data to the end of the file. Only padding up to the next
/// aligned byte may lie between them. Unclaimed bytes mean that a tensor is declared smaller than it is.
fn check_layout(tensors: &[StoredTensor], data_start: u64, alignment: u64, file_bytes: u64) -> Result<(), String> {
    let mut order: Vec<&StoredTensor> = tensors.iter().collect();
    order.sort_by_key(|tensor| tensor.range.start);
    let mut before: Option<&StoredTensor> = None;
    let mut end = data_start;
    for tensor in order {
        let (name, start) = (&tensor.info.name, tensor.range.start as u64);
        let padded = end.next_multiple_of(alignment);
        if let Some(before) = before.filter(|_| start < end) {
            return Err(format!("tensors {} and {name} overlap", before.info.name));
        }
        if start > padded {
            return Err(match before {
                Some(before) => format!(
                    "{} unclaimed bytes lie between tensors {} and {name}; the type or shape of the first is not what was written",
                    start - padded,
                    before.info.name
                ),
                None => format!("{} unclaimed bytes lie before tensor {name}", start - padded),
            });
        }
        end = tensor.range.end as u64;
        before = Some(tensor);
    }
    let padded = end.next_multiple_of(alignment);
    match before {
        Some(last) if file_bytes > padded => Err(format!(
            "{} unclaimed bytes follow the last tensor, {}",
            file_bytes - padded,
            last.info.name
        )),
        _ => Ok(()),
    }
}
