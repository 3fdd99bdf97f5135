//! All weight files of a model as one set of named tensors.

use std::borrow::Cow;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use riffle_files::{FileError, FileParts};
use riffle_linear::{Activations, LinearError, PackedMatrix, WeightFormat};
use riffle_system::memory::map_file;

use super::quantised::{Made, Part, Recipe};
use super::row_order::RowOrder;
use super::rows::{RowSource, TensorRows};
use super::tensor::first_not_finite;
use super::weight_file::WeightFile;
use super::{StoredTensor, TensorInfo, TensorType};
use crate::ModelError;
use crate::adapters::{Adapter, LowRankWeights};
use crate::blocks::ExpertStreams;
use crate::inputs::InputSums;

/// The tensors of a model by name. Data is mapped when a tensor is taken. Each tensor must be taken exactly once:
/// loading refuses a model with unused tensors.
#[derive(Default)]
pub struct Checkpoint {
    files: Vec<WeightFile>,
    tensors: BTreeMap<String, Location>,
    taken: BTreeSet<String>,
    /// Tensors of zeros that a family may leave unused.
    zeros: BTreeSet<String>,
    /// Matrices stored as `[columns, rows]`.
    pub(super) turned: BTreeSet<String>,
    pub(super) activations: Activations,
    /// Names in GGUF of the weights whose inputs are summed, by their names here; `None` without summing.
    observed: Option<BTreeMap<String, String>>,
    sums: Vec<Arc<InputSums>>,
    /// Adapters to apply beside the matrices.
    adapters: Vec<Adapter>,
    /// Experts that are loaded on demand.
    streams: Option<ExpertStreams>,
}

struct Location {
    file: usize,
    stored: StoredTensor,
    row_order: RowOrder,
    /// A scale of the whole tensor.
    factor: f32,
    /// Set if the tensor is computed from others in the files.
    recipe: Option<Box<Recipe>>,
}

/// A tensor of weights that a file stores in a computable form.
pub(crate) struct PlainTensor<'a> {
    pub(crate) format: WeightFormat,
    pub(crate) shape: &'a [usize],
    /// Number of the file.
    pub(crate) file: usize,
    /// Offset of the tensor's bytes in the file.
    pub(crate) offset: u64,
    /// A scale of the whole tensor.
    pub(crate) factor: f32,
}

/// The checked weights of a tensor.
pub(super) struct Taken<'a> {
    pub(super) format: WeightFormat,
    pub(super) bytes: Cow<'a, [u8]>,
    pub(super) factor: f32,
    pub(super) order: Option<Arc<[u32]>>,
}

impl Taken<'_> {
    /// A matrix `[rows, columns]` of some of its rows, with the tensor's factor and input order.
    pub(super) fn pack(
        &self,
        activations: Activations,
        [rows, columns]: [usize; 2],
        bytes: &[u8],
    ) -> Result<PackedMatrix, LinearError> {
        let matrix = PackedMatrix::pack(self.format, rows, columns, bytes)?;
        let matrix = matrix.with_activations(activations).with_factor(self.factor);
        Ok(match &self.order {
            Some(order) => matrix.with_input_order(Arc::clone(order)),
            None => matrix,
        })
    }
}

impl Checkpoint {
    /// Adds a file with known tensors: name in the model, location in the file, order of rows.
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
                factor: 1.0,
                recipe: None,
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

    /// Renames every tensor with `rename`.
    pub(crate) fn rename(&mut self, rename: impl Fn(&str) -> String) {
        let tensors = std::mem::take(&mut self.tensors);
        self.tensors = tensors.into_iter().map(|(name, at)| (rename(&name), at)).collect();
        self.zeros = self.zeros.iter().map(|name| rename(name)).collect();
    }

    /// Marks rotated pairs of a tensor as adjacent in the first rows of each head, unless its file already did.
    pub(crate) fn interleave(&mut self, name: &str, heads: usize, rotated: usize) {
        self.interleave_from(name, heads, 0, rotated);
    }

    /// As [`interleave`](Self::interleave), for the rows of each head from its row `first` on.
    pub(crate) fn interleave_from(&mut self, name: &str, heads: usize, first: usize, rotated: usize) {
        if let Some(location) = self.tensors.get_mut(name)
            && location.row_order == RowOrder::Plain
        {
            location.row_order = RowOrder::PartlyInterleaved { heads, first, rotated };
        }
    }

