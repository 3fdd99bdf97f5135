use std::path::PathBuf;

use riffle_kv::OutputError;
use riffle_linear::WeightFormat;
use riffle_model::ModelError;

/// Why a model cannot be quantised.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizeError {
    /// The input cannot be read.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The output cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The output has a name that is taken.
    #[error("{} exists: give another name, or replace it with `overwrite`", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Input and output are one file.
    #[error("{} is the input itself: give another name for the output", path.display())]
    SameFile {
        /// The file.
        path: PathBuf,
    },
    /// The disk does not hold the output.
    #[error("{} needs {needed} bytes, but its disk has {free} free: free space there, or use another place", path.display())]
    DiskFull {
        /// The output.
        path: PathBuf,
        /// Bytes to be written.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// A row of a tensor takes more memory than is allowed.
    #[error(
        "tensor {tensor} needs {needed} bytes of memory for one row, {budget} are allowed: allow more with `memory_budget_bytes`"
    )]
    Memory {
        /// The tensor's name.
        tensor: String,
        /// Bytes for a row and what becomes of it.
        needed: u64,
        /// Bytes that are allowed.
        budget: u64,
    },
    /// A name of a type or of a mix that does not exist.
    #[error("there is no type {found}: choose one of {known}")]
    UnknownType {
        /// The name.
        found: String,
        /// All names.
        known: String,
    },
    /// A rule that is no pattern and type.
    #[error("rule {rule:?}: {problem}; write a pattern of tensor names, = and a type, such as attn_v=q6_k")]
    Rule {
        /// The rule.
        rule: String,
        /// The problem.
        problem: String,
    },
    /// A format that can be read and not written.
    #[error("{format} can be read, but not written")]
    NoEncoder {
        /// The format.
        format: WeightFormat,
    },
    /// Rows that cannot be encoded.
    #[error(
        "rows of {columns} weights are no whole blocks of {format}, or their bytes or importance have another length"
    )]
    Row {
        /// The format.
        format: WeightFormat,
        /// Weights of a row.
        columns: usize,
    },
    /// A file that is no importance matrix, or a damaged one.
    #[error("importance matrix {}: {problem}", path.display())]
    Importance {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// An importance matrix of another model.
    #[error(
        "the importance matrix has {found} inputs for {tensor}, the model has {expected}: use one collected from this model"
    )]
    ImportanceOfAnother {
        /// The tensor.
        tensor: String,
        /// Inputs in the matrix.
        found: usize,
        /// Inputs of the tensor.
        expected: usize,
    },
    /// A tensor that a GGUF file cannot hold.
    #[error("tensor {tensor} cannot be written: {problem}")]
    Tensor {
        /// The tensor.
        tensor: String,
        /// The problem.
        problem: String,
    },
    /// The caller stopped the run.
    #[error("interrupted: the same command goes on where it stopped")]
    Interrupted,
}
