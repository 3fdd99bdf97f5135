use std::ops::Range;

use riffle_attention::{QueryTile, Selection, Span, exponentiate};

use crate::blocks::{BlockRows, query_blocks};
use crate::cost::{ChunkSize, ChunkWork};
use crate::keys::score_keys;
use crate::parameter::Parameters;
use crate::policies::tri_shape::in_tail;
use crate::policies::vertical_slash::{LineMass, line_spans};
use crate::prepared::Prepared;
use crate::ranking::top_share;
use crate::spans::runs;
use crate::{
    BudgetParameter, ChunkNeed, Estimated, KeyUse, ParameterInfo, ParameterKind, PolicyInfo, Recall, SelectContext,
    SparsePolicy, Traits,
};

/// Chooses a pattern for each head and chunk, sized by the mass that it keeps.
///
/// The estimate computes the full attention of the chunk's last queries. If means of key blocks predict it (distance
/// below `tau`), every query block reads key blocks chosen by their means. Otherwise the chunk reads the columns and
/// the diagonals that each hold `gamma` of the mass. Columns are exact, and diagonals are widened to the tile, so no
/// chosen pair is lost. Distributions are averaged over the heads of the group.
struct Flex {
    gamma: f32,
    tau: f32,
    min_budget: usize,
    block: usize,
    last: usize,
    tail: usize,
    prepared: Prepared<Pattern>,
}

#[derive(Clone)]
enum Pattern {
    Blocks(BlockRows),
    Lines { columns: Vec<usize>, distances: Vec<Span> },
}

pub(crate) const INFO: PolicyInfo = PolicyInfo {
    name: "flex",
    source: "FlexPrefill, Lai et al. 2025, arXiv:2502.20766",
    saves: "compute",
    traits: Traits {
        depends_on_chunks: true,
        recall: Recall::AtTheEnd,
        keys: KeyUse::Scanned,
        chunk: Some(ChunkNeed::LONG),
        work: Some(work),
        stored_bytes: |_, _| 8.0,
        budget: Some(BudgetParameter::mass("gamma")),
        ..Traits::PREFILL
    },
    parameters: &[
        ParameterInfo {
            name: "gamma",
            default: "0.95",
            meaning: "share of the mass that is kept",
            kind: ParameterKind::Number { min: 0.0, max: 1.0 },
        },
        ParameterInfo {
            name: "tau",
            default: "0.1",
            meaning: "distance (root of Jensen-Shannon) below which block means are trusted",
            kind: ParameterKind::Number { min: 0.0, max: 1.0 },
        },
        ParameterInfo::tokens(
            "min_budget",
            "512",
            "fewest tokens chosen, as blocks, as columns and as diagonals",
        ),
        ParameterInfo {
            name: "block",
            default: "128",
            meaning: "tokens in a block",
            kind: ParameterKind::PowerOfTwo { min: 16, max: 1024 },
        },
        ParameterInfo::count(
            "last",
            "64",
            "last queries of a chunk that the estimate looks at",
            1,
            4096,
        ),
        ParameterInfo::tokens("tail", "0", "last queries of the prompt that read everything"),
    ],
    build: |parameters| {
        Box::new(Flex {
            gamma: parameters.number("gamma"),
            tau: parameters.number("tau"),
            min_budget: parameters.count("min_budget"),
            block: parameters.count("block"),
            last: parameters.count("last"),
            tail: parameters.count("tail"),
            prepared: Prepared::new(),
        })
    },
};

impl SparsePolicy for Flex {
    fn prepare(&mut self, chunk: &QueryTile<'_>, context: &SelectContext<'_>, _: Option<Estimated>) {
        let pattern = self.pattern(chunk, context);
        self.prepared.store(chunk, context, pattern);
    }

    fn select(&self, tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        if in_tail(tile, context, self.tail) {
            return Selection::full(context.tokens);
        }
        let pattern = self.prepared.find_or(tile, context, || self.pattern(tile, context));
        match &*pattern {
            Pattern::Blocks(rows) => rows.select(tile, context.tokens),
            Pattern::Lines { columns, distances } => line_spans(tile, columns, distances).with_row_window(self.block),
        }
    }

    fn truncate(&mut self, _tokens: usize) {
        self.prepared.clear();
    }
}

