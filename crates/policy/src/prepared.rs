//! Estimates made once for a chunk and used by all its tiles.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use riffle_attention::QueryTile;

use crate::SelectContext;

/// The latest estimate of each KV head.
pub(crate) struct Prepared<T> {
    latest: BTreeMap<usize, Estimate<T>>,
}

struct Estimate<T> {
    layer: usize,
    tokens: usize,
    queries: Range<usize>,
    content: T,
}

impl<T: Clone> Prepared<T> {
    pub(crate) fn new() -> Self {
        Self {
            latest: BTreeMap::new(),
        }
    }

    pub(crate) fn store(&mut self, chunk: &QueryTile<'_>, context: &SelectContext<'_>, content: T) {
        let estimate = Estimate {
            layer: context.layer,
            tokens: context.tokens,
            queries: chunk.start..chunk.start + chunk.rows,
            content,
        };
        self.latest.insert(context.kv_head, estimate);
    }

    /// The estimate of the chunk that holds the tile, or one made of the tile.
    pub(crate) fn find_or(
        &self,
        tile: &QueryTile<'_>,
        context: &SelectContext<'_>,
        estimate: impl FnOnce() -> T,
    ) -> Cow<'_, T> {
        let found = self.latest.get(&context.kv_head).filter(|found| {
            found.layer == context.layer
                && found.tokens == context.tokens
                && found.queries.start <= tile.start
                && tile.start + tile.rows <= found.queries.end
        });
        found.map_or_else(|| Cow::Owned(estimate()), |found| Cow::Borrowed(&found.content))
    }

    /// The content stored last for a KV head.
    pub(crate) fn latest(&self, kv_head: usize) -> Option<&T> {
        self.latest.get(&kv_head).map(|found| &found.content)
    }

    pub(crate) fn clear(&mut self) {
        self.latest.clear();
    }
}
