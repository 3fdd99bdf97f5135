use riffle_attention::{AttendOptions, KvView, QueryTile, Selection};

use crate::blocks::{BlockRows, PeakBlocks};
use crate::cost::{ChunkSize, ChunkWork};
use crate::parameter::Parameters;
use crate::policies::tri_shape::in_tail;
use crate::prepared::Prepared;
use crate::scratch::LentMaxima;
use crate::{
    BudgetParameter, Estimated, KeyUse, ParameterInfo, ParameterKind, PolicyInfo, Recall, SelectContext, SparsePolicy,
    Traits,
};

/// Reads the blocks in which some query has a peak.
///
/// All queries are multiplied with all keys in 8 bits. This gives the largest logit of every query in every block of
/// keys. A query has a peak in a block with at least `peak` of the softmax over these largest logits. A block of
/// queries reads the peaks of all its queries and heads, the first block and its own block.
///
/// Estimates from means or sums miss a fact that few queries need; here a single query is enough. A query has at most
/// 1 / `peak` peaks. A query with even attention has none.
struct Peaks {
    peak: f32,
    block: usize,
    tail: usize,
    prepared: Prepared<BlockRows>,
}

pub(crate) const INFO: PolicyInfo = PolicyInfo {
    name: "peaks",
    source: "Scores of all pairs in low precision, after the lightning indexer of DeepSeek-V3.2 (2025), without training",
    saves: "compute, traffic of values",
    traits: Traits {
        depends_on_chunks: true,
        recall: Recall::Anywhere,
        keys: KeyUse::Scanned,
        work: Some(work),
        stored_bytes: |_, _| 8.0,
        budget: Some(BudgetParameter::falling("peak", 1e-4, 1.0)),
        ..Traits::PREFILL
    },
    parameters: &[
        ParameterInfo {
            name: "peak",
            default: "0.05",
            meaning: "share of a query's softmax over the blocks' largest logits from which on it reads a block",
            kind: ParameterKind::Number { min: 0.0, max: 1.0 },
        },
        ParameterInfo {
            name: "block",
            default: "32",
            meaning: "tokens in a block",
            kind: ParameterKind::PowerOfTwo { min: 16, max: 1024 },
        },
        ParameterInfo::tokens("tail", "128", "last queries of the prompt that read everything"),
    ],
    build: |parameters| {
        Box::new(Peaks {
            peak: parameters.number("peak"),
            block: parameters.count("block"),
            tail: parameters.count("tail"),
            prepared: Prepared::new(),
        })
    },
};

impl SparsePolicy for Peaks {
    fn prepare(&mut self, chunk: &QueryTile<'_>, context: &SelectContext<'_>, _: Option<Estimated>) {
        let rows = self.block_rows(chunk, context);
        self.prepared.store(chunk, context, rows);
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

impl Peaks {
    fn block_rows(&self, chunk: &QueryTile<'_>, context: &SelectContext<'_>) -> BlockRows {
        let mut read = PeakBlocks::new(chunk, self.block, |own, block| block == 0 || block == own);
        let kv = KvView {
            head_dim: chunk.head_dim,
            pages: context.pages,
        };
        let options = AttendOptions::new(context.scale).with_soft_cap(context.soft_cap);
        let mut maxima = LentMaxima::default();
        maxima
            .run(chunk, &kv, context.tokens, self.block, &options)
            .expect("pages hold the tokens they say, of the queries' head_dim, and begin where a stripe may");
        for query in 0..maxima.queries() {
            let token = chunk.start + query / chunk.group;
            read.add(token, &mut maxima.row_mut(query)[..=token / self.block], self.peak);
        }
        read.rows()
    }
}

fn work(parameters: &Parameters, chunk: &ChunkSize) -> ChunkWork {
    /// Cost of a product of 8-bit integers relative to single precision.
    const BYTE_PRODUCT: f64 = 0.35;
    let (tokens, block) = (chunk.tokens as f64, parameters.count("block") as f64);
    let pairs = chunk.pairs();
    ChunkWork {
        // As measured on text with blocks of 32: 23 to 30% at 4K tokens, depending on the model.
        share: (0.03 + 28.0 * block / tokens).min(1.0),
        scored: BYTE_PRODUCT * pairs,
        weighed: pairs / block,
        ranked: 0.0,
    }
}
