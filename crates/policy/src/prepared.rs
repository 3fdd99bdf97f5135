//! Estimates made once for a chunk and used by all its tiles.

use std::borrow::Cow;
use std::ops::Range;

use riffle_attention::QueryTile;

use crate::SelectContext;

/// The latest estimate.
pub(crate) struct Prepared<T> {
    latest: Option<Estimate<T>>,
}

struct Estimate<T> {
    tokens: usize,
    queries: Range<usize>,
    content: T,
}

impl<T: Clone> Prepared<T> {
    pub(crate) fn new() -> Self {
        Self { latest: None }
    }

    pub(crate) fn store(&mut self, chunk: &QueryTile<'_>, context: &SelectContext<'_>, content: T) {
        self.latest = Some(Estimate {
            tokens: context.tokens,
            queries: chunk.start..chunk.start + chunk.rows,
            content,
        });
    }

    /// The estimate of the chunk that holds the tile, or one made of the tile.
    pub(crate) fn find_or(
        &self,
        tile: &QueryTile<'_>,
        context: &SelectContext<'_>,
        estimate: impl FnOnce() -> T,
    ) -> Cow<'_, T> {
        let found = self.latest.as_ref().filter(|found| {
            found.tokens == context.tokens
                && found.queries.start <= tile.start
                && tile.start + tile.rows <= found.queries.end
        });
        found.map_or_else(|| Cow::Owned(estimate()), |found| Cow::Borrowed(&found.content))
    }

    /// The estimate of just these queries, where there is one.
    pub(crate) fn of(&self, tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Option<&T> {
        let queries = tile.start..tile.start + tile.rows;
        let found = self.latest.as_ref();
        let found = found.filter(|found| found.tokens == context.tokens && found.queries == queries);
        found.map(|found| &found.content)
    }

    /// The content stored last.
    pub(crate) fn latest(&self) -> Option<&T> {
        self.latest.as_ref().map(|found| &found.content)
    }

    pub(crate) fn clear(&mut self) {
        self.latest = None;
    }
}
