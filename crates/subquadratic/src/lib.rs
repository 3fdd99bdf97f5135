#![doc = include_str!("../README.md")]
#![cfg_attr(not(feature = "std"), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod cache;
mod decode;
mod error;
mod landmarks;
mod pass;
mod pattern;
mod prefill;
mod summaries;
mod tensor;

pub use cache::{Evicted, KvCache, KvCacheF16};
pub use error::SubquadraticError;
pub use landmarks::IncrementalLandmarks;
pub use pattern::SparseAttentionConfig;
pub use prefill::{AttentionBackend, SubquadraticSparseAttention, dense_attention};
pub use tensor::Tensor3;
