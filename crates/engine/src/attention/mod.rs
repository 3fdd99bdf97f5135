//! The attention of one sequence: pages, policies, and all that both have learned.
//!
//! [`AttentionState`] owns it. In each layer it appends new keys, lets the policies select, attends to what they
//! name, and lets policies, observers and an audit look at the result. Pages are reached through a [`Reader`]: one reads
//! main memory and the tiers behind it, the other a device. [`LayerAttention`] and [`CachedAttention`] are faces for callers who have
//! no model here.
//!
//! This module knows caches, policies and kernels. It knows no engine, no sequence and no text.

mod audit;
mod auto;
mod block_means;
mod cached_attention;
mod choice;
mod chunk;
mod counters;
mod delta;
mod device;
mod evicted;
mod host;
mod indexed;
mod layer_attention;
mod layer_rows;
mod learned_rows;
mod observers;
mod reader;
mod reading;
mod rolling;
mod rotation;
mod round;
mod sliding;
mod slots;
mod state;
mod step;
mod tiles;
mod watch;

pub(crate) use audit::{Audit, AuditObserver, HeadSums, SampledRun};
pub use audit::{AuditReport, AuditedQuery, HeadAudit};
pub(crate) use auto::{Auto, AutoState};
use block_means::{BlockMeans, attend_means, extend_means};
pub use cached_attention::{CachedAttention, CachedAttentionOptions, LayerCall, ProjectedRows};
use choice::bounds_block;
use chunk::pages;
pub(crate) use chunk::{Chosen, Chunk, LayerStep};
use counters::Counters;
pub use counters::{AttentionTime, PairCount};
use delta::{DenseRow, correct, dense_rows};
use device::ShownKeys;
pub(crate) use device::{DevicePages, SharedRoom};
use evicted::runs_empty;
pub(crate) use evicted::{Evicted, lacks_room};
pub(crate) use host::HostReader;
pub(crate) use indexed::{IndexRows, LatestChoice, LayerIndex};
pub use layer_attention::{ChunkRows, LayerAttention};
pub(crate) use layer_rows::{LayerRows, NewKeys};
use learned_rows::LearnedRows;
pub(crate) use observers::{Observers, QueryObserver};
use reader::KeyEstimates;
pub(crate) use reader::Reader;
use reading::{Reads, cut, cut_head, named, observed, observed_reads, pages_read, show_policies, tile_reads};
pub(crate) use rolling::RollingWindow;
pub(crate) use rotation::{Rotation, rotate, rotated_widths};
pub(crate) use round::{RoundRows, attend_round};
use sliding::SlidingLayer;
pub(crate) use sliding::{SlidingLayers, lcm};
pub(crate) use slots::{Position, Slot};
pub(crate) use state::{AttentionState, LayerTraits, Policies};
pub(crate) use tiles::{Heads, Tile, cached_shape};
pub use watch::{AttentionWatch, WatchedHead};
