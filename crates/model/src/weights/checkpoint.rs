//! All weight files of a model as one set of named tensors.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use riffle_linear::{PackedMatrix, WeightFormat};

use super::tensor::first_not_finite;
use super::{TensorInfo, TensorType, mapping, safetensors, to_f32};
use crate::ModelError;
use crate::fields::{Fields, read_json};

const SINGLE_FILE: &str = "model.safetensors";
const INDEX_FILE: &str = "model.safetensors.index.json";

/// The tensors of a model by name; data is mapped only once a tensor is taken.
pub(crate) struct Checkpoint {
    files: Vec<WeightFile>,
    tensors: BTreeMap<String, Location>,
    taken: BTreeSet<String>,
}

struct WeightFile {
    path: PathBuf,
    file: File,
    map: Option<Mmap>,
}

struct Location {
    file: usize,
    stored: safetensors::StoredTensor,
}

impl Checkpoint {
    /// Reads the headers of the directory's weight files.
    pub(crate) fn open(directory: &Path) -> Result<Checkpoint, ModelError> {
        let mut checkpoint = Checkpoint {
            files: Vec::new(),
            tensors: BTreeMap::new(),
            taken: BTreeSet::new(),
        };
        let index_path = directory.join(INDEX_FILE);
        if directory.join(SINGLE_FILE).exists() {
            checkpoint.add(directory.join(SINGLE_FILE))?;
        } else if let Some(index) = read_json(&index_path)? {
            checkpoint.add_shards(directory, Fields::new(&index_path, index)?)?;
        } else {
            return Err(ModelError::MissingFile {
                directory: directory.to_owned(),
                file: SINGLE_FILE.into(),
                hint: "download it, or the shards and model.safetensors.index.json; .bin and .pth weights must be converted to safetensors",
            });
        }
        Ok(checkpoint)
    }

    fn add_shards(&mut self, directory: &Path, index: Fields) -> Result<(), ModelError> {
        let Some(serde_json::Value::Object(map)) = index.get("weight_map") else {
            return Err(index.error("weight_map", "must be an object of tensor names and files"));
        };
        let mut shards: BTreeMap<&str, &str> = BTreeMap::new();
        let mut promised: HashMap<&str, &str> = HashMap::new();
        for (tensor, shard) in map {
            let Some(shard) = shard.as_str().filter(|shard| is_plain_file_name(shard)) else {
                return Err(index.error(
                    "weight_map",
                    format!("tensor {tensor} must name a file of the same directory"),
                ));
            };
            shards.entry(shard).or_insert(tensor);
            promised.insert(tensor, shard);
        }
        for (shard, tensor) in shards {
            let path = directory.join(shard);
            if !path.exists() {
                return Err(ModelError::MissingShard {
                    index: index.path().to_owned(),
                    shard: shard.to_owned(),
                    tensor: tensor.to_owned(),
                });
            }
            self.add(path)?;
        }
        for (tensor, shard) in promised {
            let found = self.tensors.get(tensor);
            if found.is_none_or(|location| self.files[location.file].path != directory.join(shard)) {
                return Err(ModelError::CorruptWeights {
                    path: directory.join(shard),
                    problem: format!("tensor {tensor}, which {INDEX_FILE} places here, is not in it"),
                });
            }
        }
        Ok(())
    }

    fn add(&mut self, path: PathBuf) -> Result<(), ModelError> {
        let mut file = File::open(&path).map_err(|source| ModelError::Io {
            path: path.clone(),
            source,
        })?;
        let index = self.files.len();
        for stored in safetensors::read_header(&path, &mut file)? {
            let tensor = stored.info.name.clone();
            let location = Location { file: index, stored };
            if let Some(first) = self.tensors.insert(tensor.clone(), location) {
                return Err(ModelError::DuplicateTensor {
                    tensor,
                    first: self.files[first.file].path.clone(),
                    second: path,
                });
            }
        }
        self.files.push(WeightFile { path, file, map: None });
        Ok(())
    }

    /// Every tensor of every file, by name.
    pub(crate) fn list(&self) -> Vec<TensorInfo> {
        self.tensors
            .values()
            .map(|location| location.stored.info.clone())
            .collect()
    }

    /// Tensors no architecture asked for.
    pub(crate) fn untaken(&self) -> Vec<String> {
        self.tensors
            .keys()
            .filter(|name| !self.taken.contains(*name))
            .cloned()
            .collect()
    }

    /// Name, shape and type checked; the data is not touched.
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
        if matches!(info.element_type, TensorType::Other { .. }) {
            return Err(ModelError::WrongType {
                tensor: name.to_owned(),
                expected: "f32, f16 or bf16",
                found: info.element_type.clone(),
            });
        }
        Ok(info)
    }

    /// A vector as f32.
    pub(crate) fn vector(&mut self, name: &str, length: usize) -> Result<Vec<f32>, ModelError> {
        let (element_type, bytes) = self.take(name, &[length])?;
        Ok(to_f32(&element_type, bytes).unwrap_or_default())
    }

    /// A matrix `[rows, columns]`, packed in its own element type.
    pub(crate) fn matrix(&mut self, name: &str, rows: usize, columns: usize) -> Result<PackedMatrix, ModelError> {
        let [matrix] = self.matrices(name, [rows], columns)?;
        Ok(matrix)
    }

    /// A matrix stored as several on top of each other, each packed by itself.
    pub(crate) fn matrices<const PARTS: usize>(
        &mut self,
        name: &str,
        rows: [usize; PARTS],
        columns: usize,
    ) -> Result<[PackedMatrix; PARTS], ModelError> {
        let (element_type, mut rest) = self.take(name, &[rows.iter().sum(), columns])?;
        let format = match element_type {
            TensorType::F32 => WeightFormat::F32,
            TensorType::F16 => WeightFormat::F16,
            TensorType::Bf16 | TensorType::Other { .. } => WeightFormat::Bf16,
        };
        let row_bytes = columns * element_type.bits() / 8;
        let parts = rows.map(|rows| {
            let (part, after) = rest.split_at(rows * row_bytes);
            rest = after;
            PackedMatrix::pack(format, rows, columns, part)
        });
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

    /// The checked bytes of a tensor.
    fn take(&mut self, name: &str, shape: &[usize]) -> Result<(TensorType, &[u8]), ModelError> {
        let element_type = self.check(name, shape)?.element_type.clone();
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
        if let Some((element, value)) = first_not_finite(&element_type, bytes) {
            return Err(ModelError::NotFinite {
                tensor: name.to_owned(),
                element,
                value,
            });
        }
        Ok((element_type, bytes))
    }
}

/// A shard must lie beside its index; anything else could read files of the user.
fn is_plain_file_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!(
        (components.next(), components.next()),
        (Some(std::path::Component::Normal(_)), None)
    )
}
