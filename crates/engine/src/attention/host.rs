//! Reads pages from main memory and farther tiers.

use std::ops::Range;

use riffle_attention::Partial;
use riffle_kv::KvCache;
use riffle_policy::PolicySet;

use crate::EngineError;
use crate::attention::{Chosen, LayerRows, NewKeys, Reader, Reads, reading};

/// Reads the cache directly, without its own state.
pub(crate) struct HostReader;

impl Reader for HostReader {
    fn beside(&self) -> Box<dyn Reader> {
        Box::new(Self)
    }

    fn append(&mut self, cache: &mut KvCache, input: &LayerRows<'_>, tokens: &Range<usize>) -> Result<(), EngineError> {
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
        chosen: &Chosen<'_>,
        partials: &mut [Partial],
    ) -> Result<(), EngineError> {
        reading::attend(&mut [cache], &[(0, Reads::new(chosen))], Some(chosen.next), partials)
    }

    fn observe(
        &mut self,
        cache: &mut KvCache,
        policies: &mut PolicySet,
        chosen: &Chosen<'_>,
        partials: Option<&[Partial]>,
    ) -> Result<(), EngineError> {
        let mut heads = reading::observed(policies, &chosen.chunk, partials);
        if !heads.is_empty() {
            reading::add_masses(cache, &chosen.chunk, &mut heads, chosen.phases())?;
            reading::show_policies(policies, &chosen.chunk, &heads);
        }
        Ok(())
    }
}
