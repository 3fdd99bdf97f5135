use riffle_attention::{PageView, QueryTile, Scorer, Selection, Span, exponentiate};

use super::quest::forced_blocks;
use crate::blocks::block_span;
use crate::bounds::Bounds;
use crate::cost::{Setting, Work};
use crate::low_bit::LowBitKeys;
use crate::parameter::{MAX_TOKENS, Parameters};
use crate::prepared::Prepared;
use crate::ranking::{cut, top_count};
use crate::spans::runs;
use crate::{ParameterInfo, ParameterKind, PolicyInfo, Recall, SelectContext, SparsePolicy};

/// The fewest tokens that hold a share of the mass, as estimated with keys in four bits over generous candidates.
///
/// Candidates are the blocks of highest bound, as in Quest. Their tokens are scored with keys of four bits; of these the
/// fewest are read that hold `p` of every query's estimated mass, with the first and the latest blocks always. Tokens
/// are shared by the rows and heads of the tile.
struct Twilight {
    p: f32,
    candidates: f32,
    least: usize,
    block: usize,
    dense_layers: usize,
    sinks: usize,
    recent: usize,
    bounds: Bounds,
    low_bit: LowBitKeys,
    prepared: Prepared<Vec<usize>>,
}

pub(crate) const INFO: PolicyInfo = PolicyInfo {
    name: "twilight",
    supports_prefill: false,
    supports_decode: true,
    recall: Recall::Anywhere,
    saves: "traffic, compute",
    source: "Twilight, Lin et al. 2025, arXiv:2502.02770",
    chunk: None,
    work: Some(work),
    stored_bytes: |parameters, head_dim| {
        // Bounds, four bits a channel, and a scale of two bytes for 32 channels.
        let head_dim = head_dim as f64;
        8.0 * head_dim / parameters.count("block") as f64 + head_dim / 2.0 + head_dim / 16.0
    },
    parameters: &[
        ParameterInfo {
            name: "p",
            default: "0.85",
            meaning: "share of a query's estimated mass that is read",
            kind: ParameterKind::Number { min: 0.0, max: 1.0 },
        },
        ParameterInfo {
            name: "candidates",
            default: "0.25",
            meaning: "share of the blocks whose tokens are scored",
            kind: ParameterKind::Number { min: 0.0, max: 1.0 },
        },
        ParameterInfo::count("least", "32", "fewest blocks whose tokens are scored", 0, MAX_TOKENS),
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
        Box::new(Twilight {
            p: parameters.number("p"),
            candidates: parameters.number("candidates"),
            least: parameters.count("least"),
            block: parameters.count("block"),
            dense_layers: parameters.count("dense_layers"),
            sinks: parameters.count("sinks"),
            recent: parameters.count("recent"),
            bounds: Bounds::default(),
            low_bit: LowBitKeys::default(),
            prepared: Prepared::new(),
        })
    },
};

impl SparsePolicy for Twilight {
    fn requires_block_selection(&self) -> bool {
        true
    }

    fn scans_keys(&self) -> bool {
        false
    }

    fn keys_from(&self, context: &SelectContext<'_>) -> usize {
        match context.layer < self.dense_layers {
            true => context.tokens,
            false => self.bounds.tokens().min(context.tokens),
        }
    }

    fn summarize(&mut self, page: &PageView<'_>, head_dim: usize) {
        let end = page.start + page.tokens;
        // A page ahead of what is known waits for the pages between.
        if page.start <= self.bounds.tokens() && end > self.bounds.tokens() {
            self.bounds.extend(&[*page], head_dim, self.block, end);
            self.low_bit.extend(&[*page], head_dim, end);
        }
    }

    fn prepare(&mut self, chunk: &QueryTile<'_>, context: &SelectContext<'_>) {
        if context.layer < self.dense_layers {
            return;
        }
        self.bounds
            .extend(context.pages, chunk.head_dim, self.block, context.tokens);
        self.low_bit.extend(context.pages, chunk.head_dim, context.tokens);
        let chosen = choose(self, &self.bounds, &self.low_bit, chunk, context);
        self.prepared.store(chunk, context, chosen);
    }

