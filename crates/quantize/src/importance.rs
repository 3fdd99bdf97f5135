//! Importance matrices: the sums of squares of every input of every linear layer, in llama.cpp's formats.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use riffle_kv::{FileKind, OutputFile};
use riffle_linear::WeightFormat;
use riffle_model::{GgufEntry, GgufTensor, WeightSource, gguf_header};

use crate::QuantizeError;

/// Maximum number of bytes of a file of the older format.
const LARGEST_FILE_BYTES: u64 = 1 << 30;
/// Longest name in a file of the older format.
const LARGEST_NAME_BYTES: usize = 256;

/// The key with the names of a matrix's texts.
const DATASETS: &str = "imatrix.datasets";
const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";

/// An existing file is replaced only if it is an importance matrix.
const KIND: FileKind = FileKind {
    name: "an importance matrix",
    matches: |begin| begin.starts_with(b"GGUF") && begin.windows(7).any(|part| part == b"imatrix"),
};

/// The squared inputs of linear layers over a text, by the GGUF names of their weights.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ImportanceMatrix {
    /// Inputs by tensor, such as `blk.0.attn_q.weight`.
    pub tensors: BTreeMap<String, InputSquares>,
    /// Names of the texts.
    pub datasets: Vec<String>,
    /// Chunks of text, each with an empty cache.
    pub chunk_count: u32,
    /// Tokens of a chunk.
    pub chunk_tokens: u32,
}

/// The inputs of one tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct InputSquares {
    /// Sums of squares, `[matrices, inputs]`; one matrix, or one for each expert.
    pub sums: Vec<f32>,
    /// Number of inputs of each matrix.
    pub counts: Vec<f32>,
}

impl InputSquares {
    /// Mean squares, `[matrices, inputs]`; ones for a matrix without inputs.
    pub fn means(&self) -> Vec<f32> {
        let inputs = (self.sums.len() / self.counts.len().max(1)).max(1);
        let matrices = self.sums.chunks(inputs).zip(&self.counts);
        let means =
            matrices.flat_map(|(sums, count)| sums.iter().map(move |sum| if *count > 0.0 { sum / count } else { 1.0 }));
        means.collect()
    }
}

impl ImportanceMatrix {
    /// Reads a file of llama.cpp's GGUF format or of its older format (`.dat`).
    ///
    /// # Errors
    /// [`QuantizeError::Importance`] for another or a damaged file.
    pub fn read(path: &Path) -> Result<ImportanceMatrix, QuantizeError> {
        let wrong = |problem: String| QuantizeError::Importance {
            path: path.to_owned(),
            problem,
        };
        let mut begin = Vec::new();
        let file = riffle_files::open(path).map_err(|error| wrong(error.to_string()))?;
        std::io::Read::read_to_end(&mut std::io::Read::take(file, 4), &mut begin)
            .map_err(|error| wrong(error.to_string()))?;
        let matrix = if begin == b"GGUF" {
            from_gguf(&WeightSource::open_file(path)?)
        } else {
            let bytes = riffle_files::read(path, LARGEST_FILE_BYTES).map_err(|error| wrong(error.to_string()))?;
            from_older(&bytes).map_err(|problem| {
                let hint = "give a file of riffle calibrate --imatrix or of llama-imatrix";
                Problem::Text(format!("it is no importance matrix, or damaged ({problem}): {hint}"))
            })
        };
        let matrix = matrix.map_err(|problem| match problem {
            Problem::Text(problem) => wrong(problem),
            Problem::Error(error) => error,
        })?;
        matrix.check().map_err(wrong)?;
        Ok(matrix)
    }

