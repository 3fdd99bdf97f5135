//! An estimate that is made once for a chunk and used by all its tiles.

use std::borrow::Cow;
use std::ops::Range;

use riffle_attention::QueryTile;

use crate::SelectContext;

/// The estimate of the chunk prepared last: [`SparsePolicy::prepare`](crate::SparsePolicy::prepare) stores it and
/// [`select`](crate::SparsePolicy::select) finds it. [`truncate`](crate::SparsePolicy::truncate) has to [`clear`](Self::clear) it.
pub struct Prepared<T> {
    latest: Option<OfChunk<T>>,
}

struct OfChunk<T> {
    tokens: usize,
    queries: Range<usize>,
    estimate: T,
}

impl<T: Clone> Prepared<T> {
    /// None yet.
    pub fn new() -> Self {
        Self { latest: None }
    }

    /// Takes the estimate of a chunk in place of that of the chunk before.
    pub fn store(&mut self, chunk: &QueryTile<'_>, context: &SelectContext<'_>, estimate: T) {
        self.latest = Some(OfChunk {
            tokens: context.tokens,
            queries: queries(chunk),
            estimate,
        });
    }

    /// The estimate of the chunk that holds the tile, or the one that `make` makes of the tile.
    pub fn find_or(&self, tile: &QueryTile<'_>, context: &SelectContext<'_>, make: impl FnOnce() -> T) -> Cow<'_, T> {
        let wanted = queries(tile);
        let found = self.at(context).filter(|of_chunk| {
            let queries = &of_chunk.queries;
            queries.start <= wanted.start && wanted.end <= queries.end
        });
        found.map_or_else(|| Cow::Owned(make()), |found| Cow::Borrowed(&found.estimate))
    }

    /// Estimate of exactly these queries; `None` if none was made.
    pub fn get(&self, tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Option<&T> {
        let found = self.at(context).filter(|of_chunk| of_chunk.queries == queries(tile));
        found.map(|found| &found.estimate)
    }

    /// Forgets it.
    pub fn clear(&mut self) {
        self.latest = None;
    }

    fn at(&self, context: &SelectContext<'_>) -> Option<&OfChunk<T>> {
        self.latest
            .as_ref()
            .filter(|of_chunk| of_chunk.tokens == context.tokens)
    }
}

impl<T: Clone> Default for Prepared<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Positions of the tile's queries.
fn queries(tile: &QueryTile<'_>) -> Range<usize> {
    tile.start..tile.start + tile.rows
}
