//! Attention over contiguous tensors with a fixed sparse pattern: window, globals, log-stride, landmarks.
//!
//! A thin face on [`Selection`](crate::Selection) and [`attend`](crate::attend): the pattern becomes a
//! selection per tile, contiguous tensors become pages.

mod cache;
mod decode;
mod landmarks;
mod pass;
mod pattern;
mod prefill;
mod summaries;
mod tensor;

pub use cache::{Evicted, KvCache, KvCacheF16};
pub use landmarks::IncrementalLandmarks;
pub use pattern::SparseAttentionConfig;
pub use prefill::{AttentionBackend, SubquadraticSparseAttention, dense_attention};
pub use tensor::Tensor3;