    /// Writes the file atomically in llama.cpp's format. It never replaces a file of another kind.
    ///
    /// # Errors
    /// [`QuantizeError::Output`].
    pub fn write(&self, path: &Path) -> Result<(), QuantizeError> {
        let mut tensors = Vec::new();
        let mut data: Vec<&[f32]> = Vec::new();
        for (name, squares) in &self.tensors {
            let matrices = squares.counts.len().max(1);
            for (suffix, columns, values) in [
                (SUMS, squares.sums.len() / matrices, &squares.sums),
                (COUNTS, 1, &squares.counts),
            ] {
                tensors.push(GgufTensor {
                    name: format!("{name}{suffix}"),
                    shape: vec![matrices, columns],
                    format: WeightFormat::F32,
                });
                data.push(values);
            }
        }
        let entries = [
            GgufEntry::text("general.type", "imatrix"),
            GgufEntry::texts(DATASETS, self.datasets.iter().map(String::as_str)),
            GgufEntry::count("imatrix.chunk_count", self.chunk_count),
            GgufEntry::count("imatrix.chunk_size", self.chunk_tokens),
        ];
        let (header, offsets) = gguf_header(&entries, &tensors).ok_or_else(|| QuantizeError::Tensor {
            tensor: "the importance matrix".to_owned(),
            problem: "it is too large".to_owned(),
        })?;
        OutputFile::new(path, KIND)?.write(|file| {
            file.write_all(&header)?;
            let mut written = header.len() as u64;
            let ends = offsets.iter().skip(1).copied().map(Some).chain([None]);
            for (values, end) in data.iter().zip(ends) {
                for value in *values {
                    file.write_all(&value.to_le_bytes())?;
                }
                written += 4 * values.len() as u64;
                let end = end.unwrap_or_else(|| written.next_multiple_of(32));
                file.write_all(&vec![0; (end - written) as usize])?;
                written = end;
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Checks before long work that [`write`](Self::write) can write to `path`.
    ///
    /// # Errors
    /// [`QuantizeError::Output`].
    pub fn check_write(path: &Path) -> Result<(), QuantizeError> {
        OutputFile::check(path, KIND)?;
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        if self.tensors.is_empty() {
            return Err("it holds no sums".to_owned());
        }
        for (name, squares) in &self.tensors {
            let good = |value: &f32| value.is_finite() && *value >= 0.0;
            if !squares.sums.iter().chain(&squares.counts).all(good) {
                return Err(format!("a sum of {name} is negative, infinite or no number"));
            }
            if squares.counts.is_empty() || !squares.sums.len().is_multiple_of(squares.counts.len()) {
                return Err(format!("sums and counts of {name} do not belong together"));
            }
        }
        Ok(())
    }
}

enum Problem {
    Text(String),
    Error(QuantizeError),
}

fn from_gguf(source: &WeightSource) -> Result<ImportanceMatrix, Problem> {
    let text = |problem: &str| Problem::Text(problem.to_owned());
    if source.value("general.type").and_then(GgufEntry::as_text) != Some("imatrix") {
        return Err(text(
            "it is a GGUF file of another kind: collect one with riffle calibrate",
        ));
    }
    let wrong_type = |key: &str| Problem::Text(format!("the value of {key} has another type"));
    let count = |key: &str| match source.value(key).map(GgufEntry::as_count) {
        None => Ok(0),
        Some(Some(count)) => u32::try_from(count).map_err(|_| wrong_type(key)),
        Some(None) => Err(wrong_type(key)),
    };
    let datasets = match source.value(DATASETS).map(GgufEntry::as_texts) {
        None => Vec::new(),
        Some(datasets) => datasets.ok_or_else(|| wrong_type(DATASETS))?,
    };
    let mut matrix = ImportanceMatrix {
        chunk_count: count("imatrix.chunk_count")?,
        chunk_tokens: count("imatrix.chunk_size")?,
        datasets,
        ..ImportanceMatrix::default()
    };
    let values = |name: &str| -> Result<Option<Vec<f32>>, Problem> {
        let Some(tensor) = source.tensors.iter().find(|tensor| tensor.info.name == name) else {
            return Ok(None);
        };
        let failed = |error| Problem::Error(QuantizeError::Model(error));
        let mut values = vec![0.0; tensor.info.shape.iter().product()];
        source
            .rows(tensor)
            .map_err(failed)?
            .read(0, &mut values)
            .map_err(failed)?;
        Ok(Some(values))
    };
    for tensor in &source.tensors {
        let Some(name) = tensor.info.name.strip_suffix(SUMS) else {
            continue;
        };
        let sums = values(&tensor.info.name)?.unwrap_or_default();
        let counts = values(&format!("{name}{COUNTS}"))?;
        let counts = counts.ok_or_else(|| Problem::Text(format!("the counts of {name} are missing")))?;
        // [matrices, inputs]
        let matrices: usize = tensor.info.shape.iter().rev().skip(1).product();
        if counts.len() != matrices {
            let problem = format!("{name} has {} counts for {matrices} sums of inputs", counts.len());
            return Err(Problem::Text(problem));
        }
        matrix.tensors.insert(name.to_owned(), InputSquares { sums, counts });
    }
    Ok(matrix)
}

/// Reads the older format. It has the number of entries, the entries, the last chunk and the name of the text. An entry
/// has the length of its name, the name, the calls, the number of values, and the values divided by the calls. All
/// numbers have 32 bits.
fn from_older(bytes: &[u8]) -> Result<ImportanceMatrix, String> {
    let mut rest = bytes;
    let mut take = |bytes: usize| -> Result<&[u8], String> {
        let (taken, behind) = rest.split_at_checked(bytes).ok_or("it ends too early")?;
        rest = behind;
        Ok(taken)
    };
    let mut matrix = ImportanceMatrix::default();
    let entries = count_of(take(4)?)?;
    for _ in 0..entries {
        let length = count_of(take(4)?)?;
        if length > LARGEST_NAME_BYTES {
            return Err(format!("a name takes {length} bytes"));
        }
        let name = String::from_utf8(take(length)?.to_vec()).map_err(|_| "a name is not UTF-8")?;
        let calls = count_of(take(4)?)?;
        let values = count_of(take(4)?)?;
        let values = take(values.checked_mul(4).ok_or("a count is too large")?)?;
        let squares = InputSquares {
            sums: values
                .as_chunks()
                .0
                .iter()
                .map(|bytes| f32::from_le_bytes(*bytes))
                .collect(),
            counts: vec![calls as f32],
        };
        matrix.tensors.insert(name, squares);
    }
    if let Ok(chunks) = take(4) {
        matrix.chunk_count = count_of(chunks)? as u32;
        if let Ok(length) = take(4)
            && let Ok(name) = take(count_of(length)?)
        {
            matrix.datasets.push(String::from_utf8_lossy(name).into_owned());
        }
    }
    Ok(matrix)
}

fn count_of(bytes: &[u8]) -> Result<usize, String> {
    let count = bytes.try_into().map(i32::from_le_bytes).unwrap_or(-1);
    usize::try_from(count).map_err(|_| format!("a count is {count}"))
}
