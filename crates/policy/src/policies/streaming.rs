use riffle_attention::{QueryTile, Selection, Span};

use crate::{ParameterInfo, PolicyInfo, Recall, SelectContext, SparsePolicy};

/// Reads the first tokens and the latest ones; nothing between, so what stands there cannot be recalled.
struct Streaming {
    sinks: usize,
    window: usize,
}

pub(crate) const INFO: PolicyInfo = PolicyInfo {
    name: "streaming",
    supports_prefill: true,
    supports_decode: true,
    recall: Recall::None,
    saves: "compute, traffic",
    source: "StreamingLLM, Xiao et al. 2023, arXiv:2309.17453",
    chunk: None,
    work: None,
    stored_bytes: |_, _| 0.0,
    parameters: &[
        ParameterInfo::tokens("sinks", "64", "first tokens that every query reads"),
        ParameterInfo::count(
            "window",
            "1024",
            "latest tokens that each query reads, itself included",
            1,
            crate::parameter::MAX_TOKENS,
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
    fn scans_keys(&self) -> bool {
        false
    }

    fn keys_from(&self, context: &SelectContext<'_>) -> usize {
        context.tokens
    }

    fn select(&self, _queries: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        let sinks = Span::new(0, self.sinks.min(context.tokens));
        Selection::from_spans([sinks]).with_row_window(self.window)
    }
}
