use riffle_attention::{LANES, QueryTile, Scan, Span};

use crate::blocks::{block_span, query_blocks};
use crate::cost::{Setting, Work};
use crate::keys::{rows_of, scan_in_parts, scan_keys};
use crate::parameter::Parameters;
use crate::scanned::{Choice, Choose, Scanned};
use crate::{ParameterInfo, ParameterKind, PolicyInfo, Recall, SelectContext};

/// Blocks whose best key is far below the best before them are not read.
///
/// Blocks of keys pass in order, and each query keeps the largest logit it has seen; a block is skipped when its largest
/// logit lies more than ln(L / `factor`) below that for every query of the query block and every head of the group. All
/// keys are scanned for it, so values alone are saved, and what is left unread is known: at most `factor` / L a key.
struct Blasst {
    factor: f32,
    block: usize,
}

pub(crate) const INFO: PolicyInfo = PolicyInfo {
    name: "blasst",
    supports_prefill: true,
    supports_decode: true,
    recall: Recall::Anywhere,
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
        Box::new(Scanned::new(Blasst {
            factor: parameters.number("factor"),
            block: parameters.count("block"),
        }))
    },
};

impl Choose for Blasst {
    fn choose(&self, scan: &mut Scan, tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Choice {
        // The weight beside the largest one below which a block is skipped, at most 1: the largest is always read.
        let lambda = (self.factor / context.tokens.max(1) as f32).min(1.0);
        let mut dropped = 0.0f32;
        let parts = query_blocks(tile, self.block).map(|number| {
            let queries = block_span(number, self.block, tile.start + tile.rows);
            let queries = queries.intersect(&Span::new(tile.start, queries.end));
            let rows = rows_of(tile, queries.start - tile.start, queries.len());
            let end = queries.end.min(context.tokens);
            let mut read = vec![false; end.div_ceil(self.block)];
            // Of each query, its softmax over blocks.
            let mut masses: Vec<Vec<f32>> = Vec::new();
            let before = SelectContext {
                tokens: end,
                ..*context
            };
            scan_in_parts(scan, &rows, &before, scan_keys, |scan| {
                for query in 0..scan.queries() {
                    let (mut top, mut mass) = (0.0f32, Vec::with_capacity(read.len()));
                    let factor = scan.total(query).recip() as f32;
                    for (read, weights) in read.iter_mut().zip(scan.weights(query).chunks(self.block)) {
                        let (best, sum) = largest_and_sum(weights);
                        // Unless the query sees nothing of the block.
                        *read |= best >= top * lambda && best > 0.0;
                        top = top.max(best);
                        mass.push(sum * factor);
                    }
                    masses.push(mass);
                }
            });
            for mass in &masses {
                let skipped = mass.iter().zip(&read).filter(|(_, read)| !**read);
                dropped = dropped.max(skipped.map(|(mass, _)| mass).sum());
            }
            let blocks = (0..read.len()).filter(|block| read[*block]);
            let spans = blocks.map(|block| block_span(block, self.block, context.tokens));
            (queries, spans.collect())
        });
        Choice {
            parts: parts.collect(),
            dropped,
        }
    }
}

/// Lane by lane, so that it runs on vectors.
fn largest_and_sum(weights: &[f32]) -> (f32, f32) {
    let (whole, rest) = weights.as_chunks::<LANES>();
    let (mut tops, mut sums) = ([0.0f32; LANES], [0.0f32; LANES]);
    for chunk in whole {
        for lane in 0..LANES {
            tops[lane] = if chunk[lane] > tops[lane] {
                chunk[lane]
            } else {
                tops[lane]
            };
            sums[lane] += chunk[lane];
        }
    }
    let top = tops.iter().chain(rest).fold(0.0f32, |top, weight| top.max(*weight));
    (top, sums.iter().chain(rest).sum())
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
