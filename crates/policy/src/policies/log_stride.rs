use riffle_attention::{QueryTile, Selection, Span};

use crate::parameter::MAX_TOKENS;
use crate::{BudgetParameter, ParameterInfo, ParameterKind, PolicyInfo, SelectContext, SparsePolicy, Traits};

/// Reads a window, globals, and the tokens 2^k before each query. With `landmarks`, a query also reads the means of all
/// blocks without a token it reads.
struct LogStride {
    window: usize,
    globals: Vec<usize>,
}

pub(crate) const INFO: PolicyInfo = PolicyInfo {
    name: "log-stride",
    source: "LogSparse, Li et al. 2019, arXiv:1907.00235; globals as in Longformer and BigBird",
    saves: "compute, traffic",
    traits: Traits {
        summary_tokens: |parameters| (parameters.count("landmarks") == 1).then(|| parameters.count("block")),
        budget: Some(BudgetParameter::tokens("window", 1.0)),
        ..Traits::PLAIN
    },
    parameters: &[
        ParameterInfo::count(
            "window",
            "128",
            "latest tokens that each query reads, itself included",
            1,
            MAX_TOKENS,
        ),
        ParameterInfo {
            name: "globals",
            default: "0",
            meaning: "positions that every query reads",
            kind: ParameterKind::Positions,
        },
        ParameterInfo::count(
            "landmarks",
            "1",
            "1 reads the means of blocks that a query reads nothing else of, each as heavy as its tokens",
            0,
            1,
        ),
        ParameterInfo::count("block", "64", "tokens that a landmark stands for", 1, MAX_TOKENS),
    ],
    build: |parameters| {
        Box::new(LogStride {
            window: parameters.count("window"),
            globals: parameters.positions("globals"),
        })
    },
};

impl SparsePolicy for LogStride {
    fn select(&self, tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        let globals = self.globals.iter().filter(|position| **position < context.tokens);
        let globals = globals.map(|position| Span::new(*position, position + 1));
        Selection::from_spans(globals)
            .with_row_window(self.window)
            .with_diagonals(self.strides(tile.start + tile.rows))
    }
}

impl LogStride {
    /// Distances 2^k outside the window, below `limit`.
    fn strides(&self, limit: usize) -> impl Iterator<Item = usize> + use<> {
        let window = self.window;
        let distances = (0..usize::BITS).map(|power| 1usize << power);
        distances
            .take_while(move |distance| *distance < limit)
            .filter(move |distance| *distance >= window)
    }
}
