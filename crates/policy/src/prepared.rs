//! An estimate that is computed once for a chunk and used by all its tiles.

use std::borrow::Cow;
use std::ops::Range;

use riffle_attention::QueryTile;

use crate::SelectContext;

/// The estimate of the chunk prepared last. [`SparsePolicy::prepare`](crate::SparsePolicy::prepare) stores it, and
/// [`select`](crate::SparsePolicy::select) finds it. [`truncate`](crate::SparsePolicy::truncate) must
/// [`clear`](Self::clear) it.
pub struct Prepared<T> {
    latest: Option<OfChunk<T>>,
}

struct OfChunk<T> {
    tokens: usize,
    queries: Range<usize>,
    estimate: T,
}

impl<T: Clone> Prepared<T> {
    /// Creates an empty store, without an estimate.
    pub fn new() -> Self {
        Self { latest: None }
    }

    /// Stores the estimate of a chunk, replacing the previous chunk's.
    pub fn store(&mut self, chunk: &QueryTile<'_>, context: &SelectContext<'_>, estimate: T) {
        self.latest = Some(OfChunk {
            tokens: context.tokens,
            queries: queries(chunk),
            estimate,
        });
    }

    /// The estimate of the chunk that contains the tile; otherwise the result of `make` for the tile.
    pub fn find_or(&self, tile: &QueryTile<'_>, context: &SelectContext<'_>, make: impl FnOnce() -> T) -> Cow<'_, T> {
        let wanted = queries(tile);
        let found = self.at(context).filter(|of_chunk| {
            let queries = &of_chunk.queries;
            queries.start <= wanted.start && wanted.end <= queries.end
        });
        found.map_or_else(|| Cow::Owned(make()), |found| Cow::Borrowed(&found.estimate))
    }

    /// The estimate of exactly these queries; `None` if there is none.
    pub fn get(&self, tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Option<&T> {
        let found = self.at(context).filter(|of_chunk| of_chunk.queries == queries(tile));
        found.map(|found| &found.estimate)
    }

    /// Removes the estimate.
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