impl Flex {
    fn pattern(&self, chunk: &QueryTile<'_>, context: &SelectContext<'_>) -> Pattern {
        let rows = self.last.min(chunk.rows);
        let lines = LineMass::of_last(chunk, context, rows);
        let mut predicted = self
            .predicted(chunk, std::slice::from_ref(&(chunk.rows - rows..chunk.rows)), context)
            .remove(0);
        let mut seen: Vec<f32> = lines
            .columns
            .chunks(self.block)
            .map(|block| block.iter().sum())
            .collect();
        normalise(&mut seen);
        normalise(&mut predicted);
        if root_jensen_shannon(&seen, &predicted) < f64::from(self.tau) {
            return Pattern::Blocks(self.block_rows(chunk, context));
        }
        let columns = top_share(&lines.columns, self.gamma, self.min_budget, |column| {
            column < self.block
        });
        let distances = top_share(&lines.distances(), self.gamma, self.min_budget, |distance| {
            distance < self.block
        });
        Pattern::Lines {
            columns,
            // The latest diagonals are the row window.
            distances: runs(distances.into_iter().filter(|distance| *distance >= self.block)),
        }
    }

    fn block_rows(&self, chunk: &QueryTile<'_>, context: &SelectContext<'_>) -> BlockRows {
        let numbers = query_blocks(chunk, self.block);
        let first = numbers.start;
        let least = self.min_budget.div_ceil(self.block);
        let rows: Vec<Range<usize>> = numbers
            .map(|number| {
                let from = (number * self.block).max(chunk.start) - chunk.start;
                from..((number + 1) * self.block - chunk.start).min(chunk.rows)
            })
            .collect();
        let scores = self.predicted(chunk, &rows, context);
        let chosen = scores.iter().enumerate().map(|(place, scores)| {
            let number = first + place;
            top_share(scores, self.gamma, least, |block| block == 0 || block == number)
        });
        BlockRows {
            block: self.block,
            first,
            chosen: chosen.collect(),
        }
    }

    /// For each range of the chunk's rows, the attention predicted from means, summed over the heads of the group. It
    /// is the softmax of the mean query over the mean keys of the blocks up to the range's last row.
    fn predicted(&self, chunk: &QueryTile<'_>, ranges: &[Range<usize>], context: &SelectContext<'_>) -> Vec<Vec<f32>> {
        let vectors: Vec<f32> = ranges
            .iter()
            .flat_map(|rows| (0..chunk.group).flat_map(|head| mean_query(chunk, rows.clone(), head)))
            .collect();
        // The product with a mean of keys is the mean of the products.
        let logits = score_keys(&vectors, chunk.head_dim, context);
        let mut logits = logits.chunks_exact(context.tokens.max(1));
        let of_range = |rows: &Range<usize>| {
            let blocks = (chunk.start + rows.end).min(context.tokens).div_ceil(self.block);
            let mut scores = vec![0.0f32; blocks];
            for logits in logits.by_ref().take(chunk.group) {
                let mean = |block: &[f32]| block.iter().sum::<f32>() / block.len() as f32;
                let mut weights: Vec<f32> = logits.chunks(self.block).take(blocks).map(mean).collect();
                let factor = exponentiate(&mut weights).recip() as f32;
                for (score, weight) in scores.iter_mut().zip(&weights) {
                    *score += weight * factor;
                }
            }
            scores
        };
        ranges.iter().map(of_range).collect()
    }
}

/// Mean of a head's queries in these rows.
fn mean_query(chunk: &QueryTile<'_>, rows: Range<usize>, head: usize) -> Vec<f32> {
    let mut sums = vec![0.0f32; chunk.head_dim];
    let factor = 1.0 / rows.len().max(1) as f32;
    for row in rows {
        for (sum, value) in sums.iter_mut().zip(chunk.query(row, head)) {
            *sum += value;
        }
    }
    sums.iter_mut().for_each(|sum| *sum *= factor);
    sums
}

fn normalise(weights: &mut [f32]) {
    let total: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
    for weight in weights {
        *weight = (f64::from(*weight) / total) as f32;
    }
}

fn root_jensen_shannon(a: &[f32], b: &[f32]) -> f64 {
    let part = |x: f64, middle: f64| if x > 0.0 { x * (x / middle).ln() } else { 0.0 };
    let terms = a.iter().zip(b).map(|(a, b)| {
        let (a, b) = (f64::from(*a), f64::from(*b));
        part(a, (a + b) / 2.0) + part(b, (a + b) / 2.0)
    });
    (terms.sum::<f64>() / 2.0).max(0.0).sqrt()
}

fn work(parameters: &Parameters, chunk: &ChunkSize) -> ChunkWork {
    let tokens = chunk.tokens as f64;
    let logits = (chunk.rows.min(parameters.count("last")) * chunk.group) as f64 * tokens;
    ChunkWork {
        // The constant was measured on text. The share depends on the mass; only `min_budget`, the least number of
        // blocks, columns and diagonals, is a budget.
        share: (0.35 + 3.0 * parameters.count("min_budget") as f64 / tokens).min(1.0),
        scored: logits + chunk.group as f64 * tokens,
        weighed: logits,
        ranked: 4.0 * tokens,
    }
}
