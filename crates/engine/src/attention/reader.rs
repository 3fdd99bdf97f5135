//! Access to the pages of one sequence, in main memory or on a device.

use std::ops::Range;

use riffle_attention::Partial;
use riffle_device::TransferCount;
use riffle_kv::KvCache;
use riffle_policy::{Estimate, Estimated, PolicySet};

use crate::EngineError;
use crate::attention::{Chosen, Chunk, LayerRows, Rotation, ShownKeys};

/// Appends to the pages of one sequence and attends to them. One implementation reads main memory and farther tiers, the other a device.
/// Methods with a body are for copies beside main memory: without any there is nothing to do.
pub(crate) trait Reader: Send + Sync {
    /// A reader of another sequence, none of whose pages it holds.
    fn beside(&self) -> Box<dyn Reader>;

    /// A reader of another sequence that goes on from where this one is.
    fn fork(&mut self) -> Box<dyn Reader> {
        self.beside()
    }

    /// Adds keys and values of some rows to the cache.
    fn append(&mut self, cache: &mut KvCache, input: &LayerRows<'_>, tokens: &Range<usize>) -> Result<(), EngineError>;

    /// Attends a chunk to its selections; `partials`, one for each tile, are added to unless the result stays on a device.
    fn attend(&mut self, cache: &mut KvCache, chosen: &Chosen<'_>, partials: &mut [Partial])
    -> Result<(), EngineError>;

    /// Tells policies the mass that the queries gave which they ask for. `partials` are `None` where the result stays on a device.
    fn observe(
        &mut self,
        cache: &mut KvCache,
        policies: &mut PolicySet,
        chosen: &Chosen<'_>,
        partials: Option<&[Partial]>,
    ) -> Result<(), EngineError>;

    /// Completes a result that stays where it was computed; values are rotated back where the cache holds them rotated.
    fn complete(&mut self, _chosen: &Chosen<'_>, _rotation: Rotation) -> Result<(), EngineError> {
        Ok(())
    }

    /// Begins to bring the pages near that the layer `next` is expected to read.
    fn read_ahead(&mut self, _cache: &KvCache, _next: usize) -> Result<(), EngineError> {
        Ok(())
    }

    /// Forgets the pages behind the first `tokens` tokens.
    fn truncate(&mut self, _tokens: usize) {}

    /// Forgets the pages behind the first `tokens` tokens of a (layer, KV head).
    fn truncate_head(&mut self, _layer: usize, _kv_head: usize, _tokens: usize) {}

    /// True if a result may stay where it was computed, and come to main memory only when it is asked for.
    fn may_keep_results(&self) -> bool {
        false
    }

    /// Computes what policies ask of keys; `None` where they look at keys in main memory themselves.
    fn estimates(&mut self) -> Option<&mut dyn KeyEstimates> {
        None
    }

    /// Milliseconds of a call whose result stayed on a device, once it has run; 0 without one since the last question.
    fn attended_ms(&mut self) -> Result<f64, EngineError> {
        Ok(0.0)
    }

    /// Bytes of the sequence's pages beside those in main memory.
    fn resident_bytes(&self) -> u64 {
        0
    }

    /// Bytes that have travelled between main memory and a device, for all its sequences.
    fn transferred(&self) -> TransferCount {
        TransferCount::default()
    }
}

/// Looks at keys in place of policies.
pub(crate) trait KeyEstimates {
    /// Scores of the blocks of every KV head by their bounds, for all queries of a chunk at once; `None` without room for bounds.
    fn bound_scores(
        &mut self,
        cache: &mut KvCache,
        chunk: &Chunk<'_>,
        block: usize,
    ) -> Result<Option<Vec<Estimated>>, EngineError>;

    /// Takes the keys of a layer that its bounds of blocks lack into them; false where there is no room.
    fn extend_bounds(&mut self, cache: &mut KvCache, layer: usize, block: usize) -> Result<bool, EngineError>;

    /// Answers to the questions of policies, by KV head; `None` where the policy looks at the keys itself.
    fn estimate(
        &mut self,
        keys: &ShownKeys<'_>,
        chunk: &Chunk<'_>,
        asked: &[Option<Estimate>],
    ) -> Result<Vec<Option<Estimated>>, EngineError>;

    /// True if means of a layer's blocks can be kept, of which each KV head reads some of so many tokens or none.
    fn keeps_means(&mut self, blocks: &[Option<usize>], tokens: usize) -> bool;
}
