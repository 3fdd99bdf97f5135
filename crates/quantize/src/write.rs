//! Encodes the tensors one by one into the file.

use std::fs;
use std::hash::Hasher;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use riffle_kv::{FileKind, OutputError, OutputFile};
use riffle_model::{ModelError, SourceRows};
use riffle_system::files::free_bytes;
use twox_hash::XxHash3_64;

use crate::QuantizeError;
use crate::encode::encode_rows;
use crate::partial::{Partial, Stretch, folder};
use crate::plan::{PlannedTensor, QuantizePlan};

/// Bytes of rows to encode together, if memory allows.
const ROWS_BYTES: u64 = 32 << 20;

const KIND: FileKind = FileKind {
    name: "a GGUF file",
    matches: |begin| begin.starts_with(b"GGUF"),
};

/// Progress of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuantizeProgress<'a> {
    /// The current tensor.
    pub tensor: &'a str,
    /// Finished tensors.
    pub done_tensors: usize,
    /// All tensors.
    pub tensors: usize,
    /// Finished bytes of the file.
    pub done_bytes: u64,
    /// All bytes of the file.
    pub file_bytes: u64,
}

/// A finished file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quantized {
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Tensors that an interrupted run had already written.
    pub resumed_tensors: usize,
}

impl QuantizePlan {
    /// Checks that [`write`](Self::write) can write to `output`.
    ///
    /// # Errors
    /// [`QuantizeError::Exists`], [`QuantizeError::SameFile`], [`QuantizeError::Memory`], [`QuantizeError::Output`].
    pub fn check(&self, output: &Path) -> Result<(), QuantizeError> {
        let path = output.to_owned();
        let same = |input: &Path| {
            fs::canonicalize(input)
                .ok()
                .zip(fs::canonicalize(output).ok())
                .is_some_and(|(a, b)| a == b)
        };
        if same(&self.input) || self.source.paths().iter().any(|input| same(input)) {
            return Err(QuantizeError::SameFile { path });
        }
        if output.exists() && !output.is_dir() && !self.options.overwrite {
            return Err(QuantizeError::Exists { path });
        }
        OutputFile::check(output, KIND)?;
        if let Some(budget) = self.options.memory_bytes {
            for tensor in &self.tensors {
                let needed = row_bytes(tensor);
                if needed > budget {
                    return Err(QuantizeError::Memory {
                        tensor: tensor.name.clone(),
                        needed,
                        budget,
                    });
                }
            }
        }
        Ok(())
    }

