//! Estimates as data: what a policy would compute from keys, for callers that compute it where the keys lie.

/// An estimate that a policy asks for, over all queries of a chunk of one KV head and all keys before the chunk's end.
///
/// Sums are in f32 and in the order of `riffle-attention`'s kernels, so selections by them are the same to the bit. A
/// caller that cannot compute an estimate gives none, and the policy looks at the keys itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Estimate {
    /// The softmax of antidiagonals ([`Antidiagonals`](riffle_attention::Antidiagonals)) at 1 / `stride`, summed over
    /// blocks.
    Blocks {
        /// Queries and keys that are summed into one.
        stride: usize,
        /// Tokens in a block, a multiple of the stride.
        block: usize,
    },
    /// The softmax of the chunk's last queries, without a soft cap, summed by key and by distance
    /// ([`Scan::add_lines`](riffle_attention::Scan::add_lines)).
    Lines {
        /// How many queries.
        queries: usize,
    },
    /// For every block of keys, Σ max(q·smallest, q·largest) over channels, summed over the chunk's queries; smallest and
    /// largest are the bounds of the block's keys in that channel.
    Bounds {
        /// Tokens in a block.
        block: usize,
    },
}

/// The answer to an [`Estimate`].
#[derive(Debug, Clone, PartialEq)]
pub enum Estimated {
    /// For each block of queries that holds queries of the chunk, the score of every block of keys up to it.
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