    /// Marks a matrix as stored in the form `[columns, rows]`.
    pub(crate) fn turn(&mut self, name: &str) {
        self.turned.insert(name.to_owned());
    }

    /// A stored tensor as a part of a matrix.
    pub(crate) fn part(&self, name: &str) -> Option<Part> {
        let Location { file, stored, .. } = self.tensors.get(name)?;
        Some(Part {
            file: *file,
            stored: stored.clone(),
        })
    }

    /// The bytes of a small tensor.
    pub(crate) fn small_bytes(&self, part: &Part) -> Result<Vec<u8>, ModelError> {
        let file = &self.files[part.file];
        let map = map_file(&file.file).map_err(|source| file.unread(source))?;
        file.bytes(&map, &part.stored).map(<[u8]>::to_vec)
    }

    /// True if both tensors exist and have the same bytes.
    pub(crate) fn are_equal(&self, names: [&str; 2]) -> Result<bool, ModelError> {
        let [Some(first), Some(second)] = names.map(|name| self.tensors.get(name)) else {
            return Ok(false);
        };
        let [one, other] = [&first.stored.info, &second.stored.info];
        let is_made = first.recipe.is_some() || second.recipe.is_some();
        if is_made || one.element_type != other.element_type || one.shape != other.shape {
            return Ok(false);
        }
        let files = [first, second].map(|location| &self.files[location.file]);
        let map = |file: &WeightFile| map_file(&file.file).map_err(|source| file.unread(source));
        let maps = [map(files[0])?, map(files[1])?];
        Ok(files[0].bytes(&maps[0], &first.stored)? == files[1].bytes(&maps[1], &second.stored)?)
    }

    /// Replaces the tensors `used` by `name`, which `recipe` computes.
    pub(crate) fn bind(&mut self, name: String, used: &[String], recipe: Recipe) -> Result<(), ModelError> {
        let path = &self.files[recipe.parts.codes.file].path;
        let Some(bytes) = recipe.bytes() else {
            return Err(ModelError::CorruptWeights {
                path: path.clone(),
                problem: format!("tensor {name} has an impossible shape"),
            });
        };
        for used in used {
            self.tensors.remove(used);
        }
        let info = TensorInfo {
            name: recipe.name.clone(),
            element_type: TensorType::Weights(recipe.format),
            shape: match recipe.experts {
                None => vec![recipe.rows, recipe.columns],
                Some(experts) => vec![experts, recipe.rows / experts.max(1), recipe.columns],
            },
            bytes: bytes as u64,
        };
        let location = Location {
            file: recipe.parts.codes.file,
            stored: StoredTensor { info, range: 0..0 },
            row_order: RowOrder::Plain,
            factor: 1.0,
            recipe: Some(Box::new(recipe)),
        };
        match self.tensors.insert(name.clone(), location) {
            None => Ok(()),
            Some(first) => Err(ModelError::DuplicateTensor {
                tensor: name,
                first: self.files[first.file].path.clone(),
                second: path.clone(),
            }),
        }
    }

    /// Uses the tensors `X.scale` of one number as factors of `X.weight`, as llama.cpp stores them. True if there are
    /// some.
    pub(crate) fn bind_factors(&mut self) -> Result<bool, ModelError> {
        let mut factors = Vec::new();
        for (name, location) in &self.tensors {
            let Some(module) = name.strip_suffix(".scale") else {
                continue;
            };
            let weight = format!("{module}.weight");
            let info = &location.stored.info;
            let is_number = info.element_type == TensorType::Weights(WeightFormat::F32) && info.shape == [1];
            if is_number && self.tensors.contains_key(&weight) {
                factors.push((name.clone(), weight));
            }
        }
        for (name, weight) in &factors {
            let factor = self.array(name, &[1])?[0];
            self.tensors.remove(name);
            if let Some(location) = self.tensors.get_mut(weight) {
                location.factor = factor;
            }
        }
        // Scales of activations are not used.
        self.forget(|name| !factors.is_empty() && name.ends_with(".input_scale"));
        Ok(!factors.is_empty())
    }

    /// Drops tensors that are not needed.
    pub(crate) fn forget(&mut self, is_unused: impl Fn(&str) -> bool) {
        self.tensors.retain(|name, _| !is_unused(name));
    }

