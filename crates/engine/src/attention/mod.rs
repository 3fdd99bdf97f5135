//! The attention of one sequence: pages, policies, and all that both have learned.
//!
//! [`AttentionState`](state::AttentionState) owns it. In each layer it appends new keys, lets the policies select, attends to what they
//! name, and lets policies, observers and an audit look at the result. Pages are reached through a [`Reader`](reader::Reader): one reads
//! main memory and the tiers behind it, the other a device. [`LayerAttention`] and [`CachedAttention`] are faces for callers who have
//! no model here.
//!
//! This module knows caches, policies and kernels. It knows no engine, no sequence and no text.

pub(crate) mod audit;
pub(crate) mod auto;
mod block_means;
mod cached_attention;
mod choice;
pub(crate) mod chunk;
pub(crate) mod counters;
mod delta;
pub(crate) mod device;
pub(crate) mod evicted;
pub(crate) mod host;
mod layer_attention;
pub(crate) mod layer_rows;
pub(crate) mod learned_rows;
mod means;
pub(crate) mod observers;
pub(crate) mod reader;
pub(crate) mod reading;
pub(crate) mod rolling;
pub(crate) mod rotation;
pub(crate) mod round;
pub(crate) mod sliding;
pub(crate) mod slots;
pub(crate) mod state;
mod step;
pub(crate) mod tiles;
mod time;
pub(crate) mod watch;

pub use audit::{AuditReport, AuditedQuery, HeadAudit};
pub use cached_attention::{CachedAttention, CachedAttentionOptions, LayerCall, ProjectedRows};
pub use counters::PairCount;
pub use layer_attention::{ChunkRows, LayerAttention};
pub use time::AttentionTime;
pub use watch::{AttentionWatch, WatchedHead};
