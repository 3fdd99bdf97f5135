//! Access to the pages of one sequence, in main memory or on a device.

use std::ops::Range;

use riffle_attention::Partial;
use riffle_device::TransferCount;
use riffle_kv::KvCache;
use riffle_policy::{Estimate, Estimated, PolicySet};

use crate::EngineError;
use crate::attention::{Chosen, Chunk, LayerRows, Rotation, ShownKeys};

/// Appends to the pages of one sequence and attends to them. One implementation reads main memory and farther tiers,
/// the other a device. Methods with a default body concern copies outside main memory; without copies there is
/// nothing to do.
pub(crate) trait Reader: Send + Sync {
    /// A reader for another sequence, without this one's pages.
    fn beside(&self) -> Box<dyn Reader>;

    /// A reader for another sequence that continues from this one's state.
    fn fork(&mut self) -> Box<dyn Reader> {
        self.beside()
    }

    /// Adds keys and values of some rows to the cache.
    fn append(&mut self, cache: &mut KvCache, input: &LayerRows<'_>, tokens: &Range<usize>) -> Result<(), EngineError>;

    /// Attends a chunk to its selections. Adds to `partials`, one per tile, unless the result stays on a device.
    fn attend(&mut self, cache: &mut KvCache, chosen: &Chosen<'_>, partials: &mut [Partial])
    -> Result<(), EngineError>;

    /// Passes the mass of the queries that policies need. `partials` are `None` if the result stays on a device.
    fn observe(
        &mut self,
        cache: &mut KvCache,
        policies: &mut PolicySet,
        chosen: &Chosen<'_>,
        partials: Option<&[Partial]>,
    ) -> Result<(), EngineError>;

    /// Completes a result that stays on a device; rotates values back if the cache stores them rotated.
    fn complete(&mut self, _chosen: &Chosen<'_>, _rotation: Rotation) -> Result<(), EngineError> {
        Ok(())
    }

    /// Begins to load the pages that the layer `next` probably reads.
    fn read_ahead(&mut self, _cache: &KvCache, _next: usize) -> Result<(), EngineError> {
        Ok(())
    }

    /// Drops the pages after the first `tokens` tokens.
    fn truncate(&mut self, _tokens: usize) {}

    /// Drops the pages after the first `tokens` tokens of a (layer, KV head).
    fn truncate_head(&mut self, _layer: usize, _kv_head: usize, _tokens: usize) {}

    /// True if a result may stay on the device, and be copied to main memory only on request.
    fn may_keep_results(&self) -> bool {
        false
    }

    /// Computes estimates from keys for policies; `None` if policies read keys in main memory themselves.
    fn estimates(&mut self) -> Option<&mut dyn KeyEstimates> {
        None
    }

    /// Milliseconds of a call whose result stayed on a device, after it has run; 0 if there was none since the last
    /// query.
    fn attended_ms(&mut self) -> Result<f64, EngineError> {
        Ok(0.0)
    }

    /// Bytes of copies of the sequence's pages outside main memory.
    fn resident_bytes(&self) -> u64 {
        0
    }

    /// Bytes copied between main memory and a device, for all its sequences.
    fn transferred(&self) -> TransferCount {
        TransferCount::default()
    }
}

/// Reads keys on behalf of policies.
pub(crate) trait KeyEstimates {
    /// Scores of the blocks of every KV head by their bounds, for all queries of a chunk together; `None` without
    /// room for bounds.
    fn bound_scores(
        &mut self,
        cache: &mut KvCache,
        chunk: &Chunk<'_>,
        block: usize,
    ) -> Result<Option<Vec<Estimated>>, EngineError>;

    /// Adds missing keys of a layer to its bounds of blocks; returns false if there is no room.
    fn extend_bounds(&mut self, cache: &mut KvCache, layer: usize, block: usize) -> Result<bool, EngineError>;

    /// The estimates that policies request, by KV head; `None` if the policy reads the keys itself.
    fn estimate(
        &mut self,
        keys: &ShownKeys<'_>,
        chunk: &Chunk<'_>,
        asked: &[Option<Estimate>],
    ) -> Result<Vec<Option<Estimated>>, EngineError>;

    /// True if means of a layer's blocks fit. Each KV head reads blocks of the given number of tokens, or none.
    fn keeps_means(&mut self, blocks: &[Option<usize>], tokens: usize) -> bool;
}
