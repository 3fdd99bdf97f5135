//! Language models: files, architectures, tokenizers, chat templates.
//!
//! [`inspect`] describes a Hugging Face directory or a GGUF file from its headers, [`load`] makes a [`LoadedModel`] of
//! it. The weights are memory-mapped while they are packed and held once afterwards.
//!
//! A model is driven layer by layer over a batch of consecutive tokens: [`LanguageModel::embed`], then
//! [`LanguageModel::layer`] for each layer, then [`LanguageModel::logits`]. Attention is not the model's affair: each
//! layer hands queries, keys and values to the caller's [`AttentionStep`], which stores what it wants and attends to
//! what it chooses. Linear and element-wise work runs in blocks of rows, so a [`Workspace`] grows with the batch only
//! by what attention needs, and [`scratch_bytes`] says beforehand by how much.
//!
//! ```no_run
//! use riffle_model::{Attended, AttentionInput, AttentionStep, LanguageModel, RecurrentState, Workspace, load};
//!
//! /// Every token sees only itself: its attention result is its value.
//! struct SelfOnly;
//!
//! impl AttentionStep for SelfOnly {
//!     fn attend(
//!         &mut self,
//!         input: AttentionInput<'_>,
//!         output: &mut [f32],
//!     ) -> Result<Attended, Box<dyn std::error::Error + Send + Sync>> {
//!         // With one query head per key/value head the shapes agree.
//!         output.copy_from_slice(input.values);
//!         Ok(Attended::InOutput)
//!     }
//! }
//!
//! let loaded = load("path/to/model")?;
//! let model = &loaded.model;
//! let tokens = [1, 2, 3];
//! let mut hidden = vec![0.0; tokens.len() * model.config().hidden_size];
//! let mut workspace = Workspace::new(model.config(), tokens.len());
//! let mut recurrent = RecurrentState::new(model.config());
//! model.embed(&tokens, &mut hidden)?;
//! for layer in 0..model.config().layers {
//!     model.layer(layer, 0, &mut hidden, &mut SelfOnly, &mut recurrent, &mut workspace)?;
//! }
//! let last = &hidden[2 * model.config().hidden_size..];
//! let mut logits = vec![0.0; model.config().vocab_size];
//! model.logits(last, &mut logits, &mut workspace);
//! # Ok::<(), riffle_model::ModelError>(())
//! ```
//!
//! Layers of the Gated DeltaNet kind hold no keys and values but a [`RecurrentState`] of fixed size, which the caller
//! owns, copies to roll back to, and hands to every layer.
//!
//! The work of a layer is spread over the current rayon pool in many small pieces. Calling it from within the pool,
//! by `rayon::scope` or `ThreadPool::install` around the whole pass, saves waking the pool for each of them.
//!
//! An architecture is one file of `families`, put together from the parts in `blocks`. It describes its layers as data
//! ([`Layer`], [`Step`]); a [`Decoder`] carries the description out on the CPU, and whoever computes elsewhere reads it.

mod blocks;
mod calendar;
mod chat;
mod config;
mod decoder;
mod directory;
mod error;
mod families;
mod fields;
mod fingerprint;
mod forward;
mod generation;
mod gguf;
mod info;
mod language_model;
mod layer;
mod load;
mod outline;
mod python_json;
mod recurrent;
mod rope_scaling;
mod stream;
mod tokenizer;
mod weights;
mod workspace;

pub use blocks::{Activation, Attention, GatedDeltaNet, Mlp, Norm, Projection, Rotary};
pub use chat::{ChatMessage, ChatTemplate, TemplateLimit};
pub use config::ModelConfig;
pub use decoder::Decoder;
pub use error::ModelError;
pub use fingerprint::fingerprint;
pub use forward::{Forward, HostForward};
pub use generation::GenerationDefaults;
pub use info::{ModelInfo, TokenizerInfo};
pub use language_model::{Attended, AttentionInput, AttentionStep, LanguageModel, OnDevice};
pub use layer::{Layer, Rows, Step};
pub use load::{
    LoadOptions, LoadTimes, LoadedModel, OpenedModel, inspect, inspect_scaled, load, load_tokenizer, load_with,
};
pub use outline::ModelOutline;
pub use recurrent::{RecurrentLayer, RecurrentShape, RecurrentState};
pub use rope_scaling::{RopeMethod, RopeScaling};
pub use stream::StreamDecoder;
pub use tokenizer::Tokenizer;
pub use weights::{TensorInfo, TensorType};
pub use workspace::{Workspace, scratch_bytes};

pub use riffle_linear::{Activations, WeightFormat};
