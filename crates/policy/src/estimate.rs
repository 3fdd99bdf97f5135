//! Estimates as data: a caller can compute them on the device that holds the keys, in place of the policy.

/// An estimate that a policy asks for. It covers all queries of a chunk of one KV head, and all keys before the chunk's
/// end.
///
/// Sums are in f32 and in the order of `riffle-attention`'s kernels, so selections by them are the same to the bit.
/// If a caller cannot compute an estimate, the policy reads the keys itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Estimate {
    /// The softmax of antidiagonals ([`Antidiagonals`](riffle_attention::Antidiagonals)) at 1 / `stride`, summed over
    /// blocks.
    Blocks {
        /// Number of queries and keys summed into one.
        stride: usize,
        /// Tokens in a block, a multiple of the stride.
        block: usize,
    },
    /// The softmax of the chunk's last queries, without a soft cap, summed by key and by distance
    /// ([`Scan::add_lines`](riffle_attention::Scan::add_lines)).
    Lines {
        /// Number of queries.
        queries: usize,
    },
    /// For every block of keys, Σ max(q·smallest, q·largest) over channels, summed over the chunk's queries. Smallest
    /// and largest are the bounds of the block's keys in each channel.
    Bounds {
        /// Tokens in a block.
        block: usize,
    },
}

/// The answer to an [`Estimate`].
#[derive(Debug, Clone, PartialEq)]
pub enum Estimated {
    /// For each block of queries that contains queries of the chunk, the score of every block of keys up to it.
    Blocks(Vec<Vec<f32>>),
    /// The mass of each line of the attention map, summed over queries and the heads of the group.
    Lines {
        /// `[tokens]`, by key.
        columns: Vec<f32>,
        /// `[tokens]`, by distance query − key.
        distances: Vec<f32>,
    },
    /// The score of each block.
    Bounds(Vec<f32>),
}
