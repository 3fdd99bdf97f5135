use std::borrow::Cow;

use riffle_attention::{AttendOptions, QueryTile, Selection, SignIndex};

use crate::blocks::{BlockRows, PeakBlocks};
use crate::cost::{ChunkSize, ChunkWork};
use crate::keys::rows_of;
use crate::parameter::Parameters;
use crate::policies::tri_shape::in_tail;
use crate::prepared::Prepared;
use crate::scratch::LentSignScorer;
use crate::{
    BudgetParameter, Estimated, KeyUse, ParameterInfo, ParameterKind, Phase, PolicyInfo, Recall, SelectContext,
    SignKeys, SparsePolicy, Traits,
};

/// Reads the blocks with a peak of some query, estimated from an index with one bit per element of a key.
///
/// The index ([`SignIndex`]) gives the largest estimated logit of a query in each block. A query has a peak in a block
/// with at least `peak` of the softmax over these logits, as in `peaks`. A block of queries reads the peaks of all its
/// queries and heads. It always reads the first and the latest blocks, and its own segment of 64 tokens, which the
/// index may not contain yet. A generated token is a block of its own.
///
/// An estimate is the expected logit for the given signs, so errors make blocks more similar. A threshold on the share
/// of the softmax spends the budget on concentrated mass: heads with a clear peak read little, heads with even
/// attention almost nothing.
struct Signs {
    peak: f32,
    block: usize,
    tail: usize,
    dense_layers: usize,
    sinks: usize,
    recent: usize,
    prepared: Prepared<BlockRows>,
}

/// Rows scored together, few enough that their estimates stay in the processor's caches.
const SCORED_ROWS: usize = 16;

pub(crate) const INFO: PolicyInfo = PolicyInfo {
    name: "signs",
    source: "Signs of rotated keys as an index, after Self-Indexing Attention, 2026, arXiv:2609.13205",
    saves: "traffic, compute",
    traits: Traits {
        depends_on_chunks: true,
        recall: Recall::Distinct,
        keys: KeyUse::Indexed,
        work: Some(work),
        budget: Some(BudgetParameter::falling("peak", 1e-6, 1.0)),
        ..Traits::PLAIN
    },
    parameters: &[
        ParameterInfo {
            name: "peak",
            default: "0.01",
            meaning: "share of a query's softmax over the blocks' largest estimates from which on it reads a block",
            kind: ParameterKind::Number { min: 0.0, max: 1.0 },
        },
        ParameterInfo {
            name: "block",
            default: "16",
            meaning: "tokens in a block",
            kind: ParameterKind::PowerOfTwo { min: 16, max: 64 },
        },
        ParameterInfo::tokens("tail", "128", "last queries of the prompt that read everything"),
        ParameterInfo {
            default: "0",
            ..ParameterInfo::DENSE_LAYERS
        },
        ParameterInfo::SINK_BLOCKS,
        ParameterInfo::RECENT_BLOCKS,
    ],
    build: |parameters| {
        Box::new(Signs {
            peak: parameters.number("peak"),
            block: parameters.count("block"),
            tail: parameters.count("tail"),
            dense_layers: parameters.count("dense_layers"),
            sinks: parameters.count("sinks"),
            recent: parameters.count("recent"),
            prepared: Prepared::new(),
        })
    },
};

impl SparsePolicy for Signs {
    fn prepare(&mut self, chunk: &QueryTile<'_>, context: &SelectContext<'_>, _: Option<Estimated>) {
        if context.layer < self.dense_layers {
            return;
        }
        let rows = self.block_rows(chunk, context);
        self.prepared.store(chunk, context, rows);
    }

    fn select(&self, tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        let in_tail = context.phase == Phase::Prefill && in_tail(tile, context, self.tail);
        if in_tail || context.layer < self.dense_layers {
            return Selection::full(context.tokens);
        }
        let rows = self.prepared.find_or(tile, context, || self.block_rows(tile, context));
        rows.select(tile, context.tokens)
    }

    fn truncate(&mut self, _: usize) {
        self.prepared.clear();
    }
}

impl Signs {
    fn block_rows(&self, chunk: &QueryTile<'_>, context: &SelectContext<'_>) -> BlockRows {
        let keys = signs_of(context, chunk.head_dim);
        let mut read = PeakBlocks::new(chunk, self.block, |own, block| self.is_always_read(own, block));
        let options = AttendOptions::new(context.scale).with_soft_cap(context.soft_cap);
        let mut scorer = LentSignScorer::default();
        for from in (0..chunk.rows).step_by(SCORED_ROWS) {
            let part = rows_of(chunk, from, SCORED_ROWS.min(chunk.rows - from));
            scorer
                .run(&part, keys.index(), &options)
                .expect("keys of the index have the queries' head_dim");
            for query in 0..scorer.queries() {
                let token = part.start + query / part.group;
                let logits = largest_by_block(scorer.row_mut(query), self.block / SignIndex::UNIT);
                read.add(token, logits, self.peak);
            }
        }
        read.rows()
    }

    /// True if a query block reads a key block for any estimate.
    fn is_always_read(&self, query_block: usize, block: usize) -> bool {
        let segment = query_block * self.block / SignIndex::SEGMENT * SignIndex::SEGMENT / self.block;
        let recent = (query_block + 1).saturating_sub(self.recent).min(segment);
        block < self.sinks || block >= recent
    }
}

/// The index with all keys of the context.
fn signs_of<'c>(context: &SelectContext<'c>, head_dim: usize) -> Cow<'c, SignKeys> {
    let mut keys = context.signs.map_or_else(Cow::default, Cow::Borrowed);
    if keys.tokens() < context.tokens {
        keys.to_mut().extend(context.pages, head_dim, context.tokens);
    }
    keys
}

/// Replaces every `units` estimates by their largest.
fn largest_by_block(estimates: &mut [f32], units: usize) -> &mut [f32] {
    let blocks = estimates.len() / units;
    if units > 1 {
        for block in 0..blocks {
            let of_block = &estimates[block * units..(block + 1) * units];
            estimates[block] = of_block.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        }
    }
    &mut estimates[..blocks]
}

fn work(parameters: &Parameters, chunk: &ChunkSize) -> ChunkWork {
    /// Cost of a product with signs, relative to single precision.
    const SIGN_PRODUCT: f64 = 0.15;
    let (tokens, block) = (chunk.tokens as f64, parameters.count("block") as f64);
    let pairs = chunk.pairs();
    ChunkWork {
        share: (0.05 + 300.0 / tokens).min(1.0),
        scored: SIGN_PRODUCT * pairs,
        weighed: pairs / block,
        ranked: 0.0,
    }
}
