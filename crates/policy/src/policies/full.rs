use riffle_attention::{QueryTile, Selection};

use crate::{PolicyInfo, Recall, SelectContext, SparsePolicy};

/// Reads every token: what everything else is compared with.
struct Full;

pub(crate) const INFO: PolicyInfo = PolicyInfo {
    name: "full",
    supports_prefill: true,
    supports_decode: true,
    recall: Recall::Anywhere,
    saves: "nothing",
    source: "Dense causal attention",
    chunk: None,
    work: None,
    stored_bytes: |_, _| 0.0,
    parameters: &[],
    build: |_| Box::new(Full),
};

impl SparsePolicy for Full {
    fn scans_keys(&self) -> bool {
        false
    }

    fn keys_from(&self, context: &SelectContext<'_>) -> usize {
        context.tokens
    }

    fn select(&self, _queries: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        Selection::full(context.tokens)
    }
}
