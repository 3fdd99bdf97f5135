//! Pages in main memory and in the tiers behind it.

use std::ops::Range;

use riffle_attention::Partial;
use riffle_device::TransferCount;
use riffle_kv::KvCache;
use riffle_policy::PolicySet;

use crate::EngineError;
use crate::attention::chunk::Chosen;
use crate::attention::layer_rows::{LayerRows, NewKeys};
use crate::attention::reader::{KeyEstimates, ReadCall, Reader};
use crate::attention::reading;
use crate::attention::rotation::Rotation;

/// Reads the cache itself; it holds nothing of its own.
pub(crate) struct HostReader;

impl Reader for HostReader {
    fn beside(&self) -> Box<dyn Reader> {
        Box::new(Self)
    }

    fn fork(&mut self) -> Box<dyn Reader> {
        Box::new(Self)
    }

    fn append(
        &mut self,
        cache: &mut KvCache,
        input: &LayerRows<'_>,
        tokens: &Range<usize>,
        _rotation: Rotation,
    ) -> Result<(), EngineError> {
        let NewKeys::Host { keys, values } = input.new_keys else {
            unreachable!("a sequence of a device has a reader there")
        };
        let shape = cache.shape().layer(input.cache_layer);
        let part = |width: usize| tokens.start * width..tokens.end * width;
        let keys = &keys[part(shape.kv_heads * shape.key_width)];
        let values = &values[part(shape.kv_heads * shape.held_value_width())];
        Ok(cache.append(input.cache_layer, keys, values)?)
    }

    fn attend(
        &mut self,
        cache: &mut KvCache,
        call: &ReadCall<'_>,
        partials: &mut [Partial],
    ) -> Result<(), EngineError> {
        let reads = [(0, call.chosen.reads())];
        reading::attend(&mut [cache], &reads, Some(call.chosen.next), call.options, partials)
    }

    fn observe(
        &mut self,
        cache: &mut KvCache,
        policies: &mut PolicySet,
        call: &ReadCall<'_>,
        partials: Option<&[Partial]>,
    ) -> Result<(), EngineError> {
        let Some(partials) = partials else {
            unreachable!("results stay on devices alone")
        };
        reading::observe(
            cache,
            policies,
            &call.chosen.chunk,
            call.chosen.phases(),
            partials,
            call.options,
        )
    }

    fn complete(&mut self, _: &Chosen<'_>, _: &LayerRows<'_>, _: Rotation) -> Result<(), EngineError> {
        Ok(())
    }

    fn read_ahead(&mut self, _: &KvCache, _: usize) -> Result<(), EngineError> {
        Ok(())
    }

    fn truncate(&mut self, _: usize) {}

    fn truncate_head(&mut self, _: usize, _: usize, _: usize) {}

    fn may_keep_results(&self) -> bool {
        false
    }

    fn estimates(&mut self) -> Option<&mut dyn KeyEstimates> {
        None
    }

    fn attended_ms(&mut self) -> Result<f64, EngineError> {
        Ok(0.0)
    }

    fn resident_bytes(&self) -> u64 {
        0
    }

    fn transferred(&self) -> TransferCount {
        TransferCount::default()
    }
}
