use std::borrow::Cow;

use riffle_attention::{AttendOptions, QueryTile, Selection, SignIndex, SignScorer, Span, exponentiate_by_largest};

use crate::blocks::{BlockRows, PeakBlocks, block_span, mark_blocks};
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
/// The index ([`SignIndex`]) gives an estimate of every logit. A query has a peak at a key whose softmax weight is at
/// least `peak` times the mean of the largest weights of every 16 keys. The limit follows the length: a fixed share of
/// the softmax would read less of a longer text.
///
/// A generated token reads the blocks at the peaks of its heads. A block may be a single key. The logits in its own
/// segment of 64 tokens, which the index does not contain yet, are exact. In a prompt, a block of queries reads the
/// blocks with a peak of any query and head, eight times as high: many queries share the block, and some estimates are
/// too large. The first and the latest blocks and the own segment are always read.
///
/// An estimate is the expected logit for the given signs.
struct Signs {
    peak: f64,
    block: usize,
    tail: usize,
    dense_layers: usize,
    sinks: usize,
    recent: usize,
    prepared: Prepared<Reads>,
}

/// The keys to read.
#[derive(Clone)]
enum Reads {
    /// Blocks of each block of queries of a prompt.
    Blocks(BlockRows),
    /// Tokens that all queries read.
    Tokens(Vec<Span>),
}

/// Rows scored together, few enough that their estimates stay in the processor's caches.
const SCORED_ROWS: usize = 16;

/// A peak of a prompt's block, relative to one of a generated token.
const PROMPT_PEAK: f64 = 8.0;

