//! Estimates as data: what a policy would compute from keys, for callers that compute it where the keys lie.

use crate::PolicySpec;

/// What a policy asks for, of all queries of a chunk of one KV head and all keys before its end. Sums are in f32 and in
/// the order of `riffle-attention`'s kernels, so that what is chosen by them is the same to the bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Estimate {
    /// The softmax of antidiagonals ([`Antidiagonals`](riffle_attention::Antidiagonals)) at 1 / `stride`, summed over blocks.
    Blocks {
        /// Queries and keys that are summed into one.
        stride: usize,
        /// Tokens in a block, a multiple of the stride.
        block: usize,
    },
    /// The softmax of the chunk's last queries ([`Scan::add_lines`](riffle_attention::Scan::add_lines)), without a soft cap.
    Lines {
        /// How many queries.
        queries: usize,
    },
    /// Of every block of keys, Σ max(q·smallest, q·largest) over channels, by the smallest and largest key of each, summed over
    /// the chunk's queries.
    Bounds {
        /// Tokens in a block.
        block: usize,
    },
}

/// What was asked for.
#[derive(Debug, Clone, PartialEq)]
pub enum Estimated {
    /// For each block of queries that the chunk lies in, the first to the last, the score of every block of keys up to it.
    Blocks(Vec<Vec<f32>>),
    /// The mass of lines of the map, summed over queries and the heads of the group.
    Lines {
        /// `[tokens]`, by key.
        columns: Vec<f32>,
        /// `[tokens]`, by distance query − key.
        distances: Vec<f32>,
    },
    /// The score of each block.
    Bounds(Vec<f32>),
}

impl PolicySpec {
    /// Whether its policies ask for an [`Estimate`].
    pub fn has_estimate(&self) -> bool {
        matches!(self.info().name, "xattention" | "vertical-slash" | "quest")
    }

    /// Whether that is one from bounds, which whoever makes it keeps of the whole sequence.
    pub fn has_bounds(&self) -> bool {
        self.info().name == "quest"
    }

    /// Tokens in the blocks whose means its policies read, if they do.
    pub fn summary_tokens(&self) -> Option<usize> {
        (self.info().build)(self.parameters()).summary_tokens()
    }
}

#[cfg(test)]
mod tests {
    use riffle_attention::QueryTile;

    use crate::{Phase, PolicySpec, SelectContext, build, catalogue};

    #[test]
    fn specs_say_which_policies_ask() {
        let queries = QueryTile {
            data: &[0.0; 64 * 16],
            rows: 64,
            row_stride: 16,
            group: 1,
            head_dim: 16,
            start: 10_000,
        };
        for phase in [Phase::Prefill, Phase::Decode] {
            let context = SelectContext {
                phase,
                layer: 5,
                layers: 9,
                kv_head: 0,
                chunk_start: 10_000,
                tokens: 10_064,
                total_tokens: 200_000,
                page_tokens: 64,
                scale: 1.0,
                soft_cap: None,
                pages: &[],
            };
            for info in catalogue().iter().filter(|info| info.supports(phase)) {
                let spec: PolicySpec = info.name.parse().unwrap();
                let asks = build(&spec, phase).unwrap().estimate(&queries, &context).is_some();
                assert_eq!(asks, spec.has_estimate(), "{}", info.name);
            }
        }
    }
}
