use std::borrow::Cow;

use riffle_attention::{PageView, QueryTile, Selection};

use crate::blocks::block_span;
use crate::bounds::Bounds;
use crate::cost::{ChunkSize, ChunkWork};
use crate::keys::continued_by;
use crate::parameter::Parameters;
use crate::prepared::Prepared;
use crate::ranking::top_count;
use crate::{
    BudgetParameter, Estimate, EstimateKind, Estimated, KeyUse, ParameterInfo, ParameterKind, Persist, PolicyError,
    PolicyInfo, Recall, SelectContext, SparsePolicy, Summarize, Traits,
};

/// Reads the blocks whose keys could score highest.
///
/// Each block stores the smallest and the largest value of its keys in every channel. No key of the block scores
/// higher than Σ max(q·min, q·max) over channels. Blocks are ranked by this bound, summed over the tile's queries and
/// the heads of the group. The bound only ranks blocks; it does not limit the dropped mass.
///
/// Bounds of long blocks rank badly: on Qwen2.5-Coder-1.5B, blocks of 256 miss facts that blocks of 64 find with half
/// of the tokens. A fixed number of blocks loses facts as the text grows: of five facts at 16K, 16 blocks find three
/// and 32 find all. So the policy reads a share of the blocks. It still misses one of many similar keys
/// (docs/results/quality-tasks.md).
struct Quest {
    topk: usize,
    share: f32,
    threshold: usize,
    budget: usize,
    block: usize,
    dense_layers: usize,
    sinks: usize,
    recent: usize,
    bounds: Bounds,
    /// Scores of blocks from the caller.
    prepared: Prepared<Vec<f32>>,
}

/// Smallest number of blocks for a share.
const LEAST_BLOCKS: usize = 16;

pub(crate) const INFO: PolicyInfo = PolicyInfo {
    name: "quest",
    source: "Quest, Tang et al. 2024, arXiv:2406.10774",
    saves: "traffic, compute",
    traits: Traits {
        recall: Recall::Distinct,
        keys: KeyUse::Summarized,
        estimate: Some(EstimateKind::Bounds),
        persists: true,
        work: Some(work),
        stored_bytes: |parameters, head_dim| 8.0 * head_dim as f64 / parameters.count("block") as f64,
        budget: Some(BudgetParameter::tokens("budget", 1.0)),
        ..Traits::DECODE
    },
    parameters: &[
        ParameterInfo::count(
            "topk",
            "0",
            "blocks read beside the first and the latest; 0 counts by share",
            0,
            1 << 24,
        ),
        ParameterInfo {
            name: "share",
            default: "0.125",
            meaning: "share of all blocks read beside the first and the latest, 16 blocks at least; 0 reads none",
            kind: ParameterKind::Number { min: 0.0, max: 1.0 },
        },
        ParameterInfo::count("threshold", "4", "blocks up to which everything is read", 0, 1 << 24),
        ParameterInfo::tokens(
            "budget",
            "0",
            "tokens read beside the first and the latest blocks; 0 counts by topk or share",
        ),
        ParameterInfo {
            name: "block",
            default: "64",
            meaning: "tokens in a block",
            kind: ParameterKind::PowerOfTwo { min: 16, max: 1024 },
        },
        ParameterInfo::DENSE_LAYERS,
        ParameterInfo::SINK_BLOCKS,
        ParameterInfo::RECENT_BLOCKS,
    ],
    build: |parameters| {
        Box::new(Quest {
            topk: parameters.count("topk"),
            share: parameters.number("share"),
            threshold: parameters.count("threshold"),
            budget: parameters.count("budget"),
            block: parameters.count("block"),
            dense_layers: parameters.count("dense_layers"),
            sinks: parameters.count("sinks"),
            recent: parameters.count("recent"),
            bounds: Bounds::default(),
            prepared: Prepared::new(),
        })
    },
};

impl SparsePolicy for Quest {
    fn prepare(&mut self, chunk: &QueryTile<'_>, context: &SelectContext<'_>, estimated: Option<Estimated>) {
        match estimated {
            Some(Estimated::Bounds(scores)) => self.prepared.store(chunk, context, scores),
            _ if self.reads_all(context) => {}
            _ => self
                .bounds
                .extend(context.pages, chunk.head_dim, self.block, context.tokens),
        }
    }