pub(crate) const INFO: PolicyInfo = PolicyInfo {
    name: "signs",
    source: "Signs of rotated keys as an index, after Self-Indexing Attention, 2026, arXiv:2609.13205",
    saves: "traffic, compute",
    traits: Traits {
        depends_on_chunks: true,
        recall: Recall::Distinct,
        keys: KeyUse::Indexed,
        work: Some(work),
        budget: Some(BudgetParameter::falling("peak", 1e-4, 1e4)),
        ..Traits::PLAIN
    },
    parameters: &[
        ParameterInfo {
            name: "peak",
            default: "1.2",
            meaning: "weight of a key from which on a generated token reads its block, relative to the mean of the largest estimated weights of every 16 keys; in a prompt, eight times as much",
            kind: ParameterKind::Number { min: 0.0, max: 1e4 },
        },
        ParameterInfo {
            name: "block",
            default: "16",
            meaning: "tokens that are read together; 1 reads the fewest pairs, 16 the fewest bytes; in a prompt at least 16",
            kind: ParameterKind::PowerOfTwo { min: 1, max: 64 },
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
            peak: f64::from(parameters.number("peak")),
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
        let reads = self.reads(chunk, context);
        self.prepared.store(chunk, context, reads);
    }

    fn select(&self, tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        let in_tail = context.phase == Phase::Prefill && in_tail(tile, context, self.tail);
        if in_tail || context.layer < self.dense_layers {
            return Selection::full(context.tokens);
        }
        let reads = self.prepared.find_or(tile, context, || self.reads(tile, context));
        match &*reads {
            Reads::Blocks(rows) => rows.select(tile, context.tokens),
            Reads::Tokens(spans) => Selection::from_spans(spans.iter().copied()),
        }
    }

    fn truncate(&mut self, _: usize) {
        self.prepared.clear();
    }
}

impl Signs {
    fn reads(&self, chunk: &QueryTile<'_>, context: &SelectContext<'_>) -> Reads {
        match context.phase {
            Phase::Prefill => Reads::Blocks(self.blocks(chunk, context)),
            Phase::Decode => Reads::Tokens(self.tokens(chunk, context)),
        }
    }

    /// The blocks that each block of a prompt's queries reads.
    fn blocks(&self, chunk: &QueryTile<'_>, context: &SelectContext<'_>) -> BlockRows {
        let units = self.shared_block() / SignIndex::UNIT;
        let mut read = PeakBlocks::new(chunk, self.shared_block(), |own, block| {
            block < self.sinks || block >= self.recent_block(own)
        });
        for_each_part(chunk, context, |part, scorer, _| {
            let lowest = lowest_logits(scorer, PROMPT_PEAK * self.peak, |_, _| {});
            for (query, lowest) in lowest.into_iter().enumerate() {
                read.mark(part.start + query / part.group, scorer.row(query), (units, lowest));
            }
        });
        read.rows()
    }

    /// The tokens that generated tokens read.
    fn tokens(&self, chunk: &QueryTile<'_>, context: &SelectContext<'_>) -> Vec<Span> {
        let block = self.shared_block();
        let recent = block * self.recent_block(chunk.start / block);
        let sinks = (block * self.sinks).min(context.tokens);
        let mut spans = vec![Span::new(0, sinks)];
        for_each_part(chunk, context, |part, scorer, keys| {
            let lowest = lowest_logits(scorer, self.peak, |query, logits| {
                logits.extend(own_maxima(part, query, keys, context));
            });
            let blocks = match self.block {
                SignIndex::UNIT.. => self.peak_blocks(scorer, &lowest),
                block => {
                    let found = scorer.keys_from(keys.index(), &lowest);
                    let found = found.expect("the estimates are of this index");
                    let mut blocks: Vec<usize> = found.into_iter().map(|key| key / block).collect();
                    blocks.dedup();
                    blocks
                }
            };
            spans.extend(
                blocks
                    .into_iter()
                    .map(|number| block_span(number, self.block, context.tokens)),
            );
        });
        spans.push(Span::new(recent, context.tokens));
        spans
    }

    /// The blocks of whole units with a logit of at least a query's `lowest`.
    fn peak_blocks(&self, scorer: &SignScorer, lowest: &[f32]) -> Vec<usize> {
        let units = self.block / SignIndex::UNIT;
        let seen = (0..lowest.len()).map(|query| scorer.row(query).len()).max();
        let mut read = vec![false; seen.unwrap_or(0).div_ceil(units)];
        for (query, lowest) in lowest.iter().enumerate() {
            mark_blocks(&mut read, scorer.row(query), (units, *lowest));
        }
        (0..read.len()).filter(|block| read[*block]).collect()
    }

    /// Tokens in a block that many queries share.
    fn shared_block(&self) -> usize {
        self.block.max(SignIndex::UNIT)
    }

    /// The first of the blocks that a block of queries always reads: the latest, and those of its own segment.
    fn recent_block(&self, query_block: usize) -> usize {
        let segment = query_block * self.shared_block() / SignIndex::SEGMENT * SignIndex::SEGMENT;
        (query_block + 1)
            .saturating_sub(self.recent)
            .min(segment / self.shared_block())
    }
}

/// Estimates the logits of a few rows at a time, of one segment, and passes them on with the index.
fn for_each_part(
    chunk: &QueryTile<'_>,
    context: &SelectContext<'_>,
    mut each: impl FnMut(&QueryTile<'_>, &SignScorer, &SignKeys),
) {
    let keys = signs_of(context, chunk.head_dim);
    let options = AttendOptions::new(context.scale).with_soft_cap(context.soft_cap);
    let mut scorer = LentSignScorer::default();
    let mut from = 0;
    while from < chunk.rows {
        let in_segment = SignIndex::SEGMENT - (chunk.start + from) % SignIndex::SEGMENT;
        let part = rows_of(chunk, from, SCORED_ROWS.min(chunk.rows - from).min(in_segment));
        scorer
            .run(&part, keys.index(), &options)
            .expect("keys of the index have the queries' head_dim");
        each(&part, &scorer, &keys);
        from += part.rows;
    }
}

/// The least logit with a peak of each query: with `peak` times the mean of the largest weights of the units that it
/// sees. `add_own` adds the largest logits of units after the index.
fn lowest_logits(scorer: &SignScorer, peak: f64, add_own: impl Fn(usize, &mut Vec<f32>)) -> Vec<f32> {
    let mut logits = Vec::new();
    let lowest = (0..scorer.queries()).map(|query| {
        logits.clear();
        logits.extend_from_slice(scorer.row(query));
        add_own(query, &mut logits);
        let (largest, sum) = exponentiate_by_largest(&mut logits);
        largest + (peak * sum / logits.len() as f64).ln() as f32
    });
    lowest.collect()
}

/// The largest logits of a query in the units of its own segment; none if the keys are not kept.
fn own_maxima(
    part: &QueryTile<'_>,
    query: usize,
    keys: &SignKeys,
    context: &SelectContext<'_>,
) -> impl Iterator<Item = f32> {
    let (row, head) = (query / part.group, query % part.group);
    let vector = part.query(row, head);
    let capped = move |logit: f32| context.soft_cap.map_or(logit, |cap| cap * (logit / cap).tanh());
    let own = keys.own_segment(part.start + row).unwrap_or_default();
    own.chunks(SignIndex::UNIT * part.head_dim).map(move |unit| {
        let products = unit.chunks_exact(part.head_dim).map(|key| dot(vector, key));
        capped(products.fold(f32::NEG_INFINITY, f32::max) * context.scale)
    })
}

/// A product in 16 sums, which the compiler adds together.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 16];
    for (a, b) in a.as_chunks::<16>().0.iter().zip(b.as_chunks::<16>().0) {
        (0..16).for_each(|n| sums[n] += a[n] * b[n]);
    }
    sums.iter().sum()
}

/// The index with all keys of the context.
fn signs_of<'c>(context: &SelectContext<'c>, head_dim: usize) -> Cow<'c, SignKeys> {
    let mut keys = context.signs.map_or_else(Cow::default, Cow::Borrowed);
    if keys.tokens() < context.tokens {
        keys.to_mut().extend(context.pages, head_dim, context.tokens);
    }
    keys
}

fn work(_: &Parameters, chunk: &ChunkSize) -> ChunkWork {
    /// Cost of a product with signs, relative to single precision.
    const SIGN_PRODUCT: f64 = 0.15;
    let pairs = chunk.pairs();
    ChunkWork {
        share: (0.05 + 300.0 / chunk.tokens as f64).min(1.0),
        scored: SIGN_PRODUCT * pairs,
        weighed: pairs / SignIndex::UNIT as f64,
        ranked: 0.0,
    }
}
