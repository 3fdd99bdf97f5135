//! The parts that a model family is made with, for families of other crates.
//!
//! A [`Family`] has two functions. `configure` reads the sizes of a model from its config.json ([`Fields`]); `build` takes the weights
//! ([`Checkpoint`]) and puts a [`Decoder`](crate::Decoder) together from parts: [`Attention`](crate::Attention), [`Mlp`](crate::Mlp),
//! [`Norm`](crate::Norm), [`Projection`](crate::Projection), as [`Step`](crate::Step)s of [`Layer`](crate::Layer)s. The layers are data, so the CPU,
//! a device, the cache and every policy read them without knowing the family.
//!
//! A relative of Llama is a [`Style`]:
//!
//! ```
//! use riffle_model::family::{Checkpoint, Fields, Style, build_llama, configure_llama};
//! use riffle_model::{Decoder, Family, LoadOptions, ModelConfig, ModelError};
//!
//! /// Llama with a norm on every query and key head.
//! static MINE: [Family; 1] = [Family::new(&["MineForCausalLM"], "mine", configure_llama, build)];
//!
//! fn build(fields: &Fields, config: &ModelConfig, weights: &mut Checkpoint) -> Result<Decoder, ModelError> {
//!     let style = Style::default().with_head_norms(true);
//!     build_llama(style, fields, config, weights)
//! }
//!
//! let options = LoadOptions::default().with_families(&MINE);
//! let error = riffle_model::inspect_with("no/such/model", &options).unwrap_err();
//! assert!(error.to_string().contains("no/such/model"));
//! ```
//!
//! The crate in `examples/outside-family` of the repository is a family that is none of these, from config.json to logits that equal
//! those of Python's `transformers`. A family of another crate reads Hugging Face directories; names in GGUF files are known for the
//! families of this crate alone. Settings in config.json that change what a model computes and that no family reads are refused:
//! [`Family::with_settings`] names those that yours does read.

pub use crate::blocks::{DeltaNetStorage, Mamba2Norm, Mamba2Settings, RotarySettings};
pub use crate::families::llama::{Style, build_with as build_llama, configure as configure_llama};
pub use crate::families::{Build, BuildPredictor, Configure, Family};
pub use crate::fields::Fields;
pub use crate::layer::feed_forward;
pub use crate::weights::Checkpoint;
