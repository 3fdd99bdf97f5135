//! Observers of the queries of a sequence.

use riffle_attention::{AttendOptions, Partial};
use riffle_kv::KvCache;

use crate::compress::moments::Moments;
use crate::compress::reconstruction::Reconstruction;
use crate::pass::chunk::Chosen;
use crate::{AttentionWatch, EngineError};

/// Looks at every query of the layers that see the whole sequence.
pub(crate) enum QueryObserver {
    /// The largest attention weight of each key of a chunk.
    Reconstruction(Reconstruction),
    /// Mean and covariance of queries before they were turned to their positions.
    Moments(Moments),
    /// The mass that each token received.
    Watch(AttentionWatch),
}

impl QueryObserver {
    /// Takes in the queries of a chunk, whose keys the cache holds. `partials` come from what they read; `None` where that stays on a
    /// device.
    pub(crate) fn observe(
        &mut self,
        cache: &mut KvCache,
        chosen: &Chosen<'_>,
        partials: Option<&[Partial]>,
        options: &AttendOptions<'_>,
    ) -> Result<(), EngineError> {
        match self {
            Self::Reconstruction(reconstruction) => reconstruction.observe(cache, &chosen.chunk),
            Self::Moments(moments) => {
                moments.observe(&chosen.chunk);
                Ok(())
            }
            Self::Watch(watch) => watch.observe(cache, chosen, partials, options),
        }
    }
}
