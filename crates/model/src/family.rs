//! Building blocks of model families, for families of other crates.
//!
//! A [`Family`] has two functions. `configure` reads the sizes of a model from its config.json ([`Fields`]); `build`
//! takes the weights ([`Checkpoint`]) and builds a [`Decoder`](crate::Decoder) from parts:
//! [`Attention`](crate::Attention), [`Mlp`](crate::Mlp), [`Norm`](crate::Norm), [`Projection`](crate::Projection), as
//! [`Step`](crate::Step)s of [`Layer`](crate::Layer)s. The layers are data, so the CPU, a device, the cache and every
//! policy work without knowing the family.
//!
//! A family related to Llama is a [`Style`]:
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
//! `examples/outside-family` in the repository is a crate with another kind of family, whose logits equal those of
//! Python's `transformers`. A family of another crate reads Hugging Face directories; GGUF names exist only for the
//! families of this crate. Settings in config.json that change the computation and that no family reads are refused:
//! [`Family::with_settings`] lists the settings that yours reads.

pub use crate::blocks::{DeltaNetStorage, Mamba2Norm, Mamba2Settings, RotarySettings};
pub use crate::families::llama::{Style, build_with as build_llama, configure as configure_llama};
pub use crate::families::{Build, BuildPredictor, Configure, Family};
pub use crate::fields::Fields;
pub use crate::layer::feed_forward;
pub use crate::weights::Checkpoint;
