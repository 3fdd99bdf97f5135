//! The trait of policies: selecting, and optional summaries, learning, eviction and state.

use riffle_attention::{PageView, QueryTile, Selection, Span};

use crate::{ColumnMass, Estimate, Estimated, LentScan, PolicyError, SelectContext};

/// Selects the tokens that the queries of one KV head of one layer read, in one sequence and one phase.
///
/// The catalogue entry ([`Traits`](crate::Traits)) describes a policy: its phases, the keys it reads, its learning.
/// This trait is its behaviour. Only [`select`](Self::select) is required. A policy that summarizes pages, learns,
/// evicts or persists implements the optional trait of this name and returns itself from the accessor.
/// [`build`](crate::build) refuses a policy whose accessors and catalogue entry disagree, which detects a wrapper
/// that forgets to forward one.
///
/// Callers use a built [`Policy`](crate::Policy), whose documentation gives the order of calls.
pub trait SparsePolicy: Send + Sync {
    /// Selects the tokens that the tile reads. Tiles of a chunk are selected in any order, on any thread.
    ///
    /// If its chunk was not prepared, the tile counts as a chunk of its own.
    fn select(&self, tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection;

    /// Computes the estimate that [`select`](Self::select) uses for all tiles of the chunk. `estimated` is the result
    /// of [`estimate`](Self::estimate), if the caller computed it.
    fn prepare(&mut self, _chunk: &QueryTile<'_>, _context: &SelectContext<'_>, _estimated: Option<Estimated>) {}

    /// The estimate that [`prepare`](Self::prepare) would compute from keys, if the caller may compute it instead.
    /// `None` if the policy reads keys in another way, or none.
    fn estimate(&self, _chunk: &QueryTile<'_>, _context: &SelectContext<'_>) -> Option<Estimate> {
        None
    }

    /// Returns the weights of all keys, if [`prepare`](Self::prepare) computed them, so that attention need not score
    /// the keys again.
    fn take_scan(&mut self) -> Option<LentScan> {
        None
    }

    /// Removes tokens at and after `tokens`; 0 removes all.
    fn truncate(&mut self, _tokens: usize) {}

    /// Access to summaries of pages, if the policy keeps them.
    fn summarize(&mut self) -> Option<&mut dyn Summarize> {
        None
    }

    /// Access to learning from attention mass.
    fn learn(&mut self) -> Option<&mut dyn Learn> {
        None
    }

    /// Access to eviction.
    fn evict(&mut self) -> Option<&mut dyn Evict> {
        None
    }

    /// Access to persistent state.
    fn persist(&self) -> Option<&dyn Persist> {
        None
    }
}

/// Keeps summaries of pages, so that a page need not be near when a chunk is prepared.
pub trait Summarize {
    /// Position of the first key that preparing a chunk reads: earlier keys are summarized, or not needed.
    fn keys_from(&self, context: &SelectContext<'_>) -> usize;

    /// Adds a page's keys, of `head_dim` elements, to the summaries. A page may be passed again after it got more
    /// tokens. A page that does not continue the summaries is ignored.
    fn summarize(&mut self, page: &PageView<'_>, head_dim: usize);
}

/// Learns from attention mass.
pub trait Learn {
    /// Position of the first query whose mass [`observe`](Self::observe) needs; at most the chunk's last query. The
    /// end of the chunk means none.
    fn observes_from(&self, context: &SelectContext<'_>) -> usize;

    /// Receives the mass of the requested queries, after the chunk's attention.
    fn observe(&mut self, mass: &ColumnMass<'_>);
}

/// Evicts tokens for good, so that their memory can be freed.
pub trait Evict {
    /// Tokens among the first `tokens` that the policy may still read, ascending. A missing token never returns.
    fn retained(&self, tokens: usize) -> Vec<Span>;

    /// Called after the cache dropped the evicted tokens: from now on positions count retained tokens, without gaps.
    fn close_gaps(&mut self);
}

/// Stores state that keys cannot restore.
pub trait Persist {
    /// The state, for [`restored`](Self::restored).
    fn save(&self) -> Vec<u8>;

    /// A policy with the same parameters and the state that [`save`](Self::save) wrote.
    ///
    /// # Errors
    /// [`PolicyError::BadState`] if the bytes are not such a state.
    fn restored(&self, state: &[u8]) -> Result<Box<dyn SparsePolicy>, PolicyError>;

    /// A policy with the same parameters and all knowledge of this one about its sequence. A policy with more state
    /// than [`save`](Self::save) writes, such as votes for a later rollback, returns a complete copy here.
    ///
    /// # Errors
    /// As [`restored`](Self::restored).
    fn copied(&self) -> Result<Box<dyn SparsePolicy>, PolicyError> {
        self.restored(&self.save())
    }
}
