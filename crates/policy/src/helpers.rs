//! Building blocks of policies, for policies of other crates.
//!
//! - Read keys: [`read_tokens`] returns them as f32, [`score_keys`] their logits with a few vectors, [`scan_keys`]
//!   the softmax of every query.
//! - Choose: [`top_count`] finds the best of many scores, [`top_share`] the fewest that reach a share. Ties go to the
//!   lower index.
//! - Select: [`runs`] turns positions into spans, [`block_span`] a block, and [`BlockRows`] builds a
//!   [`Selection`](riffle_attention::Selection) of the blocks that each block of queries reads.
//! - Keep: [`Prepared`] holds a chunk's estimate for all its tiles, [`RetainedTokens`] the tokens that an evicting
//!   policy still reads, [`LentScan`] reusable scratch.
//!
//! ```
//! use riffle_policy::helpers::{block_span, runs, top_count};
//!
//! // The two best of five blocks of 16 tokens, the first in any case, in a sequence of 70 tokens.
//! let best = top_count(&[0.0, 2.0, 1.0, 2.0, 1.5], 2, |block| block == 0);
//! assert_eq!(best, [0, 1]);
//! let spans: Vec<_> = best.into_iter().map(|block| block_span(block, 16, 70)).collect();
//! assert_eq!(spans[1].range(), 16..32);
//! assert_eq!(runs([3, 4, 5, 9])[0].range(), 3..6);
//! ```

pub use crate::blocks::{BlockRows, block_span, query_blocks};
pub use crate::keys::{read_tokens, rows_of, scan_keys, score_keys};
pub use crate::prepared::Prepared;
pub use crate::ranking::{top_count, top_share};
pub use crate::retained::RetainedTokens;
pub use crate::scratch::LentScan;
pub use crate::spans::runs;