    /// Allows a tensor to stay unused if all its values are zero.
    pub(crate) fn forgive_zeros(&mut self, name: &str) -> Result<(), ModelError> {
        if let Some(part) = self.part(name)
            && self.small_bytes(&part)?.iter().all(|byte| *byte == 0)
        {
            self.zeros.insert(name.to_owned());
        }
        Ok(())
    }

    /// Adds adapters beside the matrices taken from now on.
    pub(crate) fn set_adapters(&mut self, adapters: Vec<Adapter>) {
        self.adapters = adapters;
    }

    /// The adapters beside the matrices.
    pub(crate) fn adapters(&self) -> &[Adapter] {
        &self.adapters
    }

    /// Takes the adapters' parts for the matrix `{name}.weight`.
    pub(crate) fn low_rank(&mut self, name: &str) -> Result<Vec<LowRankWeights>, ModelError> {
        let order = self
            .tensors
            .get(&format!("{name}.weight"))
            .map(|location| location.row_order);
        let mut parts = Vec::new();
        for (adapter, files) in self.adapters.iter_mut().enumerate() {
            parts.extend(files.take(name, order)?.map(|part| LowRankWeights { adapter, ..part }));
        }
        Ok(parts)
    }

    /// Sets the activations of the matrices taken from now on.
    pub(crate) fn set_activations(&mut self, activations: Activations) {
        self.activations = activations;
    }

    /// Makes linear layers sum their inputs; `names` are pairs of the weights' name and the name in GGUF.
    pub(crate) fn observe_inputs(&mut self, names: BTreeMap<String, String>) {
        self.observed = Some(names);
    }

    /// The sums for the inputs of a linear layer, if requested.
    pub(crate) fn input_sums(&mut self, name: &str, inputs: usize) -> Option<Arc<InputSums>> {
        let stored = self.observed.as_ref()?.get(name)?;
        let sums = InputSums::new(stored.clone(), inputs);
        self.sums.push(Arc::clone(&sums));
        Some(sums)
    }

    /// The sums of all layers so far.
    pub(crate) fn take_input_sums(&mut self) -> Vec<Arc<InputSums>> {
        std::mem::take(&mut self.sums)
    }

    /// Calls `each` with the bytes of every file, in order.
    pub(crate) fn for_each_file(&self, mut each: impl FnMut(&[u8])) -> Result<(), ModelError> {
        for file in &self.files {
            let map = map_file(&file.file).map_err(|source| ModelError::Io {
                path: file.path.clone(),
                source,
            })?;
            each(&map);
        }
        Ok(())
    }

    /// The file of a tensor.
    pub(crate) fn file_of(&self, name: &str) -> Option<&Path> {
        let location = self.tensors.get(name)?;
        Some(&self.files[location.file].path)
    }

