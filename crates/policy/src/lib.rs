//! Sparse attention policies: which tokens the queries of a tile read.
//!
//! A policy reads queries and keys and returns a [`Selection`](riffle_attention::Selection): plain data that every
//! kernel interprets in the same way. It does no I/O and computes no attention. Selections are deterministic: scores
//! are computed in a fixed order, and ties go to the lower index.
//!
//! A policy is named by a [`PolicySpec`], for example `streaming:sinks=64,window=1024`. The [`catalogue`] lists all
//! policies with their parameters and [`Traits`]. [`build`] builds a [`Policy`], whose documentation gives the order
//! of calls.
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
//!     signs: None,
//! };
//! let selection = policy.select(&tile, &context);
//! assert_eq!(selection.spans(), [Span::new(0, 4)]);
//! assert_eq!(selection.row_window(), 8);
//!
//! let error = "streaming:windw=8".parse::<PolicySpec>().unwrap_err();
//! assert_eq!(error.to_string(), "policy streaming has no parameter \"windw\"; it has sinks, window");
//! # Ok::<(), riffle_policy::PolicyError>(())
//! ```
//!
//! # A policy of your own
//!
//! A policy from another crate is a [`PolicyInfo`] beside the catalogue. [`PolicyInfo::outside`] creates it, and
//! [`PolicySpec::parse_among`] finds it by name; engine and benchmarks then treat it like their own policies.
//! [`helpers`] has the building blocks of this crate's policies. `examples/outside-policy` in the repository is a
//! crate with a policy that reads keys, and compares it with others.
//!
//! ```
//! use riffle_attention::{QueryTile, Selection, Span};
//! use riffle_policy::{ParameterInfo, Phase, PolicyInfo, PolicySpec, SelectContext, SparsePolicy, Traits, build};
//!
//! /// Reads the latest tokens of even position.
//! struct Even {
//!     count: usize,
//! }
//!
//! impl SparsePolicy for Even {
//!     fn select(&self, _: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
//!         let even = (0..context.tokens).rev().filter(|position| position % 2 == 0);
//!         Selection::from_spans(even.take(self.count).map(|position| Span::new(position, position + 1)))
//!     }
//! }
//!
//! static MINE: [PolicyInfo; 1] = [PolicyInfo::outside(
//!     "even",
//!     Traits::DECODE,
//!     &[ParameterInfo::tokens("count", "64", "tokens that are read")],
//!     |parameters| Box::new(Even { count: parameters.count("count") }),
//! )];
//!
//! let spec = PolicySpec::parse_among("even:count=3", &MINE)?;
//! let policy = build(&spec, Phase::Decode)?;
//! assert_eq!(policy.info().name, "even");
//! assert!(policy.traits().follows_from_keys && !policy.traits().evicts);
//! assert!(build(&spec, Phase::Prefill).is_err());
//! # Ok::<(), riffle_policy::PolicyError>(())
//! ```

/// Compiles and runs the code of the README as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod assignment;
mod blocks;
mod bounds;
mod budget;
mod catalogue;
mod context;
mod cost;
mod error;
mod estimate;
pub mod helpers;
mod indexer;
mod keys;
mod low_bit;
mod parameter;
mod policies;
mod policy;
mod prepared;
mod ranking;
mod retained;
mod scan_policy;
mod scratch;
mod set;
mod sign_keys;
mod spans;
mod sparse_policy;
mod spec;
mod state;
mod torch_choice;
mod traits;

pub use assignment::{PolicyRule, PolicyRules};
pub use budget::{BudgetParameter, BudgetScale};
pub use catalogue::{PolicyInfo, catalogue};
pub use context::{ColumnMass, Phase, SelectContext};
pub use cost::{ChunkSize, ChunkWork, CostModel, PolicyShape};
pub use error::PolicyError;
pub use estimate::{Estimate, Estimated};
pub use indexer::{IndexerQueries, choose_tokens, select_tokens};
pub use parameter::{ParameterInfo, ParameterKind, Parameters};
pub use policies::DRAFT_POLICIES;
pub use policy::{Learned, Policy, build};
pub use scratch::LentScan;
pub use set::{PolicySet, dense_below};
pub use sign_keys::SignKeys;
pub use sparse_policy::{Evict, Learn, Persist, SparsePolicy, Summarize};
pub use spec::PolicySpec;
pub use torch_choice::choose_as_torch;
pub use traits::{ChunkNeed, EstimateKind, KeyUse, Recall, Traits};
