//! A planned run: the type of every tensor, the file's header, and its size.

use std::path::{Path, PathBuf};

use riffle_linear::WeightFormat;
use riffle_model::{GgufEntry, GgufTensor, SourceTensor, TensorType, WeightSource, gguf_header};

use crate::mix::{Shape, fallback, is_quantised};
use crate::{ImportanceMatrix, Mix, QuantizeError, TypeRule};

/// The version of the block formats for the file's metadata.
const QUANTIZATION_VERSION: u32 = 2;

/// Options for quantising a model.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct QuantizeOptions {
    /// The types of tensors.
    pub mix: Mix,
    /// Rules that give tensors types by name, before the mix. The first matching rule counts.
    pub rules: Vec<TypeRule>,
    /// The type of the head; for a tied head, the type of the embedding.
    pub output_type: Option<WeightFormat>,
    /// The type of the embedding.
    pub embedding_type: Option<WeightFormat>,
    /// Mean squares of inputs.
    pub importance: Option<ImportanceMatrix>,
    /// Memory budget for the rows in progress.
    pub memory_bytes: Option<u64>,
    /// Replace an existing file.
    pub overwrite: bool,
}

impl QuantizeOptions {
    /// A mix without further options.
    pub fn new(mix: Mix) -> QuantizeOptions {
        QuantizeOptions {
            mix,
            rules: Vec::new(),
            output_type: None,
            embedding_type: None,
            importance: None,
            memory_bytes: None,
            overwrite: false,
        }
    }
}

/// A tensor and its planned type.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PlannedTensor {
    /// Name of the tensor in GGUF.
    pub name: String,
    /// Shape of the tensor, slowest dimension first.
    pub shape: Vec<usize>,
    /// Type of the tensor in the source.
    pub from: WeightFormat,
    /// Bytes of the tensor in the source.
    pub from_bytes: u64,
    /// Type of the tensor in the file.
    pub to: WeightFormat,
    /// Bytes of the tensor in the file.
    pub to_bytes: u64,
    /// The mix's type, if the rows do not fit it and the tensor got another.
    pub in_place_of: Option<WeightFormat>,
    /// True if an importance matrix weights the errors.
    pub has_importance: bool,
}

impl PlannedTensor {
    /// True if the source tensor is already quantised and gets encoded again, so that errors add up.
    pub fn is_encoded_again(&self) -> bool {
        self.from.block_weights() > 1 && self.from != self.to && self.to.block_weights() > 1
    }

    pub(crate) fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    pub(crate) fn rows(&self) -> usize {
        self.shape.iter().product::<usize>() / self.columns()
    }
}

/// A planned quantisation.
pub struct QuantizePlan {
    pub(crate) input: PathBuf,
    pub(crate) source: WeightSource,
    pub(crate) options: QuantizeOptions,
    pub(crate) tensors: Vec<PlannedTensor>,
    pub(crate) header: Vec<u8>,
    /// Offsets of the tensors in the file.
    pub(crate) offsets: Vec<u64>,
    file_bytes: u64,
}

impl QuantizePlan {
    /// Reads the headers of the model at `path`, a folder or a GGUF file, and selects the type of each tensor.
    ///
    /// # Errors
    /// [`QuantizeError::Model`] for a damaged or unknown model; [`QuantizeError::ImportanceOfAnother`];
    /// [`QuantizeError::Tensor`].
    pub fn new(path: &Path, options: QuantizeOptions) -> Result<QuantizePlan, QuantizeError> {
        let source = WeightSource::open(path)?;
        let shape = shape_of(&source, &options);
        let planned = source
            .tensors
            .iter()
            .map(|tensor| plan_tensor(tensor, &options, &shape));
        let tensors = planned.collect::<Result<Vec<_>, _>>()?;
        let written: Vec<GgufTensor> = tensors
            .iter()
            .map(|tensor| GgufTensor {
                name: tensor.name.clone(),
                shape: tensor.shape.clone(),
                format: tensor.to,
            })
            .collect();
        let entries = metadata(&source, &options);
        let (header, offsets) = gguf_header(&entries, &written).ok_or_else(|| QuantizeError::Tensor {
            tensor: "of the model".to_owned(),
            problem: "the file would be larger than any file can be".to_owned(),
        })?;
        let last = offsets.last().zip(tensors.last());
        let end = last.map_or(header.len() as u64, |(offset, tensor)| offset + tensor.to_bytes);
        Ok(QuantizePlan {
            input: path.to_owned(),
            source,
            options,
            tensors,
            header,
            offsets,
            file_bytes: end.next_multiple_of(32),
        })
    }

    /// Every tensor, in the order of the file.
    pub fn tensors(&self) -> &[PlannedTensor] {
        &self.tensors
    }

    /// The options.
    pub fn options(&self) -> &QuantizeOptions {
        &self.options
    }

