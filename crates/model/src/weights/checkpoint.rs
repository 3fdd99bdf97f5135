//! All weight files of a model as one set of named tensors.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use riffle_linear::{Activations, PackedMatrix, WeightFormat};

use super::tensor::first_not_finite;
use super::{StoredTensor, TensorInfo, TensorType, mapping, to_f32};
use crate::ModelError;

/// The tensors of a model by name. Data is mapped only when a tensor is taken, and each tensor is taken once: loading refuses a model
/// of which tensors are left over.
#[derive(Default)]
pub struct Checkpoint {
    files: Vec<WeightFile>,
    tensors: BTreeMap<String, Location>,
    taken: BTreeSet<String>,
    activations: Activations,
}

struct WeightFile {
    path: PathBuf,
    file: File,
    map: Option<Mmap>,
}

struct Location {
    file: usize,
    stored: StoredTensor,
    row_order: RowOrder,
}

/// How the rows of a stored tensor follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowOrder {
    /// As the model computes with them.
    Plain,
    /// Within each of so many heads, rows i and i + head_dim/2 stand side by side.
    Interleaved { heads: usize },
    /// The same for the first `rotated` rows of each head.
    PartlyInterleaved { heads: usize, rotated: usize },
}

impl Checkpoint {
    /// Adds a file whose tensors are known: name in the model, place in the file, order of rows.
    pub(crate) fn add_file(
        &mut self,
        path: PathBuf,
        file: File,
        tensors: impl IntoIterator<Item = (String, StoredTensor, RowOrder)>,
    ) -> Result<(), ModelError> {
        let index = self.files.len();
        for (tensor, stored, row_order) in tensors {
            let location = Location {
                file: index,
                stored,
                row_order,
            };
            if let Some(first) = self.tensors.insert(tensor.clone(), location) {
                let first = self.files.get(first.file).map_or(&path, |file| &file.path);
                return Err(ModelError::DuplicateTensor {
                    tensor,
                    first: first.clone(),
                    second: path.clone(),
                });
            }
        }
        self.files.push(WeightFile { path, file, map: None });
        Ok(())
    }

    /// Gives every tensor the name that `rename` makes of its own.
    pub(crate) fn rename(&mut self, rename: impl Fn(&str) -> String) {
        let tensors = std::mem::take(&mut self.tensors);
        self.tensors = tensors.into_iter().map(|(name, at)| (rename(&name), at)).collect();
    }

    /// Says that rotated pairs of a tensor stand side by side in each head, unless its file said so.
    pub(crate) fn interleave(&mut self, name: &str, heads: usize, rotated: usize) {
        if let Some(location) = self.tensors.get_mut(name)
            && location.row_order == RowOrder::Plain
        {
            location.row_order = RowOrder::PartlyInterleaved { heads, rotated };
        }
    }

    /// How the matrices that are taken from here on multiply.
    pub(crate) fn set_activations(&mut self, activations: Activations) {
        self.activations = activations;
    }

    /// Calls `each` with the bytes of every file, in order.
    pub(crate) fn for_each_file(&self, mut each: impl FnMut(&[u8])) -> Result<(), ModelError> {
        for file in &self.files {
            let map = mapping::map(&file.file).map_err(|source| ModelError::Io {
                path: file.path.clone(),
                source,
            })?;
            each(&map);
        }
        Ok(())
    }

    /// The file that holds a tensor.
    pub(crate) fn file_of(&self, name: &str) -> Option<&Path> {
        let location = self.tensors.get(name)?;
        Some(&self.files[location.file].path)
    }

