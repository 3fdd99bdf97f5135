use riffle_attention::{QueryTile, Selection};

use crate::blocks::{BlockRows, query_blocks};
use crate::cost::{Setting, Work};
use crate::kernel::softmax;
use crate::keys::Logits;
use crate::parameter::Parameters;
use crate::prepared::Prepared;
use crate::{ParameterInfo, ParameterKind, PolicyInfo, SelectContext, SparsePolicy};

/// Blocks whose best key is far below the best before them are not read.
///
/// Blocks of keys pass in order, and each query keeps the largest logit it has seen; a block is skipped when its largest
/// logit lies more than ln(L / `factor`) below that for every query of the query block and every head of the group. All
/// keys are scanned for it, so values alone are saved, and what is left unread is known: at most `factor` / L a key.
struct Blasst {
    factor: f32,
    block: usize,
    prepared: Prepared<Choice>,
}

#[derive(Clone)]
struct Choice {
    rows: BlockRows,
    dropped: f32,
}

pub(crate) const INFO: PolicyInfo = PolicyInfo {
    name: "blasst",
    supports_prefill: true,
    supports_decode: true,
    saves: "traffic of values",
    source: "BLASST, Yuan et al. 2025, arXiv:2512.12087, as a scan before the attention, with the dropped mass known",
    chunk: None,
    work: Some(work),
    stored_bytes: |_, _| 0.0,
    parameters: &[
        ParameterInfo {
            name: "factor",
            default: "16",
            meaning: "by the number of tokens, the weight beside the largest one below which keys are skipped",
            kind: ParameterKind::Number { min: 0.0, max: 1e6 },
        },
        ParameterInfo {
            name: "block",
            default: "64",
            meaning: "tokens in a block",
            kind: ParameterKind::PowerOfTwo { min: 16, max: 1024 },
        },
    ],
    build: |parameters| {
        Box::new(Blasst {
            factor: parameters.number("factor"),
            block: parameters.count("block"),
            prepared: Prepared::new(),
        })
    },
};

impl SparsePolicy for Blasst {
    fn prepare(&mut self, chunk: &QueryTile<'_>, context: &SelectContext<'_>) {
        let choice = self.choice(chunk, context);
        self.prepared.store(chunk, context, choice);
    }

    fn select(&self, queries: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        let choice = self
            .prepared
            .find_or(queries, context, || self.choice(queries, context));
        choice.rows.select(queries, context.tokens)
    }

    fn dropped_mass(&self) -> Option<f32> {
        self.prepared.latest().map(|choice| choice.dropped)
    }

    fn truncate(&mut self, _tokens: usize) {
        self.prepared.clear();
    }
}

impl Blasst {
    fn choice(&self, chunk: &QueryTile<'_>, context: &SelectContext<'_>) -> Choice {
        // The weight beside the largest one below which a block is skipped, at most 1: the largest is always read.
        let ln_lambda = (self.factor / context.tokens.max(1) as f32).min(1.0).ln();
        let numbers = query_blocks(chunk, self.block);
        let first = numbers.start;
        let mut dropped = 0.0f32;
        let mut logits = Logits::default();
        let chosen = numbers.map(|number| {
            let rows = (number * self.block).max(chunk.start) - chunk.start
                ..((number + 1) * self.block - chunk.start).min(chunk.rows);
            let queries: Vec<(usize, usize)> = rows
                .flat_map(|row| (0..chunk.group).map(move |head| (row, head)))
                .collect();
            let vectors: Vec<f32> = queries
                .iter()
                .flat_map(|(row, head)| chunk.query(*row, *head))
                .copied()
                .collect();
            let end = ((number + 1) * self.block).min(context.tokens);
            logits.compute(&vectors, context.pages, chunk.head_dim, 1, end, context.scale);
            let mut read = vec![false; end.div_ceil(self.block)];
            for ((row, _), logits) in queries.iter().zip(logits.rows_mut()) {
                let mut top = f32::NEG_INFINITY;
                let visible = (chunk.start + row + 1).min(end);
                for (read, block) in read.iter_mut().zip(logits[..visible].chunks(self.block)) {
                    let best = block.iter().fold(f32::NEG_INFINITY, |best, logit| best.max(*logit));
                    *read |= best >= top + ln_lambda;
                    top = top.max(best);
                }
            }
            for ((row, _), logits) in queries.iter().zip(logits.rows_mut()) {
                let weights = &mut logits[..(chunk.start + row + 1).min(end)];
                softmax(weights);
                let skipped = weights.chunks(self.block).zip(&read).filter(|(_, read)| !**read);
                let left: f64 = skipped
                    .flat_map(|(block, _)| block)
                    .map(|weight| f64::from(*weight))
                    .sum();
                dropped = dropped.max(left as f32);
            }
            (0..read.len()).filter(|block| read[*block]).collect()
        });
        let rows = BlockRows {
            block: self.block,
            first,
            chosen: chosen.collect(),
        };
        Choice { rows, dropped }
    }
}

fn work(_: &Parameters, setting: &Setting) -> Work {
    let pairs = setting.pairs();
    Work {
        // As measured on text.
        share: 0.5,
        scored: pairs,
        weighed: pairs,
        ranked: 0.0,
    }
}
