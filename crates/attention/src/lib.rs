//! Attention over paged K and V, dense or sparse, one entry point for both.
//!
//! - [`attend`] adds the attention of a tile of queries over some pages, under a [`Selection`], to a [`Partial`].
//!   Prefill, chunked prefill, decode and pages from slower tiers all use it. [`attend_batch`] runs many jobs on all
//!   threads; [`BatchStream`] runs them over pages that arrive a few at a time. [`attend_summaries`] reads block
//!   means; [`add_column_mass`] sums the weights of each key.
//! - Pages hold K and V in a [`Format`] (f32, f16, bf16, `q8_0`, `q4_0`), each plane its own; [`write_keys`] and
//!   [`write_values`] lay them out from rows of f32, f16 or bf16. Planes on a 64-byte boundary are read fastest.
//! - [`attend_rows`] reads another engine's row-major cache in place; [`BlockCache`] resolves block tables.
//! - [`Scan`] weighs all keys for a few queries, and [`attend_scanned`] then reads values alone; [`Scorer`],
//!   [`Antidiagonals`] and [`BlockMaxima`] give logits without a softmax, for the estimates of policies.
//! - [`reference`](mod@reference) is the oracle in f64; [`ceiling`] measures the limits of this machine.
//!
//! # Memory layout of a page
//!
//! Values are row-major. Keys form *stripes* of [`LANES`] = 16 tokens, which interleave the same dimension of 16
//! keys: one vector load then covers 16 keys, and scoring needs no sum across lanes. A plane has room for whole
//! stripes.
//!
//! ```text
//! values   [tokens, head_dim]               keys   [tokens / 16, head_dim, 16]
//!
//!            d0  d1  d2  …                           t0   t1   t2  …  t15
//!      t0  [  .   .   .  … ]                   d0  [  .    .    .  …    . ]   ┐
//!      t1  [  .   .   .  … ]                   d1  [  .    .    .  …    . ]   │ stripe 0:
//!      t2  [  .   .   .  … ]                   d2  [  .    .    .  …    . ]   │ 16 · head_dim elements
//!       …                                       …                             ┘
//!                                                    t16  t17  t18 …  t31
//!                                              d0  [  .    .    .  …    . ]   ┐ stripe 1
//!                                               …                             ┘
//!
//! element d of value t:  t · head_dim + d
//! element d of key t:    (t / 16) · 16 · head_dim  +  d · 16  +  t mod 16
//! ```
//!
//! Quantised planes use the same stripes, with an f16 scale per 32 dimensions of a token. They are slices of bytes,
//! whose length `plane_len` of [`Format`] gives:
//!
//! ```text
//! q8_0 keys     for each 32 dimensions:  16 scales, then [8, 16, 4] bytes:
//!               four dimensions of a key side by side, plus 128
//! q4_0 keys     for each 32 dimensions:  16 scales, then [4, 16, 4] bytes:
//!               low half dimensions 0..4 of eight, high half 4..8, plus 8
//! q8_0 values   for each stripe:  [head_dim / 32, 16] scales, then for each 32 dimensions [4, 32, 4] bytes:
//!               four tokens side by side
//! q4_0 values   for each stripe:  as many scales, then for each 32 dimensions [2, 32, 4] bytes:
//!               low half the first four tokens of eight, high half the others
//! ```
//!
//! Values may be narrower or wider than keys: `head_dim` of queries and pages is the *key width*, and
//! [`Partial::head_dim`] the *value width*. In the drawings `head_dim` is the width of the plane.
//!
//! A page may hold any number of tokens. Multiples of 128 cost least, because blocks of 128 keys are counted from
//! each page's start.
//!
//! Kernels are chosen at run time: AVX-512 (F, BW, DQ, VL, VNNI), AVX2 with FMA and F16C, NEON, or plain Rust; the
//! environment variable `RIFFLE_INSTRUCTIONS` (`scalar`, `avx2`, `avx512`, `neon`) selects another set that the
//! machine supports. Features: `std` (default: detection, scratch per thread), `simd` (default: without it the crate
//! forbids unsafe code), `parallel` (rayon), `bytemuck` (planes from bytes). Without `std` it needs only `alloc`.
//!
//! ```
//! use riffle_attention::*;
//!
//! // One page of 16 tokens, one query head, head_dim 16; the query has position 9.
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

/// Compiles and runs the code of the README as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod antidiagonals;
mod attend;
mod batch;
mod block;
mod call;
#[cfg(feature = "std")]
pub mod ceiling;
mod copied;
mod diagonal;
mod error;
mod format;
mod gathered;
mod hadamard;
mod half;
mod joined;
mod kernel;
mod latent;
mod layout;
mod math;
mod maxima;
mod partial;
mod parts;
mod prefetch;
pub mod reference;
mod rounded;
mod rows;
mod scan;
mod scanned;
mod scorer;
mod selection;
mod signs;
mod simd;
mod summary;
mod task;
#[cfg(test)]
mod testing;
mod tile;
mod view;
mod visible;
mod walk;
mod workspace;

pub use antidiagonals::Antidiagonals;
pub use attend::{Arithmetic, AttendJob, AttendOptions, add_column_mass, attend};
pub use batch::{BatchStream, attend_batch};
pub use copied::{copy_keys, copy_values};
pub use error::AttendError;
pub use format::{Format, Plane, PlaneBuf, PlaneMut, QUANT_BLOCK, Rows};
pub use hadamard::rotate_heads;
pub use half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
pub use layout::{read_keys, read_values, write_keys, write_values};
pub use maxima::BlockMaxima;
pub use partial::Partial;
pub use prefetch::prefetch_rows;
pub use rows::{BlockCache, RowJob, RowPage, RowView, attend_rows, attend_rows_batch};
pub use scan::{Scan, exponentiate, exponentiate_by_largest};
pub use scanned::attend_scanned;
pub use scorer::Scorer;
pub use selection::{Selection, Span};
pub use signs::{SignIndex, SignScorer};
#[cfg(feature = "std")]
pub use simd::instruction_set;
pub use summary::{SummaryView, attend_summaries};
pub use view::{KvView, PageView, QueryTile};

/// Tokens per stripe of keys: one vector load covers the same dimension of this many keys.
pub const LANES: usize = 16;
