use crate::WeightFormat;

/// The reason why a matrix could not be packed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinearError {
    /// A matrix without rows or without columns.
    #[error(
        "a weight matrix of {out_features} × {in_features} is empty; both sizes must be at least 1: check the tensor's shape"
    )]
    Empty {
        /// Rows given.
        out_features: usize,
        /// Columns given.
        in_features: usize,
    },
    /// The bytes do not match the shape.
    #[error(
        "{out_features} × {in_features} weights in {format} take {expected} bytes, but {found} were given: the file is truncated, or its shape or type is wrong"
    )]
    ByteLength {
        /// Element format.
        format: WeightFormat,
        /// Rows given.
        out_features: usize,
        /// Columns given.
        in_features: usize,
        /// Bytes that the shape needs.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// A row that is not a whole number of quantisation blocks.
    #[error("rows of {in_features} weights cannot be {format}: the length must be a multiple of {block}")]
    Block {
        /// Element format.
        format: WeightFormat,
        /// Columns given.
        in_features: usize,
        /// Weights of a block.
        block: usize,
    },
    /// A shape whose size in bytes exceeds the address space.
    #[error("{out_features} × {in_features} weights are more than this machine can address: check the tensor's shape")]
    TooLarge {
        /// Rows given.
        out_features: usize,
        /// Columns given.
        in_features: usize,
    },
    /// The operating system refused memory.
    #[error("no memory for {bytes} bytes of packed weights: close other programs or choose a smaller model")]
    OutOfMemory {
        /// Bytes requested.
        bytes: usize,
    },
}
