use riffle_attention::{QueryTile, Selection, Span};

use crate::parameter::MAX_TOKENS;
use crate::{BudgetParameter, ParameterInfo, PolicyInfo, SelectContext, SparsePolicy, Traits};

/// Reads sinks and a window. The prompt's last queries and the first layers read everything.
///
/// All queries of a tile share a selection, so the dense tail begins at the first query of a tile.
struct TriShape {
    sinks: usize,
    window: usize,
    tail: usize,
    dense_layers: usize,
}

pub(crate) const INFO: PolicyInfo = PolicyInfo {
    name: "tri-shape",
    source: "Tri-shape, Li et al. 2024, arXiv:2412.10319; TriangleMix, He et al. 2025, arXiv:2507.21526",
    saves: "compute",
    traits: Traits {
        depends_on_chunks: true,
        budget: Some(BudgetParameter::tokens("window", 1.0)),
        ..Traits::PREFILL
    },
    parameters: &[
        ParameterInfo::tokens("sinks", "128", "first tokens that every query reads"),
        ParameterInfo::count(
            "window",
            "1920",
            "latest tokens that each query reads, itself included",
            1,
            MAX_TOKENS,
        ),
        ParameterInfo::tokens("tail", "100", "last queries of the prompt that read everything"),
        ParameterInfo::count("dense_layers", "0", "first layers that read everything", 0, 1 << 16),
    ],
    build: |parameters| {
        Box::new(TriShape {
            sinks: parameters.count("sinks"),
            window: parameters.count("window"),
            tail: parameters.count("tail"),
            dense_layers: parameters.count("dense_layers"),
        })
    },
};

impl SparsePolicy for TriShape {
    fn select(&self, tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        if context.layer < self.dense_layers || in_tail(tile, context, self.tail) {
            return Selection::full(context.tokens);
        }
        let sinks = Span::new(0, self.sinks.min(context.tokens));
        Selection::from_spans([sinks]).with_row_window(self.window)
    }
}

/// True if a query of the tile is among the last `tail` of the prompt.
pub(super) fn in_tail(tile: &QueryTile<'_>, context: &SelectContext<'_>, tail: usize) -> bool {
    tail > 0 && tile.start + tile.rows > context.total_tokens.saturating_sub(tail)
}
