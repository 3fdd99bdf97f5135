use std::path::PathBuf;

use riffle_kv::OutputError;
use riffle_linear::WeightFormat;
use riffle_model::ModelError;

/// The reason why a model cannot be quantised.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizeError {
    /// The input cannot be read.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The output cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The output's name exists already.
    #[error("{} exists: give another name, or replace it with `overwrite`", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Input and output are the same file.
    #[error("{} is the input itself: give another name for the output", path.display())]
    SameFile {
        /// The file.
        path: PathBuf,
    },
    /// The output does not fit on the disk.
    #[error("{} needs {needed} bytes, but its disk has {free} free: free space there, or use another place", path.display())]
    DiskFull {
        /// The output.
        path: PathBuf,
        /// Bytes to be written.
        needed: u64,
        /// Free bytes.
        free: u64,
    },
    /// A row of a tensor needs more memory than the budget.
    #[error(
        "tensor {tensor} needs {needed} bytes of memory for one row, {budget} are allowed: allow more with `memory_budget_bytes`"
    )]
    Memory {
        /// The tensor's name.
        tensor: String,
        /// Bytes for a row and its encoded form.
        needed: u64,
        /// Bytes of the budget.
        budget: u64,
    },
    /// The name is neither a type nor a mix.
    #[error("there is no type {found}: choose one of {known}")]
    UnknownType {
        /// The name.
        found: String,
        /// All names.
        known: String,
    },
    /// The rule is not a pattern and a type.
    #[error("rule {rule:?}: {problem}; write a pattern of tensor names, = and a type, such as attn_v=q6_k")]
    Rule {
        /// The rule.
        rule: String,
        /// The problem.
        problem: String,
    },
    /// The format is readable but not writable.
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
    /// The file is not an importance matrix, or is damaged.
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
    /// A tensor that GGUF does not support.
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
