//! Quantised models: from a folder of safetensors or a GGUF file to a GGUF file of smaller weights.
//!
//! [`QuantizePlan::new`] decides by a [`Mix`] and by [`TypeRule`]s of your own which type every tensor gets, [`QuantizePlan::write`] encodes
//! the tensors one after the other and puts the file in place when it is whole. A run that is interrupted leaves a partial file
//! beside it, which the next run with the same input and options goes on with.
//!
//! An [`ImportanceMatrix`] holds the mean square of every input of every linear layer, as collected from a text: weights that
//! meet large inputs are then encoded with more care. It is read and written in llama.cpp's format.
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
