use riffle_attention::{QueryTile, Selection};

use crate::cost::ChunkWork;
use crate::{PolicyInfo, Recall, SelectContext, SparsePolicy, Traits};

/// Reads every token: the baseline of all comparisons.
struct Full;

pub(crate) const INFO: PolicyInfo = PolicyInfo {
    name: "full",
    source: "Dense causal attention",
    saves: "nothing",
    traits: Traits {
        dense: true,
        recall: Recall::Anywhere,
        automatic: true,
        work: Some(|_, _| ChunkWork::reading(1.0)),
        ..Traits::PLAIN
    },
    parameters: &[],
    build: |_| Box::new(Full),
};

impl SparsePolicy for Full {
    fn select(&self, _tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        Selection::full(context.tokens)
    }
}
