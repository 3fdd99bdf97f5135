use riffle_attention::{QueryTile, Selection, Span};

use crate::cost::{ChunkSize, ChunkWork};
use crate::parameter::{MAX_TOKENS, Parameters};
use crate::{BudgetParameter, ParameterInfo, PolicyInfo, SelectContext, SparsePolicy, Traits};

/// Reads the first tokens and the latest ones. Tokens between them cannot be recalled.
struct Streaming {
    sinks: usize,
    window: usize,
}

pub(crate) const INFO: PolicyInfo = PolicyInfo {
    name: "streaming",
    source: "StreamingLLM, Xiao et al. 2023, arXiv:2309.17453",
    saves: "compute, traffic",
    traits: Traits {
        automatic: true,
        work: Some(work),
        budget: Some(BudgetParameter::tokens("window", 1.0)),
        ..Traits::PLAIN
    },
    parameters: &[
        ParameterInfo::tokens("sinks", "64", "first tokens that every query reads"),
        ParameterInfo::count(
            "window",
            "1024",
            "latest tokens that each query reads, itself included",
            1,
            MAX_TOKENS,
        ),
    ],
    build: |parameters| {
        Box::new(Streaming {
            sinks: parameters.count("sinks"),
            window: parameters.count("window"),
        })
    },
};

impl SparsePolicy for Streaming {
    fn select(&self, _tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        let sinks = Span::new(0, self.sinks.min(context.tokens));
        Selection::from_spans([sinks]).with_row_window(self.window)
    }
}

fn work(parameters: &Parameters, chunk: &ChunkSize) -> ChunkWork {
    let read = parameters.count("sinks") + parameters.count("window");
    ChunkWork::reading((read as f64 / chunk.tokens as f64).min(1.0))
}
