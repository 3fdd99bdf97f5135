//! The header of a safetensors file: its tensors and their locations.
//!
//! The `safetensors` crate checks a header as a whole and keeps the last of two tensors with one name. To name the
//! faulty tensor, each entry must be checked separately, so this module reads the header. The tests read their
//! vectors with that crate.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::tensor::{StoredTensor, TensorInfo, TensorType, check_name};
use crate::ModelError;

/// The format's own limit.
const LARGEST_HEADER_BYTES: u64 = 100_000_000;
const LARGEST_TENSOR_COUNT: usize = 1 << 18;
const LARGEST_RANK: usize = 16;

/// Reads and checks the table of contents without reading data.
pub(crate) fn read_header(path: &Path, file: &mut File) -> Result<Vec<StoredTensor>, ModelError> {
    let io = |source| ModelError::Io {
        path: path.to_owned(),
        source,
    };
    let corrupt = |problem: String| ModelError::CorruptWeights {
        path: path.to_owned(),
        problem,
    };
    let file_bytes = file.metadata().map_err(io)?.len();
    if file_bytes < 8 {
        return Err(corrupt(format!("{file_bytes} bytes are too few for a header")));
    }
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(io)?;
    let header_bytes = u64::from_le_bytes(length);
    if header_bytes > LARGEST_HEADER_BYTES {
        return Err(corrupt(format!(
            "its header claims {header_bytes} bytes, {LARGEST_HEADER_BYTES} is the format's limit"
        )));
    }
    if header_bytes > file_bytes - 8 {
        return Err(corrupt(format!(
            "its header claims {header_bytes} bytes but the file has only {file_bytes}"
        )));
    }
    let mut header = vec![0; header_bytes as usize];
    file.read_exact(&mut header).map_err(io)?;
    let header: Header = serde_json::from_slice(&header).map_err(|error| corrupt(format!("header: {error}")))?;

    let data_start = 8 + header_bytes;
    let data_bytes = file_bytes - data_start;
    let mut tensors = Vec::with_capacity(header.entries.len());
    for (name, entry) in header.entries {
        tensors.push(check(name, entry, data_start, data_bytes).map_err(corrupt)?);
    }
    check_layout(&tensors, data_start as usize, file_bytes as usize).map_err(corrupt)?;
    Ok(tensors)
}

fn check(name: String, entry: Entry, data_start: u64, data_bytes: u64) -> Result<StoredTensor, String> {
    let Some(element_type) = TensorType::from_safetensors(&entry.dtype) else {
        return Err(format!("tensor {name} has the unknown element type {:?}", entry.dtype));
    };
    let Entry {
        shape: Shape(shape),
        data_offsets: (begin, end),
        ..
    } = entry;
    if shape.contains(&0) {
        return Err(format!("tensor {name} has a dimension of zero: {shape:?}"));
    }
    let elements = shape
        .iter()
        .try_fold(1u64, |product, &dimension| product.checked_mul(dimension))
        .filter(|elements| elements.checked_mul(element_type.block_bytes()).is_some())
        .ok_or_else(|| format!("tensor {name} has an impossible shape {shape:?}"))?;
    if begin > end || end > data_bytes {
        return Err(format!(
            "tensor {name} claims bytes {begin} to {end} but the file holds {data_bytes} bytes of data"
        ));
    }
    let Some(bytes) = element_type.bytes_of(elements) else {
        return Err(format!(
            "tensor {name} of shape {shape:?} and type {element_type} ends within a byte"
        ));
    };
    if bytes != end - begin {
        return Err(format!(
            "tensor {name} of shape {shape:?} and type {element_type} takes {bytes} bytes but claims {}",
            end - begin
        ));
    }
    Ok(StoredTensor {
        info: TensorInfo {
            name,
            element_type,
            shape: shape.into_iter().map(|dimension| dimension as usize).collect(),
            bytes: end - begin,
        },
        range: (data_start + begin) as usize..(data_start + end) as usize,
    })
}

/// Tensors must follow each other without gap or overlap up to the end of the file.
fn check_layout(tensors: &[StoredTensor], data_start: usize, file_bytes: usize) -> Result<(), String> {
    let mut order: Vec<&StoredTensor> = tensors.iter().collect();
    order.sort_by_key(|tensor| tensor.range.start);
    let mut end = data_start;
    for tensor in order {
        let name = &tensor.info.name;
        if tensor.range.start < end {
            return Err(format!("tensor {name} overlaps the tensor before it"));
        }
        if tensor.range.start > end {
            return Err(format!(
                "{} unclaimed bytes lie before tensor {name}",
                tensor.range.start - end
            ));
        }
        end = tensor.range.end;
    }
    if end != file_bytes {
        return Err(format!("{} bytes follow the last tensor", file_bytes - end));
    }
    Ok(())
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Shape,
    data_offsets: (u64, u64),
}

/// Dimensions; limits how many a header may claim.
struct Shape(Vec<u64>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Shape, D::Error> {
        struct Dimensions;
        impl<'de> Visitor<'de> for Dimensions {
            type Value = Shape;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list of dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Shape, A::Error> {
                let mut dimensions = Vec::new();
                while let Some(dimension) = list.next_element()? {
                    if dimensions.len() == LARGEST_RANK {
                        return Err(A::Error::custom(format!(
                            "more than {LARGEST_RANK} dimensions are not plausible"
                        )));
                    }
                    dimensions.push(dimension);
                }
                Ok(Shape(dimensions))
            }
        }
        deserializer.deserialize_seq(Dimensions)
    }
}

/// Entries in file order; a repeated name is refused.
struct Header {
    entries: Vec<(String, Entry)>,
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Header, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut entries = Vec::new();
                let mut names = std::collections::HashSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<serde::de::IgnoredAny>()?;
                        continue;
                    }
                    check_name(&name).map_err(A::Error::custom)?;
                    if entries.len() == LARGEST_TENSOR_COUNT {
                        return Err(A::Error::custom(format!(
                            "more than {LARGEST_TENSOR_COUNT} tensors are not plausible"
                        )));
                    }
                    if !names.insert(name.clone()) {
                        return Err(A::Error::custom(format!("tensor {name} stands twice")));
                    }
                    let entry = map
                        .next_value()
                        .map_err(|error| A::Error::custom(format!("tensor {name}: {error}")))?;
                    entries.push((name, entry));
                }
                Ok(Header { entries })
            }
        }
        deserializer.deserialize_map(Entries)
    }
}