    /// A tensor's line in the table of contents.
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        Some(&self.tensors.get(name)?.stored.info)
    }

    /// Every tensor of every file, by name.
    pub(crate) fn list(&self) -> Vec<TensorInfo> {
        self.tensors
            .values()
            .map(|location| location.stored.info.clone())
            .collect()
    }

    /// The names of all tensors in the model.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.tensors.keys()
    }

    /// Tensors no architecture asked for.
    pub(crate) fn untaken(&self) -> Vec<String> {
        self.tensors
            .keys()
            .filter(|name| !self.taken.contains(*name))
            .cloned()
            .collect()
    }

    /// Name and shape checked; the data is not touched.
    pub(crate) fn check(&self, name: &str, shape: &[usize]) -> Result<&TensorInfo, ModelError> {
        let Some(location) = self.tensors.get(name) else {
            return Err(ModelError::MissingTensor {
                tensor: name.to_owned(),
            });
        };
        let info = &location.stored.info;
        if info.shape != shape {
            return Err(ModelError::WrongShape {
                tensor: name.to_owned(),
                expected: shape.to_vec(),
                found: info.shape.clone(),
            });
        }
        Ok(info)
    }

    /// A vector as f32.
    pub fn vector(&mut self, name: &str, length: usize) -> Result<Vec<f32>, ModelError> {
        self.array(name, &[length])
    }

    /// The values of a tensor of any shape as f32.
    pub fn array(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let (format, bytes) = self.take(name, shape)?;
        let values = to_f32(format, &bytes);
        self.unmap(name);
        values.ok_or_else(|| ModelError::WrongType {
            tensor: name.to_owned(),
            expected: "f32, f16 or bf16",
            found: TensorType::Weights(format),
        })
    }

    /// A matrix `[rows, columns]`, packed in its own format.
    pub fn matrix(&mut self, name: &str, rows: usize, columns: usize) -> Result<PackedMatrix, ModelError> {
        let [matrix] = self.matrices(name, 1, [rows], columns)?;
        Ok(matrix)
    }

    /// A matrix stored as several on top of each other, so many rows of each for each of `heads` heads; each is packed
    /// by itself.
    pub fn matrices<const PARTS: usize>(
        &mut self,
        name: &str,
        heads: usize,
        rows: [usize; PARTS],
        columns: usize,
    ) -> Result<[PackedMatrix; PARTS], ModelError> {
        let stride: usize = rows.iter().sum();
        let activations = self.activations;
        let (format, bytes) = self.take(name, &[heads * stride, columns])?;
        let row_bytes = columns / format.block_weights() * format.block_bytes();
        let mut first = 0;
        let parts = rows.map(|rows| {
            let own = first * row_bytes..(first + rows) * row_bytes;
            first += rows;
            let part = match heads {
                1 => Cow::Borrowed(&bytes[own]),
                _ => Cow::Owned(
                    bytes
                        .chunks_exact((stride * row_bytes).max(1))
                        .flat_map(|head| &head[own.clone()])
                        .copied()
                        .collect(),
                ),
            };
            PackedMatrix::pack(format, heads * rows, columns, &part).map(|matrix| matrix.with_activations(activations))
        });
        self.unmap(name);
        let mut packed = Vec::with_capacity(PARTS);
        for part in parts {
            packed.push(part.map_err(|source| ModelError::Pack {
                tensor: name.to_owned(),
                source,
            })?);
        }
        packed.try_into().map_err(|_| ModelError::MissingTensor {
            tensor: name.to_owned(),
        })
    }

    /// Lets go of the pages read for a tensor; else the whole file would stand in memory beside the packed weights.
    fn unmap(&mut self, name: &str) {
        if let Some(location) = self.tensors.get(name) {
            self.files[location.file].map = None;
        }
    }

    /// The checked bytes of a tensor of weights.
    fn take(&mut self, name: &str, shape: &[usize]) -> Result<(WeightFormat, Cow<'_, [u8]>), ModelError> {
        let format = match &self.check(name, shape)?.element_type {
            TensorType::Weights(format) => *format,
            found @ TensorType::Other { .. } => {
                return Err(ModelError::WrongType {
                    tensor: name.to_owned(),
                    expected: "f32, f16, bf16 or a quantised type of GGUF",
                    found: found.clone(),
                });
            }
        };
        self.taken.insert(name.to_owned());
        let location = &self.tensors[name];
        let file = &mut self.files[location.file];
        let io = |source| ModelError::Io {
            path: file.path.clone(),
            source,
        };
        let map = match &mut file.map {
            Some(map) => map,
            none => none.insert(mapping::map(&file.file).map_err(io)?),
        };
        let bytes = map
            .get(location.stored.range.clone())
            .ok_or_else(|| ModelError::CorruptWeights {
                path: file.path.clone(),
                problem: format!("the file shrank while tensor {name} was read"),
            })?;
        if let Some((element, value)) = first_not_finite(format, bytes) {
            return Err(ModelError::NotFinite {
                tensor: name.to_owned(),
                element,
                value,
            });
        }
        let bytes = match location.row_order {
            RowOrder::Plain => Cow::Borrowed(bytes),
            RowOrder::Interleaved { heads } => Cow::Owned(without_interleaving(bytes, shape[0], heads, None)),
            RowOrder::PartlyInterleaved { heads, rotated } => {
                Cow::Owned(without_interleaving(bytes, shape[0], heads, Some(rotated)))
            }
        };
        Ok((format, bytes))
    }
}

/// Puts rows 2i and 2i + 1 of each head back to i and i + rotated/2, where all rows of a head are rotated unless given.
fn without_interleaving(bytes: &[u8], rows: usize, heads: usize, rotated: Option<usize>) -> Vec<u8> {
    let row_bytes = bytes.len() / rows;
    let head_dim = rows / heads;
    let rotated = rotated.unwrap_or(head_dim);
    let mut ordered = Vec::with_capacity(bytes.len());
    for row in 0..rows {
        let (head, within) = (row / head_dim, row % head_dim);
        let stored = if within < rotated {
            head * head_dim + 2 * (within % (rotated / 2)) + within / (rotated / 2)
        } else {
            row
        };
        ordered.extend_from_slice(&bytes[stored * row_bytes..][..row_bytes]);
    }
    ordered
}
