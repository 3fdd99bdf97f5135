//! Language models: files, architectures, tokenizers, chat templates.
//!
//! [`inspect`] describes a Hugging Face directory or a GGUF file from its headers; [`load`] turns it into a
//! [`LoadedModel`]. The weights are memory-mapped while they are packed and held once afterwards.
//!
//! A caller drives a model layer by layer over a [`Batch`] of segments of one or more sequences. It calls
//! [`Forward::embed`], then [`Forward::project`] and [`Forward::finish`] for each layer, then [`Forward::logits`].
//! Between projecting and finishing, the caller does attention. It takes queries, keys and values, and stores keys and
//! values. It attends to the tokens of its choice, and writes the result for the next step. Both steps accept all rows
//! of the batch, or one block at a time. Linear and element-wise work runs in blocks of rows, so only attention's
//! buffers in a [`HostForward`] grow with the batch; [`scratch_bytes`] computes their size beforehand.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use riffle_model::{Batch, Forward, HostForward, RecurrentState, SegmentTokens, load};
//!
//! let model = Arc::new(load("path/to/model")?.model);
//! // Two sequences: one begins with three tokens, the other has read 17 tokens and reads the one it generated.
//! let batch = Batch::new([SegmentTokens::prompt(&[1, 2, 3], 0), SegmentTokens::generated(&[4], 17)])?;
//! let mut states = [0; 2].map(|_| RecurrentState::new(&model.config));
//! let mut forward = HostForward::new(&model, batch.rows());
//! forward.embed(&batch)?;
//! for layer in 0..model.config.layers {
//!     forward.project(layer, 0..batch.rows())?;
//!     if let Some(projected) = forward.projected() {
//!         // Every token sees only itself: with one query head per KV head its result is its value.
//!         projected.attended.copy_from_slice(projected.values);
//!     }
//!     forward.finish(layer, 0..batch.rows(), &mut states.each_mut())?;
//! }
//! let mut logits = vec![0.0; 2 * model.config.vocab_size];
//! forward.logits(&[2, 3], &mut logits)?;
//! # Ok::<(), riffle_model::ModelError>(())
//! ```
//!
//! Layers with a [`Mixer`] (Gated DeltaNet, short convolution, Mamba2) have a state of fixed size, instead of keys
//! and values or in addition to them. The states of all layers form one [`RecurrentState`] per sequence. The caller
//! owns it, copies it for rollbacks, and passes it to every layer.
//!
//! The work of a layer is spread over the current rayon pool in many small pieces. Call it from within the pool, with
//! `rayon::scope` or `ThreadPool::install` around the whole pass. Otherwise the pool is woken for each piece.
//!
//! An architecture is a [`Family`], built from parts such as [`Attention`] and [`Mlp`]. It describes its layers as
//! data ([`Layer`], [`Step`]); a [`HostForward`] runs this description on the CPU, and device crates run it
//! elsewhere. Other crates can define families ([`mod@family`]).

#![forbid(unsafe_code)]

mod adapters;
mod batch;
mod blocks;
mod calendar;
mod chat;
mod config;
mod decoder;
mod directory;
mod embedding;
mod error;
mod families;
pub mod family;
mod fields;
mod fingerprint;
mod forward;
mod generation;
mod gguf;
mod infill;
mod info;
mod inputs;
mod layer;
mod load;
mod outline;
mod place;
mod predictor;
mod progress;
mod python_json;
mod recorded;
mod recurrent;
mod reranking;
mod rope_scaling;
mod score_head;
mod state_shape;
mod stream;
mod tokenizer;
mod weights;
mod workspace;

pub use adapters::{AdapterInfo, AdapterScales, AdapterSpec, MOST_ADAPTERS};
pub use batch::{Batch, CutGrid, Segment, SegmentPart, SegmentTokens};
pub use blocks::{
    Activation, AltUp, Attention, BlockKeys, Expert, ExpertBudget, ExpertCache, ExpertClass, ExpertGroups,
    ExpertSettings, ExpertStatistics, ExpertWeights, Experts, FusedLayout, GatedDeltaNet, HeadProjection,
    HyperConnection, Indexer, IndexerKeys, KeyValue, KimiDeltaAttention, LatentQuery, Laurel, LayerInput, LayerInputs,
    LightningAttention, Mamba2, Mixer, Mlp, NgramHashes, NgramTable, Norm, PositionTable, Projection, Rotary, Router,
    RouterRules, Scoring, SharedExpert, ShortConvolution, StreamStep, StreamedExperts, Streams, WeightSum,
    expert_cache_bytes, expert_slots, least_expert_cache_bytes,
};
pub use chat::{ChatMessage, ChatTemplate, ConversationText, TemplateLimit};
pub use config::{AttentionShape, ExpertShape, IndexerShape, ModelConfig};
pub use decoder::Decoder;
pub use directory::configure;
pub use embedding::{Dense, DenseActivation, Pooling, TextEmbedding, cut_text, normalise};
pub use error::ModelError;
pub use families::{Family, families, wrapper_classes};
pub use fingerprint::{fingerprint, fingerprint_with};
pub use forward::{Forward, HostForward, Projected, ProjectedIndex};
pub use generation::GenerationDefaults;
pub use gguf::{GgufEntry, GgufTensor, SourceRows, SourceTensor, WeightSource, gguf_header};
pub use infill::InfillTokens;
pub use info::{ModelInfo, TokenizerInfo};
pub use inputs::{InputSums, InputTotals};
pub use layer::{Layer, Opening, Rows, Step};
pub use load::{
    LoadOptions, LoadTimes, LoadedModel, OpenedModel, inspect, inspect_with, load, load_tokenizer, load_with,
};
pub use outline::ModelOutline;
pub use predictor::{Predictor, PredictorForward};
pub use progress::LayerProgress;
pub use recurrent::{RecurrentLayer, RecurrentState};
pub use reranking::{RankingText, Reranking, ScoreRule};
pub use rope_scaling::{RopeMethod, RopeScaling};
pub use score_head::ScoreHead;
pub use state_shape::{
    GatedDeltaNetShape, KimiDeltaShape, LightningShape, Mamba2Shape, NgramShape, ShortConvolutionShape, StateShape,
};
pub use stream::StreamDecoder;
pub use tokenizer::{TextTokens, Tokenizer};
pub use weights::{TensorInfo, TensorType};
pub use workspace::scratch_bytes;

pub use riffle_linear::{Activations, WeightFormat};
