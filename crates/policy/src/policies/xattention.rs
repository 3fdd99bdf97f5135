use riffle_attention::{KvView, QueryTile, Selection, exponentiate};

use crate::blocks::{BlockRows, query_blocks};
use crate::cost::{ChunkSize, ChunkWork};
use crate::parameter::Parameters;
use crate::policies::tri_shape::in_tail;
use crate::prepared::Prepared;
use crate::ranking::top_share;
use crate::scratch::LentAntidiagonals;
use crate::{
    BudgetParameter, Estimate, EstimateKind, Estimated, KeyUse, ParameterInfo, ParameterKind, PolicyInfo, Recall,
    SelectContext, SparsePolicy, Traits,
};

/// Reads the blocks whose antidiagonals have most mass.
///
/// Every `stride` queries, in reverse order, form one long query, and every `stride` keys form one long key. Their
/// product is the sum of an antidiagonal of the attention map, at 1 / `stride` of its cost. Long queries, long keys
/// and blocks begin at multiples of their size in absolute positions; positions outside the chunk count as zeros.
/// Scores are summed over the heads of the group. The first block and the diagonal block are always read.
struct XAttention {
    stride: usize,
    block: usize,
    threshold: f32,
    tail: usize,
    prepared: Prepared<BlockRows>,
}

pub(crate) const INFO: PolicyInfo = PolicyInfo {
    name: "xattention",
    source: "XAttention, Xu et al. 2025, arXiv:2503.16428",
    saves: "compute, traffic",
    traits: Traits {
        depends_on_chunks: true,
        recall: Recall::AtTheEnd,
        keys: KeyUse::Scanned,
        estimate: Some(EstimateKind::Blocks),
        automatic: true,
        work: Some(work),
        budget: Some(BudgetParameter::mass("threshold")),
        ..Traits::PREFILL
    },
    parameters: &[
        ParameterInfo {
            name: "stride",
            default: "8",
            meaning: "queries and keys summed into one",
            kind: ParameterKind::PowerOfTwo { min: 1, max: 16 },
        },
        ParameterInfo {
            name: "block",
            default: "128",
            meaning: "tokens in a block",
            kind: ParameterKind::PowerOfTwo { min: 16, max: 1024 },
        },
        ParameterInfo {
            name: "threshold",
            default: "0.9",
            meaning: "share of a block row's score that is read",
            kind: ParameterKind::Number { min: 0.0, max: 1.0 },
        },
        ParameterInfo::tokens("tail", "128", "last queries of the prompt that read everything"),
    ],
    build: |parameters| {
        Box::new(XAttention {
            stride: parameters.count("stride"),
            block: parameters.count("block"),
            threshold: parameters.number("threshold"),
            tail: parameters.count("tail"),
            prepared: Prepared::new(),
        })
    },
};

impl SparsePolicy for XAttention {
    fn prepare(&mut self, chunk: &QueryTile<'_>, context: &SelectContext<'_>, estimated: Option<Estimated>) {
        let rows = match estimated {
            Some(Estimated::Blocks(scores)) => self.choose(chunk, &scores),
            _ => self.block_rows(chunk, context),
        };
        self.prepared.store(chunk, context, rows);
    }

    fn estimate(&self, chunk: &QueryTile<'_>, context: &SelectContext<'_>) -> Option<Estimate> {
        let (stride, block) = (self.stride, self.block);
        (!in_tail(chunk, context, self.tail)).then_some(Estimate::Blocks { stride, block })
    }

    fn select(&self, tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        if in_tail(tile, context, self.tail) {
            return Selection::full(context.tokens);
        }
        let rows = self.prepared.find_or(tile, context, || self.block_rows(tile, context));
        rows.select(tile, context.tokens)
    }

    fn truncate(&mut self, _tokens: usize) {
        self.prepared.clear();
    }
}

impl XAttention {
    fn block_rows(&self, chunk: &QueryTile<'_>, context: &SelectContext<'_>) -> BlockRows {
        let query_blocks = query_blocks(chunk, self.block);
        let first = query_blocks.start;
        let mut scores: Vec<Vec<f32>> = query_blocks.map(|number| vec![0.0; number + 1]).collect();
        let per_block = self.block / self.stride;
        let kv = KvView {
            head_dim: chunk.head_dim,
            pages: context.pages,
        };
        let scale = context.scale / self.stride as f32;
        let mut sums = LentAntidiagonals::default();
        sums.run(chunk, &kv, context.tokens, self.stride, scale)
            .expect("pages hold the tokens they say, of the queries' head_dim, and begin where a stripe may");
        for head in 0..chunk.group {
            for number in sums.long_queries() {
                let logits = sums.row_mut(head, number);
                let seen = logits.len().min(number + 1);
                let weights = &mut logits[..seen];
                let factor = exponentiate(weights).recip() as f32;
                let row = &mut scores[number / per_block - first];
                for (sum, block) in row.iter_mut().zip(weights.chunks(per_block)) {
                    *sum += block.iter().sum::<f32>() * factor;
                }
            }
        }
        self.choose(chunk, &scores)
    }

    /// Chooses key blocks by their scores: `[query block][key block]`.
    fn choose(&self, chunk: &QueryTile<'_>, scores: &[Vec<f32>]) -> BlockRows {
        let rows = scores
            .iter()
            .map(|row| top_share(row, self.threshold, 0, |block| block == 0 || block + 1 == row.len()));
        BlockRows {
            block: self.block,
            first: query_blocks(chunk, self.block).start,
            chosen: rows.collect(),
        }
    }
}

fn work(parameters: &Parameters, chunk: &ChunkSize) -> ChunkWork {
    let (tokens, stride) = (chunk.tokens as f64, parameters.count("stride") as f64);
    let block = parameters.count("block") as f64;
    let pairs = (chunk.rows * chunk.group) as f64 * tokens;
    ChunkWork {
        // The share measured on text, plus the first and the diagonal block.
        share: (0.2 + 2.0 * block / tokens).min(1.0),
        scored: pairs / stride,
        weighed: pairs / (stride * stride),
        ranked: chunk.rows as f64 / block * tokens / block,
    }
}
