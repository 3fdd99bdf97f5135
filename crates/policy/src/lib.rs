//! Sparse attention policies: which tokens the queries of a tile read.
//!
//! A policy looks at queries and keys and answers with a [`Selection`](riffle_attention::Selection): plain data that
//! every kernel reads in the same way. It does no I/O and computes no attention. Selections are deterministic: scores
//! that choose are computed in a fixed order, and ties go to the lower index.
//!
//! Policies are named by a [`PolicySpec`], for example `streaming:sinks=64,window=1024`; [`catalogue`] lists them with
//! their parameters.
//!
//! ```
//! use riffle_attention::{QueryTile, Span};
//! use riffle_policy::{Phase, PolicySpec, SelectContext, build};
//!
//! let spec: PolicySpec = "streaming:sinks=4,window=8".parse()?;
//! let policy = build(&spec, Phase::Decode)?;
//! let query = [0.0; 16];
//! let tile = QueryTile { data: &query, rows: 1, row_stride: 16, group: 1, head_dim: 16, start: 99 };
//! let context = SelectContext {
//!     phase: Phase::Decode,
//!     layer: 0,
//!     layers: 1,
//!     kv_head: 0,
//!     chunk_start: 99,
//!     tokens: 100,
//!     total_tokens: 100,
//!     page_tokens: 256,
//!     scale: 0.25,
//!     soft_cap: None,
//!     pages: &[],
//! };
//! let selection = policy.select(&tile, &context);
//! assert_eq!(selection.spans(), [Span::new(0, 4)]);
//! assert_eq!(selection.row_window(), 8);
//!
//! let error = "streaming:windw=8".parse::<PolicySpec>().unwrap_err();
//! assert_eq!(error.to_string(), "policy streaming has no parameter \"windw\"; it has sinks, window");
//! # Ok::<(), riffle_policy::PolicyError>(())
//! ```

mod blocks;
mod bounds;
mod catalogue;
mod cost;
mod error;
mod estimate;
mod guard;
mod held;
mod keys;
mod low_bit;
mod parameter;
mod policies;
mod policy;
mod pool;
mod prepared;
mod ranking;
mod rules;
mod scanned;
mod set;
mod spans;
mod spec;
mod state;

pub(crate) use catalogue::ChunkNeed;
pub use catalogue::{PolicyInfo, Recall, build, catalogue};
pub use cost::{CostModel, PolicyShape};
pub use error::PolicyError;
pub use estimate::{Estimate, Estimated};
pub use parameter::{ParameterInfo, ParameterKind, Parameters};
pub use policy::{ColumnMass, Phase, SelectContext, SparsePolicy};
pub use rules::{PolicyRule, PolicyRules};
pub use set::{PolicySet, dense_below};
pub use spec::PolicySpec;