    /// Writes the file to `output`, which appears when it is complete. `watch` receives the progress every few rows
    /// and may break. After a break or a killed process, a call with the same input and options continues after the
    /// last complete tensor.
    ///
    /// # Errors
    /// The errors of [`check`](Self::check); [`QuantizeError::DiskFull`]; [`QuantizeError::Interrupted`]; weights
    /// that are infinite or NaN.
    pub fn write(
        &self,
        output: &Path,
        watch: &mut dyn FnMut(QuantizeProgress<'_>) -> ControlFlow<()>,
    ) -> Result<Quantized, QuantizeError> {
        self.check(output)?;
        // A link stays; the write replaces its target.
        let target = fs::canonicalize(output).unwrap_or_else(|_| output.to_owned());
        let stretches = self.tensors.iter().zip(&self.offsets).map(|(tensor, start)| Stretch {
            start: *start,
            bytes: tensor.to_bytes,
        });
        let mut partial = Partial::open(&target, self.fingerprint(), &self.header, stretches)?;
        let failed = |source: io::Error| OutputError::System {
            path: output.to_owned(),
            source,
        };
        let resumed_tensors = partial.done;
        self.check_space(output, partial.len().map_err(failed)?)?;
        for index in resumed_tensors..self.tensors.len() {
            let tensor = &self.tensors[index];
            let start = self.offsets[index];
            let begun = partial.begin(Stretch {
                start,
                bytes: tensor.to_bytes,
            });
            begun.map_err(failed)?;
            let mut written = 0;
            let result = self.encode(index, &mut |bytes| {
                partial
                    .write(bytes)
                    .map_err(|error| QuantizeError::from(failed(error)))?;
                written += bytes.len() as u64;
                let progress = QuantizeProgress {
                    tensor: &tensor.name,
                    done_tensors: index,
                    tensors: self.tensors.len(),
                    done_bytes: start + written,
                    file_bytes: self.file_bytes(),
                };
                match watch(progress) {
                    ControlFlow::Continue(()) => Ok(()),
                    ControlFlow::Break(()) => Err(QuantizeError::Interrupted),
                }
            });
            match result {
                Ok(()) => partial.end().map_err(failed)?,
                Err(error @ QuantizeError::Model(ModelError::NotFinite { .. })) => {
                    partial.remove();
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
        partial.finish(self.file_bytes()).map_err(failed)?;
        Ok(Quantized {
            file_bytes: self.file_bytes(),
            resumed_tensors,
        })
    }

    /// Encodes a tensor and passes its bytes to `write`, a few rows at a time.
    fn encode(
        &self,
        index: usize,
        write: &mut dyn FnMut(&[u8]) -> Result<(), QuantizeError>,
    ) -> Result<(), QuantizeError> {
        let tensor = &self.tensors[index];
        let rows = self.source.rows(&self.source.tensors[index])?;
        let (columns, count) = (tensor.columns(), tensor.rows());
        let encoded_bytes = (tensor.to_bytes as usize) / count;
        let importance = self.importance(tensor);
        // Rows of a matrix share their importance; each expert's matrix has its own.
        let matrices = importance.as_ref().map_or(1, |importance| importance.len() / columns);
        let matrix_rows = count / matrices;
        let budget = self.options.memory_bytes.unwrap_or(ROWS_BYTES).min(ROWS_BYTES);
        let together = ((budget / row_bytes(tensor)).max(1) as usize).min(matrix_rows);
        let mut values = vec![0.0; together * columns];
        let mut encoded = vec![0; together * encoded_bytes];
        for matrix in 0..matrices {
            let importance = importance
                .as_ref()
                .map(|importance| &importance[matrix * columns..][..columns]);
            for first in (0..matrix_rows).step_by(together) {
                let step = together.min(matrix_rows - first);
                let (values, encoded) = (&mut values[..step * columns], &mut encoded[..step * encoded_bytes]);
                let first = matrix * matrix_rows + first;
                if !copy(&rows, tensor, first, encoded) {
                    rows.read(first, values)?;
                    encode_rows(tensor.to, columns, values, importance, encoded)?;
                }
                write(encoded)?;
            }
        }
        Ok(())
    }

    fn check_space(&self, output: &Path, there: u64) -> Result<(), QuantizeError> {
        let needed = self.file_bytes().saturating_sub(there);
        match free_bytes(folder(output)) {
            Ok(free) if free < needed => Err(QuantizeError::DiskFull {
                path: output.to_owned(),
                needed,
                free,
            }),
            _ => Ok(()),
        }
    }

    /// A hash of everything that decides the file's bytes.
    fn fingerprint(&self) -> u64 {
        let mut hash = XxHash3_64::new();
        hash.write(env!("CARGO_PKG_VERSION").as_bytes());
        hash.write(&self.header);
        for path in self.source.paths() {
            hash.write(path.as_os_str().as_encoded_bytes());
            if let Ok(metadata) = fs::metadata(&path) {
                hash.write_u64(metadata.len());
                let changed = metadata
                    .modified()
                    .ok()
                    .and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
                hash.write_u128(changed.unwrap_or_default().as_nanos());
            }
        }
        for (name, squares) in self.options.importance.iter().flat_map(|matrix| &matrix.tensors) {
            hash.write(name.as_bytes());
            for value in squares.sums.iter().chain(&squares.counts) {
                hash.write_u32(value.to_bits());
            }
        }
        hash.finish()
    }
}

/// Copies unchanged rows.
fn copy(rows: &SourceRows, tensor: &PlannedTensor, first: usize, encoded: &mut [u8]) -> bool {
    let stored = (tensor.from == tensor.to)
        .then(|| rows.stored(first, encoded.len()))
        .flatten();
    stored.map(|stored| encoded.copy_from_slice(stored)).is_some()
}

/// Bytes of a row as f32 and of its encoded form.
fn row_bytes(tensor: &PlannedTensor) -> u64 {
    4 * tensor.columns() as u64 + tensor.to_bytes / tensor.rows() as u64
}