    fn estimate(&self, _chunk: &QueryTile<'_>, context: &SelectContext<'_>) -> Option<Estimate> {
        (!self.reads_all(context)).then_some(Estimate::Bounds { block: self.block })
    }

    fn select(&self, tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        if self.reads_all(context) {
            return Selection::full(context.tokens);
        }
        let blocks = context.tokens.div_ceil(self.block);
        let forced = forced_blocks(tile, self.block, self.sinks, self.recent);
        let count = match (self.budget, self.topk) {
            (0, 0) => share_of(blocks, self.share),
            (0, topk) => topk,
            (budget, _) => budget.div_ceil(self.block),
        };
        let always = (0..blocks).filter(|block| forced(*block)).count();
        let scores = match self.prepared.get(tile, context) {
            Some(scores) => Cow::Borrowed(scores),
            None => Cow::Owned(self.scores(tile, context, blocks)),
        };
        let chosen = top_count(&scores, always + count, &forced);
        Selection::from_spans(
            chosen
                .into_iter()
                .map(|block| block_span(block, self.block, context.tokens)),
        )
    }

    fn truncate(&mut self, tokens: usize) {
        self.prepared.clear();
        self.bounds.truncate(self.block, tokens);
    }

    fn summarize(&mut self) -> Option<&mut dyn Summarize> {
        Some(self)
    }

    fn persist(&self) -> Option<&dyn Persist> {
        Some(self)
    }
}

impl Summarize for Quest {
    fn keys_from(&self, context: &SelectContext<'_>) -> usize {
        if self.reads_all(context) {
            context.tokens
        } else {
            self.bounds.tokens()
        }
    }

    fn summarize(&mut self, page: &PageView<'_>, head_dim: usize) {
        if let Some(end) = continued_by(self.bounds.tokens(), page) {
            self.bounds.extend(&[*page], head_dim, self.block, end);
        }
    }
}

impl Persist for Quest {
    fn save(&self) -> Vec<u8> {
        self.bounds.clone().save(self.block)
    }

    fn restored(&self, state: &[u8]) -> Result<Box<dyn SparsePolicy>, PolicyError> {
        Ok(Box::new(Self {
            bounds: Bounds::restore(state, self.block).ok_or(PolicyError::BadState)?,
            prepared: Prepared::new(),
            ..*self
        }))
    }
}

impl Quest {
    fn reads_all(&self, context: &SelectContext<'_>) -> bool {
        context.layer < self.dense_layers || context.tokens.div_ceil(self.block) <= self.threshold
    }

    fn scores(&self, tile: &QueryTile<'_>, context: &SelectContext<'_>, blocks: usize) -> Vec<f32> {
        let mut bounds = Cow::Borrowed(&self.bounds);
        if bounds.tokens() < context.tokens {
            bounds
                .to_mut()
                .extend(context.pages, tile.head_dim, self.block, context.tokens);
        }
        bounds.scores(tile, blocks)
    }
}

/// A share of the blocks, because a fixed number would lose facts in long contexts.
fn share_of(blocks: usize, share: f32) -> usize {
    if share > 0.0 {
        ((f64::from(share) * blocks as f64).ceil() as usize).max(LEAST_BLOCKS)
    } else {
        0
    }
}

/// True if a block is always read: the first `sinks` blocks, the `recent` blocks up to the block of the tile's first
/// query, and all later blocks.
pub(super) fn forced_blocks(
    tile: &QueryTile<'_>,
    block: usize,
    sinks: usize,
    recent: usize,
) -> impl Fn(usize) -> bool + use<> {
    let recent = (tile.start / block + 1).saturating_sub(recent);
    move |number| number < sinks || number >= recent
}

fn work(parameters: &Parameters, chunk: &ChunkSize) -> ChunkWork {
    let block = parameters.count("block");
    let all = chunk.tokens.div_ceil(block);
    let chosen = match (parameters.count("budget"), parameters.count("topk")) {
        (0, 0) => share_of(all, parameters.number("share")) * block,
        (0, topk) => topk * block,
        (budget, _) => budget,
    };
    let read = chosen + (parameters.count("sinks") + parameters.count("recent")) * block;
    let blocks = chunk.tokens.div_ceil(block) as f64;
    ChunkWork {
        share: (read as f64 / chunk.tokens as f64).min(1.0),
        // Two products per channel, once for all queries.
        scored: 2.0 * blocks,
        weighed: 0.0,
        ranked: blocks,
    }
}
