//! Quantised models: from a folder of safetensors or a GGUF file to a GGUF file of smaller weights.
//!
//! [`QuantizePlan::new`] selects a type for every tensor by a [`Mix`] and your own [`TypeRule`]s.
//! [`QuantizePlan::write`] encodes the tensors one by one and renames the complete file to its target. An interrupted
//! run leaves a partial file in the same folder; the next run with the same input and options continues it.
//!
//! An [`ImportanceMatrix`] contains the mean square of every input of every linear layer over a text. Weights with
//! large inputs are then encoded more precisely. The file has llama.cpp's format.
//!
//! ```no_run
//! use riffle_quantize::{QuantizeOptions, QuantizePlan};
//!
//! let mut options = QuantizeOptions::new("Q4_K_M".parse()?);
//! options.importance = None;
//! let plan = QuantizePlan::new("model".as_ref(), options)?;
//! println!("{} bytes, {:.2} bits a weight", plan.file_bytes(), plan.bits_per_weight());
//! plan.write("model-Q4_K_M.gguf".as_ref(), &mut |_| std::ops::ControlFlow::Continue(()))?;
//! # Ok::<(), riffle_quantize::QuantizeError>(())
//! ```

#![forbid(unsafe_code)]

mod encode;
mod error;
mod importance;
mod mix;
mod partial;
mod plan;
mod rules;
mod write;

pub use encode::{encodable_formats, encode_rows};
pub use error::QuantizeError;
pub use importance::{ImportanceMatrix, InputSquares};
pub use mix::Mix;
pub use plan::{PlannedTensor, QuantizeOptions, QuantizePlan};
pub use rules::{TypeRule, parse_type};
pub use write::{QuantizeProgress, Quantized};
