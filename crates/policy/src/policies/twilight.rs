use riffle_attention::{LANES, PageView, QueryTile, Selection};

use super::quest::forced_blocks;
use crate::bounds::Bounds;
use crate::cost::{Setting, Work};
use crate::kernel::{Lanes, dots, softmax};
use crate::keys::read_lanes;
use crate::low_bit::LowBitKeys;
use crate::parameter::{MAX_TOKENS, Parameters};
use crate::prepared::Prepared;
use crate::ranking::{top_count, top_share};
use crate::spans::runs;
use crate::{ParameterInfo, ParameterKind, PolicyInfo, SelectContext, SparsePolicy};

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
    saves: "traffic, compute",
    source: "Twilight, Lin et al. 2025, arXiv:2502.02770",
    chunk: None,
    work: Some(work),
    stored_bytes: |parameters, head_dim| {
        // Bounds, four bits a channel, and a scale for 16 channels.
        let head_dim = head_dim as f64;
        8.0 * head_dim / parameters.count("block") as f64 + head_dim / 2.0 + head_dim / 4.0
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
            // Keys in four bits come in whole stripes.
            false => self.bounds.tokens().min(context.tokens) / LANES * LANES,
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
    let head_dim = queries.head_dim;
    let blocks = context.tokens.div_ceil(policy.block);
    let forced = forced_blocks(queries, policy.block, policy.sinks, policy.recent);
    let always = (0..blocks).filter(|block| forced(*block)).count();
    let more = ((f64::from(policy.candidates) * blocks as f64) as usize).max(policy.least);
    let candidates = top_count(&bounds.scores(queries, blocks), always + more, &forced);
    // Stripes of 16 tokens: blocks are a multiple.
    let per_block = policy.block / LANES;
    let stripes: Vec<usize> = candidates
        .iter()
        .flat_map(|block| block * per_block..(block + 1) * per_block)
        .filter(|stripe| stripe * LANES < context.tokens)
        .collect();
    let vectors: Vec<f32> = (0..queries.rows)
        .flat_map(|row| (0..queries.group).flat_map(move |head| queries.query(row, head)))
        .copied()
        .collect();
    let count = queries.rows * queries.group;
    let mut keys: Vec<Lanes> = vec![[0.0; LANES]; head_dim];
    let mut rows = vec![0.0; LANES * head_dim];
    let mut sums: Vec<Lanes> = vec![[0.0; LANES]; count];
    // [count, stripes, LANES]
    let mut logits = vec![0.0; count * stripes.len() * LANES];
    for (place, stripe) in stripes.iter().enumerate() {
        // The last stripe may not be whole: its keys are read as they are.
        if !low_bit.expand(*stripe, &mut keys) {
            read_lanes(context.pages, stripe * LANES, &mut keys, &mut rows);
        }
        dots(&vectors, &keys, &mut sums);
        for (query, sums) in sums.iter().enumerate() {
            let at = (query * stripes.len() + place) * LANES;
            for (logit, sum) in logits[at..at + LANES].iter_mut().zip(sums) {
                *logit = sum * context.scale;
            }
        }
    }
    let token = |place: usize| stripes[place / LANES] * LANES + place % LANES;
    let places = stripes.len() * LANES;
    let mut chosen = vec![false; places];
    for (query, logits) in logits.chunks_exact_mut(places.max(1)).enumerate() {
        let end = (queries.start + query / queries.group + 1).min(context.tokens);
        let visible = (0..places).take_while(|place| token(*place) < end).count();
        let weights = &mut logits[..visible];
        softmax(weights);
        for place in top_share(weights, policy.p, 0, |place| forced(token(place) / policy.block)) {
            chosen[place] = true;
        }
    }
    let read = (0..places).filter(|place| chosen[*place]).map(token);
    read.collect()
}

fn work(parameters: &Parameters, setting: &Setting) -> Work {
    let tokens = setting.tokens as f64;
    let blocks = tokens / parameters.count("block") as f64;
    let scored = f64::from(parameters.number("candidates")) * blocks;
    let candidates = (scored.max(parameters.count("least") as f64) * parameters.count("block") as f64).min(tokens);
    let group = setting.group as f64;
    Work {
        share: (0.05 + 3.0 * parameters.count("block") as f64 / tokens).min(1.0),
        // Bounds without vector code for queries together; keys are expanded once for the group.
        scored: 8.0 * blocks * group + candidates * (group + 12.0),
        weighed: 2.0 * candidates * group,
        ranked: candidates * group,
    }
}