    fn select(&self, queries: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        if context.layer < self.dense_layers {
            return Selection::full(context.tokens);
        }
        let chosen = self.prepared.find_or(queries, context, || {
            let (mut bounds, mut low_bit) = (Bounds::default(), LowBitKeys::default());
            bounds.extend(context.pages, queries.head_dim, self.block, context.tokens);
            low_bit.extend(context.pages, queries.head_dim, context.tokens);
            choose(self, &bounds, &low_bit, queries, context)
        });
        Selection::from_spans(runs(chosen.iter().copied()))
    }

    fn truncate(&mut self, tokens: usize) {
        self.bounds.truncate(self.block, tokens);
        self.low_bit.truncate(tokens);
        self.prepared.clear();
    }
}

/// Tokens to read, ascending.
fn choose(
    policy: &Twilight,
    bounds: &Bounds,
    low_bit: &LowBitKeys,
    queries: &QueryTile<'_>,
    context: &SelectContext<'_>,
) -> Vec<usize> {
    let blocks = context.tokens.div_ceil(policy.block);
    let forced = forced_blocks(queries, policy.block, policy.sinks, policy.recent);
    let always = (0..blocks).filter(|block| forced(*block)).count();
    let more = ((f64::from(policy.candidates) * blocks as f64) as usize).max(policy.least);
    let candidates = top_count(&bounds.scores(queries, blocks), always + more, &forced);
    let spans: Vec<Span> = candidates
        .iter()
        .map(|block| block_span(*block, policy.block, context.tokens))
        .collect();
    let tokens: Vec<usize> = spans.iter().flat_map(Span::range).collect();
    let count = queries.rows * queries.group;
    let rows = (0..queries.rows).flat_map(|row| (0..queries.group).map(move |head| queries.query(row, head)));
    let mut scorer = Scorer::default();
    // [count, candidate tokens]
    let mut logits = vec![0.0; count * tokens.len()];
    let mut at = 0;
    let mut scored = scorer.set(rows, queries.head_dim, context.scale);
    for span in &spans {
        scored = scored.and_then(|()| scorer.score(&low_bit.plane(), *span, None, &mut logits[at..], tokens.len()));
        at += span.len();
    }
    scored.expect("every token has been taken in, and blocks begin where a stripe does");
    let forced: Vec<bool> = tokens.iter().map(|token| forced(token / policy.block)).collect();
    let mut chosen = forced.clone();
    for (query, logits) in logits.chunks_exact_mut(tokens.len().max(1)).enumerate() {
        let end = (queries.start + query / queries.group + 1).min(context.tokens);
        let visible = tokens.partition_point(|token| *token < end);
        let weights = &mut logits[..visible];
        let total = exponentiate(weights);
        // What is read in any case is not among what may be left.
        for (weight, forced) in weights.iter_mut().zip(&forced) {
            *weight = if *forced { f32::INFINITY } else { *weight };
        }
        let least = cut(weights, (1.0 - f64::from(policy.p)) * total);
        for (chosen, weight) in chosen.iter_mut().zip(&*weights) {
            *chosen |= *weight >= least;
        }
    }
    tokens
        .into_iter()
        .zip(chosen)
        .filter_map(|(token, chosen)| chosen.then_some(token))
        .collect()
}

fn work(parameters: &Parameters, setting: &Setting) -> Work {
    let tokens = setting.tokens as f64;
    let blocks = tokens / parameters.count("block") as f64;
    let scored = f64::from(parameters.number("candidates")) * blocks;
    let candidates = (scored.max(parameters.count("least") as f64) * parameters.count("block") as f64).min(tokens);
    let group = setting.group as f64;
    Work {
        share: (0.05 + 3.0 * parameters.count("block") as f64 / tokens).min(1.0),
        scored: 2.0 * blocks + candidates * group,
        weighed: 2.0 * candidates * group,
        ranked: 0.1 * candidates * group,
    }
}
