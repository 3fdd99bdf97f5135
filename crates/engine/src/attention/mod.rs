//! The attention of one sequence: pages, policies, and their learned state.
//!
//! [`AttentionState`] owns it. In each layer it appends new keys, lets the policies select, and attends to the
//! selections. It passes the result to policies, observers and an audit. It accesses pages through a [`Reader`]: one
//! implementation reads main memory and farther tiers, the other a device. [`LayerAttention`] and [`CachedAttention`]
//! are interfaces for callers without a model here.
//!
//! This module uses caches, policies and kernels. It does not depend on engine, sequence or text.

mod audit;
mod auto;
mod block_means;
mod by_head;
mod cached_attention;
mod choice;
mod chunk;
mod counters;
mod delta;
mod device;
mod evicted;
mod host;
mod index_blocks;
mod indexed;
mod key_copy;
mod layer_attention;
mod layer_rows;
mod learned_rows;
mod observers;
mod pair_scores;
mod reader;
mod reading;
mod rolling;
mod rotation;
mod round;
mod sign_index;
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
pub(crate) use by_head::{ByHead, HeadRecord};
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
pub(crate) use index_blocks::IndexBlocks;
pub(crate) use indexed::{IndexRows, LatestChoice, LayerIndex};
pub(crate) use key_copy::KeyCopy;
pub use layer_attention::{ChunkRows, LayerAttention};
pub(crate) use layer_rows::{LayerRows, NewKeys};
use learned_rows::LearnedRows;
pub(crate) use observers::{Observers, QueryObserver};
pub(crate) use pair_scores::{PairScorer, PairScores};
use reader::KeyEstimates;
pub(crate) use reader::Reader;
use reading::{Reads, cut, cut_head, named, observed, observed_reads, pages_read, show_policies, tile_reads};
pub(crate) use rolling::RollingWindow;
pub(crate) use rotation::{Rotation, rotate, rotated_widths};
pub(crate) use round::{RoundRows, attend_round};
pub(crate) use sign_index::{SignIndexes, sign_index_bytes};
use sliding::SlidingLayer;
pub(crate) use sliding::{SlidingLayers, lcm};
pub(crate) use slots::{Position, Slot};
pub(crate) use state::{AttentionState, LayerTraits, Policies};
pub(crate) use tiles::{Heads, Tile, cached_shape};
pub use watch::{AttentionWatch, WatchedHead};
