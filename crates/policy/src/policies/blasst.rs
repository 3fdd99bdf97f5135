use riffle_attention::{LANES, QueryTile, Scan, Span};

use crate::blocks::{block_span, query_blocks};
use crate::cost::{ChunkSize, ChunkWork};
use crate::keys::{rows_of, scan_in_parts, scan_keys};
use crate::parameter::Parameters;
use crate::scan_policy::{RangeReads, ScanPolicy, SelectByScan};
use crate::{BudgetParameter, KeyUse, ParameterInfo, ParameterKind, PolicyInfo, Recall, SelectContext, Traits};

/// Skips blocks whose best key is far below the best key before them.
///
/// Each query visits the blocks of keys in order and remembers the largest logit so far. A block is skipped if its
/// largest logit is more than ln(L / `factor`) below it. This must hold for every query of the query block and every
/// head of the group. All keys are scanned, so only the reading of values is saved. A skipped key has at most `factor`
/// / L of a query's mass.
struct Blasst {
    factor: f32,
    block: usize,
}

pub(crate) const INFO: PolicyInfo = PolicyInfo {
    name: "blasst",
    source: "BLASST, Yuan et al. 2025, arXiv:2512.12087, as a scan before the attention",
    saves: "traffic of values",
    traits: Traits {
        recall: Recall::Anywhere,
        keys: KeyUse::Scanned,
        work: Some(work),
        budget: Some(BudgetParameter::falling("factor", 1e-3, 1e4)),
        ..Traits::PLAIN
    },
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
        Box::new(ScanPolicy::new(Blasst {
            factor: parameters.number("factor"),
            block: parameters.count("block"),
        }))
    },
};

impl SelectByScan for Blasst {
    fn select_by_scan(&self, scan: &mut Scan, tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Vec<RangeReads> {
        // Relative weight below which a block is skipped. At most 1, so the largest is always read.
        let threshold = (self.factor / context.tokens.max(1) as f32).min(1.0);
        let of_block = |number| {
            let queries = block_span(number, self.block, tile.start + tile.rows);
            let queries = queries.intersect(&Span::new(tile.start, queries.end));
            let rows = rows_of(tile, queries.start - tile.start, queries.len());
            let end = queries.end.min(context.tokens);
            let mut read = vec![false; end.div_ceil(self.block)];
            let before = SelectContext {
                tokens: end,
                ..*context
            };
            scan_in_parts(scan, &rows, &before, scan_keys, |scan| {
                for query in 0..scan.queries() {
                    let mut largest = 0.0f32;
                    for (read, weights) in read.iter_mut().zip(scan.weights(query).chunks(self.block)) {
                        let best = largest_of(weights);
                        // A best of 0 means that the query sees no key of the block.
                        *read |= best >= largest * threshold && best > 0.0;
                        largest = largest.max(best);
                    }
                }
            });
            let blocks = (0..read.len()).filter(|block| read[*block]);
            let tokens = blocks.map(|block| block_span(block, self.block, context.tokens));
            RangeReads {
                queries,
                tokens: tokens.collect(),
            }
        };
        query_blocks(tile, self.block).map(of_block).collect()
    }
}

/// The largest of some weights, lane by lane, so that it compiles to vector instructions.
fn largest_of(weights: &[f32]) -> f32 {
    let (whole, rest) = weights.as_chunks::<LANES>();
    let mut largest = [0.0f32; LANES];
    for chunk in whole {
        for lane in 0..LANES {
            largest[lane] = if chunk[lane] > largest[lane] {
                chunk[lane]
            } else {
                largest[lane]
            };
        }
    }
    largest
        .iter()
        .chain(rest)
        .fold(0.0f32, |largest, weight| largest.max(*weight))
}

fn work(_: &Parameters, chunk: &ChunkSize) -> ChunkWork {
    let pairs = chunk.pairs();
    ChunkWork {
        // The share measured on text.
        share: 0.5,
        scored: pairs,
        weighed: pairs,
        ranked: 0.0,
    }
}
