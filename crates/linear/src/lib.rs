//! Packed weights times activations: the linear layers of a language model.
//!
//! A [`PackedMatrix`] holds the weights once, in the element type of the file. They are rearranged: one vector load
//! brings the same input of 16 outputs. [`matmul`](PackedMatrix::matmul) computes `output = input · weightsᵀ` for any
//! number of tokens; [`row_into`](PackedMatrix::row_into) reads a row back exactly, so an embedding and a tied output
//! head can share one copy.
//!
//! Float weights (f32, f16, bf16) are widened in registers and multiplied as f32; for bf16, [`Activations::Rounded`]
//! trades bits of the activations for twice the speed with many tokens. 8-bit floats share a scale per 128 inputs of an
//! output. Weights in the block formats of GGUF, and in groups of 4 or 8 bits, stay quantised. For these, activations
//! are rounded to 8 bits with a scale per 32 of them. The error is at most half a step (1/254 of the largest of the
//! 32). Products are summed as integers. If an activation is not finite, every output of its token is then NaN. For
//! float weights, infinities and NaN follow IEEE arithmetic.
//!
//! [`Columns`] runs the same kernels on small dense matrices that change from call to call.
//!
//! Each output is a sum over the inputs in a fixed order. The number of tokens, the number of threads and the
//! instruction set change none of its bits. The best instruction set of the machine is used; the environment variable
//! `RIFFLE_INSTRUCTIONS` (`scalar`, `avx2`, `avxvnni`, `avx512`, `neon`) selects another that the machine supports.
//!
//! ```
//! use riffle_linear::{PackedMatrix, WeightFormat};
//!
//! // Two outputs, three inputs.
//! let weights: Vec<u8> = [1.0f32, 2.0, 3.0, 0.0, -1.0, 0.5].iter().flat_map(|w| w.to_le_bytes()).collect();
//! let matrix = PackedMatrix::pack(WeightFormat::F32, 2, 3, &weights)?;
//! let mut output = [0.0; 2];
//! matrix.matmul(&[1.0, 1.0, 2.0], &mut output);
//! assert_eq!(output, [9.0, 0.0]);
//! # Ok::<(), riffle_linear::LinearError>(())
//! ```
#![deny(unsafe_code)]

mod activations;
mod columns;
mod error;
mod float;
mod format;
mod half;
#[allow(unsafe_code, reason = "vector instructions, and matrices that share a mapping")]
mod machine;
mod matrix;
mod quant;
mod tasks;
#[cfg(test)]
mod testing;

pub use activations::Activations;
pub use columns::Columns;
pub use error::LinearError;
pub use format::WeightFormat;
pub use machine::gather_pages;
pub use matrix::{PackedMatrix, RowsProduct};

/// Outputs that share a vector load: weights are interleaved by this many rows.
const LANES: usize = 16;
