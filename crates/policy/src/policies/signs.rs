use std::borrow::Cow;

use riffle_attention::{AttendOptions, PageView, QueryTile, Selection, SignIndex, Span};

use crate::blocks::{BlockRows, PeakBlocks};
use crate::cost::{ChunkSize, ChunkWork};
use crate::keys::{continued_by, rows_of};
use crate::parameter::Parameters;
use crate::policies::tri_shape::in_tail;
use crate::prepared::Prepared;
use crate::scratch::LentSignScorer;
use crate::sign_keys::SignKeys;
use crate::{
    BudgetParameter, Estimated, KeyUse, ParameterInfo, ParameterKind, Persist, Phase, PolicyError, PolicyInfo, Recall,
    SelectContext, SparsePolicy, Summarize, Traits,
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
/// attention almost nothing. With `means`, block means stand for blocks without a read token.
struct Signs {
    peak: f32,
    block: usize,
    means: usize,
    tail: usize,
    dense_layers: usize,
    sinks: usize,
    recent: usize,
    keys: SignKeys,
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
        keys: KeyUse::Summarized,
        persists: true,
        summary_tokens: |parameters| Some(parameters.count("means")).filter(|tokens| *tokens > 0),
        work: Some(work),
        stored_bytes,
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
        ParameterInfo::tokens(
            "means",
            "0",
            "tokens in a block whose mean stands for it if none of them is read; 0 reads no means",
        ),
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
            means: parameters.count("means"),
            tail: parameters.count("tail"),
            dense_layers: parameters.count("dense_layers"),
            sinks: parameters.count("sinks"),
            recent: parameters.count("recent"),
            keys: SignKeys::default(),
            prepared: Prepared::new(),
        })
    },
};

impl SparsePolicy for Signs {
    fn prepare(&mut self, chunk: &QueryTile<'_>, context: &SelectContext<'_>, _: Option<Estimated>) {
        if context.layer < self.dense_layers {
            return;
        }
        self.keys.extend(context.pages, chunk.head_dim, context.tokens);
        let rows = self.block_rows(&self.keys, chunk, context);
        self.prepared.store(chunk, context, rows);
    }

    fn select(&self, tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        let in_tail = context.phase == Phase::Prefill && in_tail(tile, context, self.tail);
        if in_tail || context.layer < self.dense_layers {
            return Selection::full(context.tokens);
        }
        let rows = self.prepared.find_or(tile, context, || {
            let mut keys = Cow::Borrowed(&self.keys);
            if keys.tokens() < context.tokens {
                keys.to_mut().extend(context.pages, tile.head_dim, context.tokens);
            }
            self.block_rows(&keys, tile, context)
        });
        let selection = rows.select(tile, context.tokens);
        // A block that ends after the last query is omitted: no query sees all of it.
        let whole = (tile.start + tile.rows).min(context.tokens).checked_div(self.means);
        let means = (0..whole.unwrap_or(0)).map(|number| Span::new(number * self.means, (number + 1) * self.means));
        selection.with_summaries(means)
    }

    fn truncate(&mut self, tokens: usize) {
        self.keys.truncate(tokens);
        self.prepared.clear();
    }

    fn summarize(&mut self) -> Option<&mut dyn Summarize> {
        Some(self)
    }

    fn persist(&self) -> Option<&dyn Persist> {
        Some(self)
    }
}

impl Summarize for Signs {
    fn keys_from(&self, context: &SelectContext<'_>) -> usize {
        if context.layer < self.dense_layers {
            context.tokens
        } else {
            self.keys.tokens().min(context.tokens)
        }
    }

    fn summarize(&mut self, page: &PageView<'_>, head_dim: usize) {
        if let Some(end) = continued_by(self.keys.tokens(), page) {
            self.keys.extend(&[*page], head_dim, end);
        }
    }
}

/// A session or a fork keeps the index, so that it reads no keys to make it again.
impl Persist for Signs {
    fn save(&self) -> Vec<u8> {
        self.keys.to_bytes()
    }

    fn restored(&self, state: &[u8]) -> Result<Box<dyn SparsePolicy>, PolicyError> {
        Ok(Box::new(Self {
            keys: SignKeys::from_bytes(state).ok_or(PolicyError::BadState)?,
            prepared: Prepared::new(),
            ..*self
        }))
    }
}

impl Signs {
    fn block_rows(&self, keys: &SignKeys, chunk: &QueryTile<'_>, context: &SelectContext<'_>) -> BlockRows {
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

/// Bytes per token: of the index, and of the means of keys and values that the caller stores.
fn stored_bytes(parameters: &Parameters, head_dim: usize) -> f64 {
    let means = match parameters.count("means") {
        0 => 0.0,
        tokens => 8.0 * head_dim as f64 / tokens as f64,
    };
    SignIndex::bytes_per_token(head_dim) + means
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
