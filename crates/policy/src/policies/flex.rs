use riffle_attention::{QueryTile, Selection, Span};

use crate::blocks::{BlockRows, query_blocks};
use crate::cost::{Setting, Work};
use crate::kernel::softmax;
use crate::keys::{Logits, read_tokens};
use crate::parameter::Parameters;
use crate::policies::tri_shape::in_tail;
use crate::policies::vertical_slash::{LineMass, for_last_attention, line_spans};
use crate::prepared::Prepared;
use crate::ranking::top_share;
use crate::spans::runs;
use crate::{ParameterInfo, ParameterKind, PolicyInfo, SelectContext, SparsePolicy};

/// Each head and chunk its own pattern, sized by the mass it keeps.
///
/// The last block of queries is attended to in full. Where means of blocks predict what those queries attend to
/// (distance below `tau`), key blocks are chosen for every query block by their means; elsewhere columns and diagonals
/// are chosen that each hold `gamma` of the mass. Columns are exact and diagonals are widened to the tile, so nothing is
/// lost in rounding. Distributions are averaged over the heads of the group.
struct Flex {
    gamma: f32,
    tau: f32,
    min_budget: usize,
    block: usize,
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
    supports_prefill: true,
    supports_decode: false,
    saves: "compute",
    source: "FlexPrefill, Lai et al. 2025, arXiv:2502.20766",
    chunk: None,
    work: Some(work),
    stored_bytes: |_, _| 8.0,
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
        ParameterInfo::tokens("tail", "0", "last queries of the prompt that read everything"),
    ],
    build: |parameters| {
        Box::new(Flex {
            gamma: parameters.number("gamma"),
            tau: parameters.number("tau"),
            min_budget: parameters.count("min_budget"),
            block: parameters.count("block"),
            tail: parameters.count("tail"),
            prepared: Prepared::new(),
        })
    },
};

impl SparsePolicy for Flex {
    fn prepare(&mut self, chunk: &QueryTile<'_>, context: &SelectContext<'_>) {
        let pattern = self.pattern(chunk, context);
        self.prepared.store(chunk, context, pattern);
    }

    fn select(&self, queries: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        if in_tail(queries, context, self.tail) {
            return Selection::full(context.tokens);
        }
        let pattern = self
            .prepared
            .find_or(queries, context, || self.pattern(queries, context));
        match &*pattern {
            Pattern::Blocks(rows) => rows.select(queries, context.tokens),
            Pattern::Lines { columns, distances } => {
                line_spans(queries, columns, distances).with_row_window(self.block)
            }
        }
    }

    fn truncate(&mut self, _tokens: usize) {
        self.prepared.clear();
    }
}

impl Flex {
    fn pattern(&self, chunk: &QueryTile<'_>, context: &SelectContext<'_>) -> Pattern {
        let blocks = context.tokens.div_ceil(self.block);
        let means = self.key_means(chunk.head_dim, context);
        let rows = self.block.min(chunk.rows);
        let mut lines = LineMass::new(context.tokens);
        let mut predicted = vec![0.0f32; blocks];
        let mut logits = Logits::default();
        for head in 0..chunk.group {
            for_last_attention(chunk, context, rows, head, &mut logits, |weights| lines.add(weights));
            let query = mean_query(chunk, chunk.rows - rows..chunk.rows, head);
            add_predicted(&query, &means, context.scale, &mut predicted);
        }
        let mut seen: Vec<f32> = lines
            .columns
            .chunks(self.block)
            .map(|block| block.iter().sum())
            .collect();
        normalise(&mut seen);
        normalise(&mut predicted);
        if root_jensen_shannon(&seen, &predicted) < f64::from(self.tau) {
            return Pattern::Blocks(self.block_rows(chunk, context, &means));
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

    fn block_rows(&self, chunk: &QueryTile<'_>, context: &SelectContext<'_>, means: &[f32]) -> BlockRows {
        let query_blocks = query_blocks(chunk, self.block);
        let first = query_blocks.start;
        let least = self.min_budget.div_ceil(self.block);
        let rows = query_blocks.map(|number| {
            let from = (number * self.block).max(chunk.start) - chunk.start;
            let to = ((number + 1) * self.block - chunk.start).min(chunk.rows);
            let mut scores = vec![0.0f32; number + 1];
            for head in 0..chunk.group {
                let query = mean_query(chunk, from..to, head);
                add_predicted(&query, means, context.scale, &mut scores);
            }
            top_share(&scores, self.gamma, least, |block| block == 0 || block == number)
        });
        BlockRows {
            block: self.block,
            first,
            chosen: rows.collect(),
        }
    }

    /// Mean key of each block, `[blocks, head_dim]`.
    fn key_means(&self, head_dim: usize, context: &SelectContext<'_>) -> Vec<f32> {
        let mut means = Vec::with_capacity(context.tokens.div_ceil(self.block) * head_dim);
        let mut rows = Vec::new();
        for first in (0..context.tokens).step_by(self.block) {
            let count = self.block.min(context.tokens - first);
            rows.resize(count * head_dim, 0.0);
            read_tokens(context.pages, head_dim, first, &mut rows);
            means.extend(mean(&rows, head_dim));
        }
        means
    }
}

fn mean_query(chunk: &QueryTile<'_>, rows: std::ops::Range<usize>, head: usize) -> Vec<f32> {
    let queries: Vec<f32> = rows.flat_map(|row| chunk.query(row, head)).copied().collect();
    mean(&queries, chunk.head_dim)
}

/// Mean of the rows of `[rows, width]`.
fn mean(rows: &[f32], width: usize) -> Vec<f32> {
    let mut sums = vec![0.0f32; width];
    for row in rows.chunks_exact(width) {
        for (sum, value) in sums.iter_mut().zip(row) {
            *sum += value;
        }
    }
    let factor = width as f32 / rows.len().max(1) as f32;
    sums.iter_mut().for_each(|sum| *sum *= factor);
    sums
}

/// Adds the softmax of the query over the first `scores.len()` mean keys.
fn add_predicted(query: &[f32], means: &[f32], scale: f32, scores: &mut [f32]) {
    let keys = means.chunks_exact(query.len()).take(scores.len());
    let dots = keys.map(|key| key.iter().zip(query).map(|(k, q)| k * q).sum::<f32>() * scale);
    let mut weights: Vec<f32> = dots.collect();
    softmax(&mut weights);
    for (score, weight) in scores.iter_mut().zip(weights) {
        *score += weight;
    }
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

fn work(parameters: &Parameters, setting: &Setting) -> Work {
    let tokens = setting.tokens as f64;
    let logits = (setting.rows.min(parameters.count("block")) * setting.group) as f64 * tokens;
    Work {
        // As measured on text; it follows the mass, not a budget.
        share: (0.35 + 2.0 * parameters.count("min_budget") as f64 / tokens).min(1.0),
        scored: logits + tokens,
        weighed: 2.0 * logits,
        ranked: 4.0 * tokens,
    }
}
