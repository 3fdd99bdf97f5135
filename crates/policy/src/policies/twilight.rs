use riffle_attention::{PageView, QueryTile, Scorer, Selection, Span, exponentiate};

use super::quest::forced_blocks;
use crate::blocks::block_span;
use crate::bounds::Bounds;
use crate::cost::{ChunkSize, ChunkWork};
use crate::keys::continued_by;
use crate::low_bit::LowBitKeys;
use crate::parameter::{MAX_TOKENS, Parameters};
use crate::prepared::Prepared;
use crate::ranking::{cut, top_count};
use crate::spans::runs;
use crate::{
    BudgetParameter, Estimated, KeyUse, ParameterInfo, ParameterKind, PolicyInfo, Recall, SelectContext, SparsePolicy,
    Summarize, Traits,
};

/// Reads the fewest tokens with a given share of the mass, estimated from candidates with keys in four bits.
///
/// Candidates are the blocks with the highest bounds, as in Quest. Their tokens are scored with keys in four bits. The
/// policy reads the fewest of them that reach `p` of every query's estimated mass. It always reads the first and the
/// latest blocks. The queries and heads of a tile share their tokens.
///
/// By default no layer is read completely: a head with spread attention reads more tokens anyway. Reading the first
/// two layers, or the layers with the most even attention, costs more than it gains
/// (docs/results/quality-prediction.md).
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
    source: "Twilight, Lin et al. 2025, arXiv:2502.02770",
    saves: "traffic, compute",
    traits: Traits {
        recall: Recall::Distinct,
        keys: KeyUse::Summarized,
        work: Some(work),
        stored_bytes,
        budget: Some(BudgetParameter::mass("p")),
        ..Traits::DECODE
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
        ParameterInfo {
            default: "0",
            ..ParameterInfo::DENSE_LAYERS
        },
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
    fn prepare(&mut self, chunk: &QueryTile<'_>, context: &SelectContext<'_>, _: Option<Estimated>) {
        if context.layer < self.dense_layers {
            return;
        }
        self.bounds
            .extend(context.pages, chunk.head_dim, self.block, context.tokens);
        self.low_bit.extend(context.pages, chunk.head_dim, context.tokens);
        let chosen = self.choose(&self.bounds, &self.low_bit, chunk, context);
        self.prepared.store(chunk, context, chosen);
    }

    fn select(&self, tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        if context.layer < self.dense_layers {
            return Selection::full(context.tokens);
        }
        let chosen = self.prepared.find_or(tile, context, || {
            let (mut bounds, mut low_bit) = (Bounds::default(), LowBitKeys::default());
            bounds.extend(context.pages, tile.head_dim, self.block, context.tokens);
            low_bit.extend(context.pages, tile.head_dim, context.tokens);
            self.choose(&bounds, &low_bit, tile, context)
        });
        Selection::from_spans(runs(chosen.iter().copied()))
    }

    fn truncate(&mut self, tokens: usize) {
        self.bounds.truncate(self.block, tokens);
        self.low_bit.truncate(tokens);
        self.prepared.clear();
    }

    fn summarize(&mut self) -> Option<&mut dyn Summarize> {
        Some(self)
    }
}

impl Summarize for Twilight {
    fn keys_from(&self, context: &SelectContext<'_>) -> usize {
        if context.layer < self.dense_layers {
            context.tokens
        } else {
            self.bounds.tokens().min(context.tokens)
        }
    }

    fn summarize(&mut self, page: &PageView<'_>, head_dim: usize) {
        if let Some(end) = continued_by(self.bounds.tokens(), page) {
            self.bounds.extend(&[*page], head_dim, self.block, end);
            self.low_bit.extend(&[*page], head_dim, end);
        }
    }
}

impl Twilight {
    /// The tokens to read, ascending.
    fn choose(
        &self,
        bounds: &Bounds,
        low_bit: &LowBitKeys,
        tile: &QueryTile<'_>,
        context: &SelectContext<'_>,
    ) -> Vec<usize> {
        let blocks = context.tokens.div_ceil(self.block);
        let forced = forced_blocks(tile, self.block, self.sinks, self.recent);
        let always = (0..blocks).filter(|block| forced(*block)).count();
        let more = ((f64::from(self.candidates) * blocks as f64) as usize).max(self.least);
        let candidates = top_count(&bounds.scores(tile, blocks), always + more, &forced);
        let candidates: Vec<Span> = candidates
            .iter()
            .map(|block| block_span(*block, self.block, context.tokens))
            .collect();
        let tokens: Vec<usize> = candidates.iter().flat_map(Span::range).collect();
        let mut logits = low_bit_logits(low_bit, &candidates, tokens.len(), tile, context);
        let forced: Vec<bool> = tokens.iter().map(|token| forced(token / self.block)).collect();
        let mut chosen = forced.clone();
        for (query, logits) in logits.chunks_exact_mut(tokens.len().max(1)).enumerate() {
            let end = (tile.start + query / tile.group + 1).min(context.tokens);
            let visible = tokens.partition_point(|token| *token < end);
            let weights = &mut logits[..visible];
            let total = exponentiate(weights);
            // Forced tokens are always read, so they are not candidates for dropping.
            for (weight, forced) in weights.iter_mut().zip(&forced) {
                *weight = if *forced { f32::INFINITY } else { *weight };
            }
            let lowest = cut(weights, (1.0 - f64::from(self.p)) * total);
            for (chosen, weight) in chosen.iter_mut().zip(&*weights) {
                *chosen |= *weight >= lowest;
            }
        }
        tokens
            .into_iter()
            .zip(chosen)
            .filter_map(|(token, chosen)| chosen.then_some(token))
            .collect()
    }
}

/// Logits of the tile's queries with the `count` keys of some spans, `[rows × group, count]`.
fn low_bit_logits(
    keys: &LowBitKeys,
    spans: &[Span],
    count: usize,
    tile: &QueryTile<'_>,
    context: &SelectContext<'_>,
) -> Vec<f32> {
    let queries = (0..tile.rows).flat_map(|row| (0..tile.group).map(move |head| tile.query(row, head)));
    let mut scorer = Scorer::new(context.phase.arithmetic());
    let mut logits = vec![0.0; tile.rows * tile.group * count];
    let mut first = 0;
    let mut scored = scorer.set(queries, tile.head_dim, context.scale);
    for span in spans {
        scored = scored.and_then(|()| scorer.score(&keys.plane(), *span, None, &mut logits[first..], count));
        first += span.len();
    }
    scored.expect("the plane holds every token, and blocks begin where a stripe does");
    logits
}

/// Bytes a token: bounds of blocks, four bits a channel, and a scale of two bytes for 32 channels.
fn stored_bytes(parameters: &Parameters, head_dim: usize) -> f64 {
    let head_dim = head_dim as f64;
    8.0 * head_dim / parameters.count("block") as f64 + head_dim / 2.0 + head_dim / 16.0
}

fn work(parameters: &Parameters, chunk: &ChunkSize) -> ChunkWork {
    let tokens = chunk.tokens as f64;
    let blocks = tokens / parameters.count("block") as f64;
    let scored = f64::from(parameters.number("candidates")) * blocks;
    let candidates = (scored.max(parameters.count("least") as f64) * parameters.count("block") as f64).min(tokens);
    let group = chunk.group as f64;
    ChunkWork {
        share: (0.05 + 3.0 * parameters.count("block") as f64 / tokens).min(1.0),
        scored: 2.0 * blocks + candidates * group,
        weighed: 2.0 * candidates * group,
        ranked: 0.1 * candidates * group,
    }
}
