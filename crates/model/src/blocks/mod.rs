//! Building blocks of decoders.

mod activation;
mod attention;
mod experts;
mod gated_delta_net;
mod head_projection;
mod hyper_connection;
mod indexer;
mod kimi_delta;
mod latent_query;
mod layer_inputs;
mod lightning;
mod low_rank;
mod mamba2;
mod mixer;
mod mlp;
mod ngram_table;
mod norm;
mod position_table;
mod projection;
mod recurrence;
mod rotary;
mod rows;
mod short_convolution;
mod streams;

pub use activation::Activation;
pub(crate) use activation::{sigmoid_gate, sigmoid_gate_heads, softplus, softplus_gate_heads};
pub use attention::{Attention, KeyValue};
pub(crate) use experts::{
    Behind, EXPERT_COUNTS, ExpertScratch, ExpertStreams, StreamedLayer, expert_classes, expert_forms, names_experts,
    read_rate, scratch_bytes as expert_scratch_bytes,
};
pub use experts::{
    Expert, ExpertBudget, ExpertCache, ExpertClass, ExpertGroups, ExpertSettings, ExpertStatistics, ExpertWeights,
    Experts, FusedLayout, Router, RouterRules, Scoring, SharedExpert, StreamedExperts, WeightSum, expert_cache_bytes,
    expert_slots, least_expert_cache_bytes,
};
pub use gated_delta_net::{DeltaNetStorage, GatedDeltaNet};
pub use head_projection::HeadProjection;
pub use hyper_connection::HyperConnection;
pub(crate) use indexer::IndexedRows;
pub use indexer::{BlockKeys, Indexer, IndexerKeys};
pub use kimi_delta::KimiDeltaAttention;
pub use latent_query::LatentQuery;
pub use layer_inputs::{LayerInput, LayerInputs};
pub use lightning::LightningAttention;
pub(crate) use mamba2::Mamba2Factors;
pub use mamba2::{Mamba2, Mamba2Norm, Mamba2Settings};
pub use mixer::Mixer;
pub use mlp::Mlp;
pub use ngram_table::{NgramHashes, NgramTable};
pub use norm::Norm;
pub use position_table::PositionTable;
pub use projection::Projection;
pub(crate) use rotary::QueryGrowth;
pub(crate) use rotary::RotaryTable;
pub use rotary::{Rotary, RotarySettings};
pub(crate) use rows::{add, for_rows, scale};
pub use short_convolution::ShortConvolution;
pub use streams::{AltUp, Laurel, StreamStep, Streams};