    /// Bytes of the file to be written.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Bytes of all tensors in the source.
    pub fn source_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.from_bytes).sum()
    }

    /// Mean bits of a weight in the file, including its header.
    pub fn bits_per_weight(&self) -> f64 {
        let weights: f64 = self
            .tensors
            .iter()
            .map(|tensor| tensor.shape.iter().product::<usize>() as f64)
            .sum();
        8.0 * self.file_bytes as f64 / weights.max(1.0)
    }

    /// The mean squares of a tensor's inputs, `[matrices, columns]`.
    pub(crate) fn importance(&self, tensor: &PlannedTensor) -> Option<Vec<f32>> {
        let matrix = self.options.importance.as_ref().filter(|_| tensor.has_importance)?;
        Some(matrix.tensors.get(&tensor.name)?.means())
    }
}

fn plan_tensor(
    tensor: &SourceTensor,
    options: &QuantizeOptions,
    shape: &Shape,
) -> Result<PlannedTensor, QuantizeError> {
    let info = &tensor.info;
    let wrong = |problem: String| QuantizeError::Tensor {
        tensor: info.name.clone(),
        problem,
    };
    let TensorType::Weights(from) = info.element_type else {
        return Err(wrong(format!("its type {} holds no weights", info.element_type)));
    };
    let columns = info.shape.last().copied().unwrap_or(1);
    let (wanted, to) = if is_quantised(&info.name, &info.shape) {
        let wanted = wanted(&info.name, columns, options, shape);
        (wanted, fallback(wanted, columns))
    } else if from.ggml_type().is_some() && !matches!(from, WeightFormat::F16 | WeightFormat::Bf16) {
        (from, from)
    } else {
        // Norms in a folder have the type of its matrices, but llama.cpp needs them in 32 bits.
        (WeightFormat::F32, WeightFormat::F32)
    };
    let mut planned = PlannedTensor {
        name: info.name.clone(),
        shape: info.shape.clone(),
        from,
        from_bytes: info.bytes,
        to,
        to_bytes: 0,
        in_place_of: Some(wanted).filter(|wanted| *wanted != to),
        has_importance: false,
    };
    let matrix = options
        .importance
        .as_ref()
        .and_then(|matrix| matrix.tensors.get(&info.name));
    if let Some(squares) = matrix.filter(|_| to.block_weights() > 1) {
        // Each expert's matrix has its own inputs.
        let matrices = if info.shape.len() > 2 {
            planned.shape[..info.shape.len() - 2].iter().product()
        } else {
            1
        };
        if squares.sums.len() != matrices * columns {
            return Err(QuantizeError::ImportanceOfAnother {
                tensor: info.name.clone(),
                found: squares.sums.len(),
                expected: matrices * columns,
            });
        }
        planned.has_importance = true;
    }
    let written = GgufTensor {
        name: planned.name.clone(),
        shape: planned.shape.clone(),
        format: to,
    };
    planned.to_bytes = written
        .bytes()
        .ok_or_else(|| wrong(format!("its shape {:?} is impossible", info.shape)))?;
    Ok(planned)
}

/// The type for a matrix, even if its rows do not fit.
fn wanted(name: &str, columns: usize, options: &QuantizeOptions, shape: &Shape) -> WeightFormat {
    let is_embedding = name == "token_embd.weight";
    let is_head = name == "output.weight" || is_embedding && shape.is_tied;
    let own = options.embedding_type.filter(|_| is_embedding);
    let own = own.or(options.output_type.filter(|_| is_head));
    let rule = || options.rules.iter().find_map(|rule| rule.format_of(name));
    own.or_else(rule)
        .unwrap_or_else(|| options.mix.format_of(name, columns, shape))
}

fn shape_of(source: &WeightSource, options: &QuantizeOptions) -> Shape {
    let architecture = source
        .value("general.architecture")
        .and_then(GgufEntry::as_text)
        .unwrap_or_default();
    let count = |key: &str| {
        let entry = source.value(&format!("{architecture}.{key}"))?;
        entry.as_count().or_else(|| entry.first_count())
    };
    let layers = count("block_count").unwrap_or(0) as usize;
    let heads = count("attention.head_count").unwrap_or(1);
    let group = heads / count("attention.head_count_kv").unwrap_or(heads).max(1);
    Shape {
        layers,
        group: group as usize,
        experts: count("expert_count").unwrap_or(0) as usize,
        is_tied: !source.tensors.iter().any(|tensor| tensor.info.name == "output.weight"),
        has_importance: options.importance.is_some(),
        is_70b: architecture == "llama" && layers == 80 && group == 8,
    }
}

/// The metadata of the source with its changes.
fn metadata(source: &WeightSource, options: &QuantizeOptions) -> Vec<GgufEntry> {
    let mut changed = vec![
        GgufEntry::count("general.file_type", options.mix.file_type()),
        GgufEntry::count("general.quantization_version", QUANTIZATION_VERSION),
    ];
    if let Some(matrix) = &options.importance {
        changed.push(GgufEntry::count(
            "quantize.imatrix.entries_count",
            matrix.tensors.len() as u32,
        ));
        changed.push(GgufEntry::count("quantize.imatrix.chunks_count", matrix.chunk_count));
        if let Some(dataset) = matrix.datasets.first() {
            changed.push(GgufEntry::text("quantize.imatrix.dataset", dataset));
        }
    }
    let is_kept = |entry: &&GgufEntry| changed.iter().all(|changed| changed.key() != entry.key());
    let mut entries: Vec<GgufEntry> = source.metadata.iter().filter(is_kept).cloned().collect();
    entries.extend(changed);
    entries
}