    /// A tensor's line in the table of contents.
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        Some(&self.tensors.get(name)?.stored.info)
    }

    /// A tensor without a recipe and with plain row order; `None` for any other.
    pub(crate) fn plain(&self, name: &str) -> Option<PlainTensor<'_>> {
        let location = self.tensors.get(name)?;
        let TensorType::Weights(format) = location.stored.info.element_type else {
            return None;
        };
        let is_plain = location.recipe.is_none() && location.row_order == RowOrder::Plain;
        is_plain.then_some(PlainTensor {
            format,
            shape: &location.stored.info.shape,
            file: location.file,
            offset: location.stored.range.start as u64,
            factor: location.factor,
        })
    }

    /// Enables loading the experts of layers on demand.
    pub(crate) fn set_streams(&mut self, streams: ExpertStreams) {
        self.streams = Some(streams);
    }

    /// The experts that are loaded on demand, if there are some.
    pub(crate) fn streams(&self) -> Option<&ExpertStreams> {
        self.streams.as_ref()
    }

    /// Takes tensors whose data is loaded on demand.
    pub(crate) fn take_unread(&mut self, names: impl IntoIterator<Item = String>) {
        self.taken.extend(names);
    }

    /// The activations of taken matrices.
    pub(crate) fn activations(&self) -> Activations {
        self.activations
    }

    /// The files, opened again, with their paths.
    pub(crate) fn reopened(&self) -> Result<Vec<(PathBuf, FileParts)>, ModelError> {
        let reopen = |file: &WeightFile| {
            let parts = file.file.try_clone().map_err(FileError::from).and_then(FileParts::new);
            let parts = parts.map_err(|error| ModelError::file(&file.path, error))?;
            Ok((file.path.clone(), parts))
        };
        self.files.iter().map(reopen).collect()
    }

    /// Every tensor of every file, by name.
    pub(crate) fn list(&self) -> Vec<TensorInfo> {
        self.tensors
            .values()
            .map(|location| location.stored.info.clone())
            .collect()
    }

    /// The bytes of all tensors in the files.
    pub(crate) fn file_bytes(&self) -> u64 {
        let bytes = |location: &Location| match &location.recipe {
            None => location.stored.info.bytes,
            Some(recipe) => recipe.parts.all().map(|part| part.stored.info.bytes).sum(),
        };
        self.tensors.values().map(bytes).sum()
    }

    /// The names of all tensors in the model.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.tensors.keys()
    }

    /// Tensors that no architecture used.
    pub(crate) fn untaken(&self) -> Vec<String> {
        self.tensors
            .keys()
            .filter(|name| !self.taken.contains(*name) && !self.zeros.contains(*name))
            .cloned()
            .collect()
    }

    /// Checks name and shape without reading data.
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

    /// The rows of a weight tensor, in the file's order, to be read a few at a time. The tensor is not taken.
    pub(crate) fn rows(&self, name: &str) -> Result<TensorRows, ModelError> {
        let Some(location) = self.tensors.get(name) else {
            return Err(ModelError::MissingTensor {
                tensor: name.to_owned(),
            });
        };
        let info = &location.stored.info;
        let TensorType::Weights(format) = info.element_type else {
            return Err(ModelError::WrongType {
                tensor: info.name.clone(),
                expected: "f32, f16, bf16 or a quantised type of GGUF",
                found: info.element_type.clone(),
            });
        };
        let columns = info.shape.last().copied().unwrap_or(1);
        let map = |file: usize| {
            let file = &self.files[file];
            map_file(&file.file).map_err(|source| file.unread(source))
        };
        let (source, factor, order) = match &location.recipe {
            None => {
                let map = map(location.file)?;
                self.files[location.file].bytes(&map, &location.stored)?;
                (
                    RowSource::Mapped(map, location.stored.range.clone()),
                    location.factor,
                    None,
                )
            }
            Some(recipe) => {
                let mut maps = BTreeMap::new();
                for part in recipe.parts.all() {
                    if let Entry::Vacant(vacant) = maps.entry(part.file) {
                        vacant.insert(map(part.file)?);
                    }
                }
                let Made { bytes, factor, order } = recipe.make(|part| {
                    let file = &self.files[part.file];
                    Ok((file.path.as_path(), file.bytes(&maps[&part.file], &part.stored)?))
                })?;
                (RowSource::Made(bytes), factor, order)
            }
        };
        Ok(TensorRows {
            name: info.name.clone(),
            format,
            columns,
            rows: info.shape.iter().product::<usize>() / columns,
            factor,
            order,
            source,
        })
    }

    /// The files with tensors.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|file| file.path.as_path())
    }

    /// Releases a tensor's file pages; otherwise the whole file would be in memory beside the packed weights.
    pub(super) fn unmap(&mut self, name: &str) {
        if let Some(location) = self.tensors.get(name) {
            self.files[location.file].map = None;
            for part in location.recipe.iter().flat_map(|recipe| recipe.parts.all()) {
                self.files[part.file].map = None;
            }
        }
    }

    /// The checked bytes of a tensor of weights.
    pub(super) fn take(&mut self, name: &str, shape: &[usize]) -> Result<Taken<'_>, ModelError> {
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
        let (bytes, factor, order) = match &location.recipe {
            None => {
                let bytes = self.files[location.file].mapped(&location.stored)?;
                if let Some((element, value)) = first_not_finite(format, bytes) {
                    return Err(ModelError::NotFinite {
                        tensor: name.to_owned(),
                        element,
                        value,
                    });
                }
                (Cow::Borrowed(bytes), location.factor, None)
            }
            Some(recipe) => {
                for part in recipe.parts.all() {
                    self.files[part.file].mapped(&part.stored)?;
                }
                let files = &self.files;
                let Made { bytes, factor, order } = recipe.make(|part| files[part.file].whole(&part.stored))?;
                (Cow::Owned(bytes), factor, order)
            }
        };
        let bytes = location.row_order.ordered(bytes, shape.first().copied().unwrap_or(1));
        Ok(Taken {
            format,
            bytes,
            factor,
            order,
        })
    }
}
