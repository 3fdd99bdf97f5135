//! Attention over paged K and V, dense or sparse, one entry point for both.
//!
//! ```
//! use riffle_attention::*;
//!
//! // One page of 16 tokens, one query head, head_dim 16; the query stands at position 9.
//! let source: Vec<f32> = (0..10 * 16).map(|i| (i % 7) as f32 - 3.0).collect();
//! let (mut keys, mut values) = (vec![0.0; 256], vec![0.0; 256]);
//! write_keys(&mut PlaneMut::F32(&mut keys), 16, 0, 10, &source, 16)?;
//! write_values(&mut PlaneMut::F32(&mut values), 16, 0, 10, &source, 16)?;
//! let pages = [PageView { start: 0, tokens: 10, keys: Plane::F32(&keys), values: Plane::F32(&values) }];
//! let kv = KvView { head_dim: 16, pages: &pages };
//! let queries = QueryTile { data: &source[144..], rows: 1, row_stride: 16, group: 1, head_dim: 16, start: 9 };
//!
//! let mut partial = Partial::new(1, 1, 16);
//! attend(&queries, &kv, &Selection::full(10), &AttendOptions::new(0.25), &mut partial)?;
//! let mut out = [0.0; 16];
//! partial.finish_into(&mut out, 16, None)?;
//! # Ok::<(), AttendError>(())
//! ```
#![cfg_attr(not(feature = "std"), no_std)]
#![cfg_attr(not(feature = "simd"), forbid(unsafe_code))]

extern crate alloc;

mod attend;
mod batch;
#[cfg(feature = "std")]
pub mod ceiling;
mod error;
mod format;
mod half;
mod kernel;
mod layout;
mod math;
mod partial;
pub mod reference;
mod selection;
mod simd;
mod subquadratic;
mod summary;
#[cfg(test)]
mod testing;
mod tile;
mod view;
mod visible;

pub use attend::{AttendJob, AttendOptions, add_column_mass, attend};
pub use batch::attend_batch;
pub use error::AttendError;
pub use format::{Format, Plane, PlaneMut, QUANT_BLOCK};
pub use half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
pub use layout::{read_keys, read_values, write_keys, write_values};
pub use partial::Partial;
pub use selection::{Selection, Span};
pub use subquadratic::{
    AttentionBackend, Evicted, IncrementalLandmarks, KvCache, KvCacheF16, SparseAttentionConfig,
    SubquadraticSparseAttention, Tensor3, dense_attention,
};
pub use summary::{SummaryView, attend_summaries};
pub use view::{KvView, PageView, QueryTile};

/// Tokens per stripe of keys: one vector load covers the same dimension of this many keys.
pub const LANES: usize = 16;
