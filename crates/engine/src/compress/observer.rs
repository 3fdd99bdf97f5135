//! Observers of the queries of a scratch sequence.

use riffle_kv::KvCache;

use crate::EngineError;
use crate::compress::moments::Moments;
use crate::compress::reconstruction::Reconstruction;
use crate::pass::chunk::Chunk;

/// Looks at every query of the layers that see the whole sequence.
pub(crate) enum QueryObserver {
    /// The largest attention weight of each key of a chunk.
    Reconstruction(Reconstruction),
    /// Mean and covariance of queries before they were turned to their positions.
    Moments(Moments),
}

impl QueryObserver {
    /// Takes in the queries of a chunk, whose keys the cache holds.
    pub(crate) fn observe(&mut self, cache: &mut KvCache, chunk: &Chunk<'_>) -> Result<(), EngineError> {
        match self {
            Self::Reconstruction(reconstruction) => reconstruction.observe(cache, chunk),
            Self::Moments(moments) => {
                moments.observe(chunk);
                Ok(())
            }
        }
    }
}
