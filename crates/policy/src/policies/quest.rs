use std::borrow::Cow;

use riffle_attention::{PageView, QueryTile, Selection};

use crate::blocks::block_span;
use crate::bounds::Bounds;
use crate::cost::{Setting, Work};
use crate::parameter::Parameters;
use crate::prepared::Prepared;
use crate::ranking::top_count;
use crate::{
    Estimate, Estimated, ParameterInfo, ParameterKind, PolicyError, PolicyInfo, Recall, SelectContext, SparsePolicy,
};

/// Blocks whose keys could score highest.
///
/// Each block keeps its keys' smallest and largest value of every channel. No key of the block can score higher than
/// Σ max(q·min, q·max) over channels; blocks are ranked by this bound, summed over the tile's queries and the heads of
/// the group. It ranks; it does not prove that little was left out.
struct Quest {
    topk: usize,
    threshold: usize,
    budget: usize,
    block: usize,
    dense_layers: usize,
    sinks: usize,
    recent: usize,
    bounds: Bounds,
    /// Scores of blocks that came from elsewhere.
    prepared: Prepared<Vec<f32>>,
}

pub(crate) const INFO: PolicyInfo = PolicyInfo {
    name: "quest",
    supports_prefill: false,
    supports_decode: true,
    recall: Recall::Anywhere,
    saves: "traffic, compute",
    source: "Quest, Tang et al. 2024, arXiv:2406.10774",
    chunk: None,
    work: Some(work),
    stored_bytes: |parameters, head_dim| 8.0 * head_dim as f64 / parameters.count("block") as f64,
    parameters: &[
        ParameterInfo::count("topk", "8", "blocks read beside the first and the latest", 0, 1 << 24),
        ParameterInfo::count("threshold", "4", "blocks up to which everything is read", 0, 1 << 24),
        ParameterInfo::tokens(
            "budget",
            "0",
            "tokens read beside the first and the latest blocks; 0 counts by topk",
        ),
        ParameterInfo {
            name: "block",
            default: "256",
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
    fn requires_block_selection(&self) -> bool {
        true
    }

    fn scans_keys(&self) -> bool {
        false
    }

    fn keys_from(&self, context: &SelectContext<'_>) -> usize {
        match self.reads_all(context) {
            true => context.tokens,
            false => self.bounds.tokens(),
        }
    }

    fn summarize(&mut self, page: &PageView<'_>, head_dim: usize) {
        let end = page.start + page.tokens;
        // A page ahead of what is known waits for the pages between.
        if page.start <= self.bounds.tokens() && end > self.bounds.tokens() {
            self.bounds.extend(&[*page], head_dim, self.block, end);
        }
    }

    fn prepare(&mut self, chunk: &QueryTile<'_>, context: &SelectContext<'_>) {
        if !self.reads_all(context) {
            self.bounds
                .extend(context.pages, chunk.head_dim, self.block, context.tokens);
        }
    }

    fn estimate(&self, _chunk: &QueryTile<'_>, context: &SelectContext<'_>) -> Option<Estimate> {
        (!self.reads_all(context)).then_some(Estimate::Bounds { block: self.block })
    }

    fn prepare_from(&mut self, chunk: &QueryTile<'_>, context: &SelectContext<'_>, estimated: Estimated) {
        match estimated {
            Estimated::Bounds(scores) => self.prepared.store(chunk, context, scores),
            _ => self.prepare(chunk, context),
        }
    }

    fn select(&self, queries: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        if self.reads_all(context) {
            return Selection::full(context.tokens);
        }
        let blocks = context.tokens.div_ceil(self.block);
        let forced = forced_blocks(queries, self.block, self.sinks, self.recent);
        let count = match self.budget {
            0 => self.topk,
            budget => budget.div_ceil(self.block),
        };
        let always = (0..blocks).filter(|block| forced(*block)).count();
        let scores = match self.prepared.of(queries, context) {
            Some(scores) => Cow::Borrowed(scores),
            None => Cow::Owned(self.scores(queries, context, blocks)),
        };
        let chosen = top_count(&scores, always + count, &forced);
        Selection::from_spans(
            chosen
                .into_iter()
                .map(|block| block_span(block, self.block, context.tokens)),
        )
    }

    fn save_state(&self) -> Vec<u8> {
        self.bounds.clone().save(self.block)
    }

    fn restore_state(&mut self, state: &[u8]) -> Result<(), PolicyError> {
        self.reset();
        self.bounds = Bounds::restore(state, self.block).ok_or(PolicyError::BadState)?;
        Ok(())
    }

    fn truncate(&mut self, tokens: usize) {
        self.prepared.clear();
        self.bounds.truncate(self.block, tokens);
    }
}

impl Quest {
    fn reads_all(&self, context: &SelectContext<'_>) -> bool {
        context.layer < self.dense_layers || context.tokens.div_ceil(self.block) <= self.threshold
    }

    fn scores(&self, queries: &QueryTile<'_>, context: &SelectContext<'_>, blocks: usize) -> Vec<f32> {
        let mut bounds = Cow::Borrowed(&self.bounds);
        if bounds.tokens() < context.tokens {
            bounds
                .to_mut()
                .extend(context.pages, queries.head_dim, self.block, context.tokens);
        }
        bounds.scores(queries, blocks)
    }
}

/// The first `sinks` blocks, and the latest `recent` up to that of the tile's first query, with all after it.
pub(super) fn forced_blocks(
    queries: &QueryTile<'_>,
    block: usize,
    sinks: usize,
    recent: usize,
) -> impl Fn(usize) -> bool + use<> {
    let recent = (queries.start / block + 1).saturating_sub(recent);
    move |number| number < sinks || number >= recent
}

fn work(parameters: &Parameters, setting: &Setting) -> Work {
    let block = parameters.count("block");
    let chosen = match parameters.count("budget") {
        0 => parameters.count("topk") * block,
        budget => budget,
    };
    let read = chosen + (parameters.count("sinks") + parameters.count("recent")) * block;
    let blocks = setting.tokens.div_ceil(block) as f64;
    Work {
        share: (read as f64 / setting.tokens as f64).min(1.0),
        // Two products a channel, for all queries at once.
        scored: 2.0 * blocks,
        weighed: 0.0,
        ranked: blocks,
    }
}
