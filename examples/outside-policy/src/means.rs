//! Reads the blocks whose mean key agrees best with the mean query.

use riffle_attention::{QueryTile, Selection};
use riffle_policy::helpers::{BlockRows, Prepared, query_blocks, read_tokens, top_count};
use riffle_policy::{
    BudgetParameter, Estimated, KeyUse, ParameterInfo, PolicyInfo, Recall, SelectContext, SparsePolicy, Traits,
};

// ANCHOR: entry
/// Registration for the engine and `riffle eval`: name, description, parameters and constructor.
pub static POLICIES: [PolicyInfo; 1] = [PolicyInfo::outside(
    "means",
    Traits::PLAIN
        .with_keys(KeyUse::Scanned)
        .with_recall(Recall::Anywhere)
        .with_budget(BudgetParameter::share("share")),
    &[
        ParameterInfo::number("share", "0.1", "share of the blocks that are read", 0.0, 1.0),
        ParameterInfo::count("block", "32", "tokens in a block", 1, 1 << 16),
    ],
    |parameters| {
        Box::new(Means {
            share: parameters.number("share"),
            block: parameters.count("block"),
            prepared: Prepared::new(),
        })
    },
)
.with_source("an example of Riffle's repository")];
// ANCHOR_END: entry

struct Means {
    share: f32,
    block: usize,
    prepared: Prepared<BlockRows>,
}

impl SparsePolicy for Means {
    fn prepare(&mut self, chunk: &QueryTile<'_>, context: &SelectContext<'_>, _: Option<Estimated>) {
        let rows = self.block_rows(chunk, context);
        self.prepared.store(chunk, context, rows);
    }

    fn select(&self, tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        let rows = self.prepared.find_or(tile, context, || self.block_rows(tile, context));
        rows.select(tile, context.tokens)
    }

    fn truncate(&mut self, _tokens: usize) {
        self.prepared.clear();
    }
}

impl Means {
    /// The key blocks that each block of queries reads: the first, its own, and the best of those between.
    fn block_rows(&self, chunk: &QueryTile<'_>, context: &SelectContext<'_>) -> BlockRows {
        let keys = self.mean_keys(chunk.head_dim, context);
        let numbers = query_blocks(chunk, self.block);
        let first = numbers.start;
        let chosen = numbers.map(|number| {
            let query = self.mean_query(chunk, number);
            let keys = keys.chunks_exact(chunk.head_dim).take(number + 1);
            let scores: Vec<f32> = keys
                .map(|key| key.iter().zip(&query).map(|(k, q)| k * q).sum())
                .collect();
            let count = (self.share * scores.len() as f32).ceil() as usize;
            top_count(&scores, count.max(2), |block| block == 0 || block == number)
        });
        BlockRows {
            block: self.block,
            first,
            chosen: chosen.collect(),
        }
    }

    /// The mean key of every block, `[blocks, head_dim]`.
    fn mean_keys(&self, head_dim: usize, context: &SelectContext<'_>) -> Vec<f32> {
        let mut means = Vec::new();
        for first in (0..context.tokens).step_by(self.block) {
            let tokens = self.block.min(context.tokens - first);
            let mut keys = vec![0.0; tokens * head_dim];
            read_tokens(context.pages, head_dim, first, &mut keys);
            let sum = |d: usize| keys.iter().skip(d).step_by(head_dim).sum::<f32>();
            means.extend((0..head_dim).map(|d| sum(d) / tokens as f32));
        }
        means
    }

    /// The sum of the queries of one block, over all heads of the group.
    fn mean_query(&self, chunk: &QueryTile<'_>, number: usize) -> Vec<f32> {
        let mut sum = vec![0.0; chunk.head_dim];
        for row in (0..chunk.rows).filter(|row| (chunk.start + row) / self.block == number) {
            for head in 0..chunk.group {
                let query = chunk.query(row, head);
                sum.iter_mut().zip(query).for_each(|(sum, value)| *sum += value);
            }
        }
        sum
    }
}
