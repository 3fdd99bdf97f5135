//! The trait of policies: selecting, and optional summaries, learning, eviction and state.

use riffle_attention::{PageView, QueryTile, Selection, Span};

use crate::{ColumnMass, Estimate, Estimated, LentScan, PolicyError, SelectContext};

/// Chooses which tokens the queries of one KV head of one layer read, in one sequence and one phase.
///
/// The catalogue entry ([`Traits`](crate::Traits)) holds what a policy *is*: its phases, the keys it looks at, whether
/// it learns. This trait holds what it *does*. Only [`select`](Self::select) is required. A policy that summarizes
/// pages, learns, evicts or persists implements the optional trait of that name and returns itself from the accessor.
/// [`build`](crate::build) refuses a policy whose accessors and catalogue entry disagree, so a wrapper that forgets to
/// forward one is noticed.
///
/// Callers hold a built [`Policy`](crate::Policy), which gives the order of calls.
pub trait SparsePolicy: Send + Sync {
    /// Selects the tokens that the tile reads. Tiles of a chunk are selected in any order, on any thread.
    ///
    /// A tile of a chunk that was not prepared counts as a chunk of its own.
    fn select(&self, tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection;

    /// Makes the estimate that [`select`](Self::select) uses for all tiles of the chunk. `estimated` is the answer to
    /// [`estimate`](Self::estimate), where the caller computed it.
    fn prepare(&mut self, _chunk: &QueryTile<'_>, _context: &SelectContext<'_>, _estimated: Option<Estimated>) {}

    /// Estimate that [`prepare`](Self::prepare) would compute from keys, if the caller may compute it instead. `None`
    /// if the policy looks at keys in another way, or at none.
    fn estimate(&self, _chunk: &QueryTile<'_>, _context: &SelectContext<'_>) -> Option<Estimate> {
        None
    }

    /// Hands over the weights of all keys, where [`prepare`](Self::prepare) computed them, so that attention need not
    /// score the keys again.
    fn take_scan(&mut self) -> Option<LentScan> {
        None
    }

    /// Forgets tokens at and after `tokens`; all of them with 0.
    fn truncate(&mut self, _tokens: usize) {}

    /// The summaries it keeps of pages.
    fn summarize(&mut self) -> Option<&mut dyn Summarize> {
        None
    }

    /// Its learning from attention mass.
    fn learn(&mut self) -> Option<&mut dyn Learn> {
        None
    }

    /// The tokens it evicts.
    fn evict(&mut self) -> Option<&mut dyn Evict> {
        None
    }

    /// The state it persists.
    fn persist(&self) -> Option<&dyn Persist> {
        None
    }
}

/// Keeps summaries of pages, so that a page need not be near when a chunk is prepared.
pub trait Summarize {
    /// Position of the first key that preparing a chunk reads: the keys before it are summarized, or not needed.
    fn keys_from(&self, context: &SelectContext<'_>) -> usize;

    /// Adds a page's keys, of `head_dim` elements, to the summaries. A page may come again when it holds more tokens, and
    /// a page that does not continue what is summarized is ignored.
    fn summarize(&mut self, page: &PageView<'_>, head_dim: usize);
}

/// Learns where the attention mass went.
pub trait Learn {
    /// Position of the first query whose mass [`observe`](Self::observe) asks for; the chunk's last query is the last
    /// one. At the end of the chunk it asks for none.
    fn observes_from(&self, context: &SelectContext<'_>) -> usize;

    /// Takes the mass of the queries that were asked for, after the chunk was attended to.
    fn observe(&mut self, mass: &ColumnMass<'_>);
}

/// Evicts tokens for good, so that their memory can be freed.
pub trait Evict {
    /// Tokens among the first `tokens` that it may still read, ascending. A missing token never comes back.
    fn retained(&self, tokens: usize) -> Vec<Span>;

    /// The cache has dropped the evicted tokens: from now on positions count the retained tokens, without gaps.
    fn close_gaps(&mut self);
}

/// Stores what keys do not give back.
pub trait Persist {
    /// Its state, for [`restored`](Self::restored).
    fn save(&self) -> Vec<u8>;

    /// A policy with the same parameters and the state that [`save`](Self::save) wrote.
    ///
    /// # Errors
    /// [`PolicyError::BadState`] when the bytes are not such a state.
    fn restored(&self, state: &[u8]) -> Result<Box<dyn SparsePolicy>, PolicyError>;

    /// A policy with the same parameters and everything that this one knows of its sequence. A policy that knows more than
    /// [`save`](Self::save) writes, such as votes for a later rollback, gives a whole copy here.
    ///
    /// # Errors
    /// As [`restored`](Self::restored).
    fn copied(&self) -> Result<Box<dyn SparsePolicy>, PolicyError> {
        self.restored(&self.save())
    }
}
