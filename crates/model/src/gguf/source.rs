//! A model's weights and metadata in GGUF form, for programs that write such files.

use std::path::{Path, PathBuf};

use super::header::Header;
use super::writer::GgufEntry;
use super::{export, read, shards};
use crate::ModelError;
use crate::place::ModelPlace;
use crate::weights::{Checkpoint, RowOrder, TensorInfo, TensorRows};

/// Keys of one shard, or of the file's byte layout.
const OF_THE_FILE: [&str; 4] = ["split.no", "split.count", "split.tensors.count", "general.alignment"];

/// The metadata and the tensors of a model, by the names and in the shapes of GGUF.
pub struct WeightSource {
    /// Metadata, in the order of the file.
    pub metadata: Vec<GgufEntry>,
    /// Tensors, in the order of the file.
    pub tensors: Vec<SourceTensor>,
    pub(super) weights: Checkpoint,
}

/// A tensor of a [`WeightSource`].
#[derive(Debug, Clone)]
pub struct SourceTensor {
    /// GGUF name and shape of the tensor, and its type and bytes in the source.
    pub info: TensorInfo,
    pub(super) origin: Origin,
}

/// The origin of the values of a tensor.
#[derive(Debug, Clone)]
pub(super) enum Origin {
    /// A tensor of the files by its name there, with a change.
    Stored(String, Change),
    /// Values computed from the settings.
    Made(Vec<f32>),
}

/// The change from a stored tensor to GGUF's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    None,
    /// Within each of `heads` heads, makes rows i and i + rows/2 adjacent.
    Interleave {
        heads: usize,
    },
    /// Adds one to each value.
    AddOne,
}

impl WeightSource {
    /// Opens the model at `path`, a folder or a GGUF file (the first of its shards), without reading weights.
    ///
    /// # Errors
    /// [`ModelError`] for damaged files; [`ModelError::UnknownArchitecture`] for a folder that cannot be written as
    /// GGUF.
    pub fn open(path: impl AsRef<Path>) -> Result<WeightSource, ModelError> {
        match ModelPlace::find(path.as_ref())? {
            ModelPlace::Directory(path) => export::open(&path),
            ModelPlace::File(path) => WeightSource::open_file(&path),
        }
    }

    /// Opens any GGUF file, not only a model's.
    ///
    /// # Errors
    /// [`ModelError`] for a damaged file.
    pub fn open_file(path: &Path) -> Result<WeightSource, ModelError> {
        let (file, map) = read(path)?;
        let header = Header::parse(path, &map)?;
        let metadata = header.stored.iter().filter(|stored| !OF_THE_FILE.contains(&stored.key));
        let mut source = WeightSource {
            metadata: metadata.map(|stored| GgufEntry::from(*stored)).collect(),
            tensors: Vec::new(),
            weights: Checkpoint::default(),
        };
        source.add_file(path, file, &header)?;
        for shard in shards(&header)? {
            let (file, map) = read(&shard)?;
            source.add_file(&shard, file, &Header::parse(&shard, &map)?)?;
        }
        Ok(source)
    }

    fn add_file(&mut self, path: &Path, file: std::fs::File, header: &Header<'_>) -> Result<(), ModelError> {
        self.tensors.extend(header.tensors.iter().map(|stored| SourceTensor {
            info: stored.info.clone(),
            origin: Origin::Stored(stored.info.name.clone(), Change::None),
        }));
        let tensors = header
            .tensors
            .iter()
            .map(|stored| (stored.info.name.clone(), stored.clone(), RowOrder::Plain));
        self.weights.add_file(path.to_owned(), file, tensors)
    }

    /// The value of a key of the metadata.
    pub fn value(&self, key: &str) -> Option<&GgufEntry> {
        self.metadata.iter().find(|entry| entry.key() == key)
    }

    /// The weight files.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.weights.paths().map(Path::to_owned).collect()
    }

    /// The rows of a tensor.
    ///
    /// # Errors
    /// [`ModelError::WrongType`] for a tensor without weights, and errors of the system.
    pub fn rows(&self, tensor: &SourceTensor) -> Result<SourceRows, ModelError> {
        let rows = match &tensor.origin {
            Origin::Made(values) => Rows::Made(values.clone()),
            Origin::Stored(name, change) => Rows::Stored(self.weights.rows(name)?, *change),
        };
        Ok(SourceRows { rows })
    }
}

/// Rows of a tensor as f32.
pub struct SourceRows {
    rows: Rows,
}

enum Rows {
    Stored(TensorRows, Change),
    Made(Vec<f32>),
}

impl SourceRows {
    /// Bytes of rows from `first` on, as in the file; `None` if they need a change.
    ///
    /// # Panics
    ///
    /// If the tensor has fewer bytes.
    pub fn stored(&self, first: usize, bytes: usize) -> Option<&[u8]> {
        match &self.rows {
            Rows::Stored(rows, Change::None) => rows.stored(first, bytes),
            _ => None,
        }
    }

    /// Reads rows from `first` on into `output`, which must be whole rows, on the threads of the current rayon pool.
    ///
    /// # Errors
    /// [`ModelError::NotFinite`] for a weight that is infinite or NaN.
    pub fn read(&self, first: usize, output: &mut [f32]) -> Result<(), ModelError> {
        match &self.rows {
            Rows::Made(values) => output.copy_from_slice(values),
            // A bias: each value is a row.
            Rows::Stored(rows, Change::Interleave { heads }) if rows.rows() == 1 => {
                rows.read(first, output)?;
                let stored = output.to_vec();
                for (row, value) in output.iter_mut().enumerate() {
                    *value = stored[interleaved(row, stored.len() / heads)];
                }
            }
            Rows::Stored(rows, Change::Interleave { heads }) => {
                let width = rows.rows() / heads;
                rows.read_as(output, |row| interleaved(first + row, width))?;
            }
            Rows::Stored(rows, change) => {
                rows.read(first, output)?;
                if *change == Change::AddOne {
                    output.iter_mut().for_each(|value| *value += 1.0);
                }
            }
        }
        Ok(())
    }
}

/// The row in a folder's tensor that becomes row `row` of GGUF's, with adjacent pairs in heads of `width` rows.
fn interleaved(row: usize, width: usize) -> usize {
    let within = row % width;
    row - within + within % 2 * (width / 2) + within / 2
}
