//! The indexes of signs of a sequence's keys, for the policies of both phases. They grow as tokens are appended, while
//! their keys are near. Forks share their memory, and sessions store them.

use rayon::prelude::*;
use riffle_attention::{PageView, SignIndex, Span};
use riffle_kv::KvCache;
use riffle_policy::{KeyUse, PolicyRules, PolicySet, PolicyShape, SelectContext, SignKeys};

use crate::EngineError;
use crate::attention::by_head::FollowsTokens;
use crate::attention::{AttentionState, ByHead, Policies, reading};

/// The indexes of signs of a sequence.
pub(crate) type SignIndexes = ByHead<SignKeys>;

impl SignIndexes {
    /// The indexes as bytes, by layer and KV head.
    pub(crate) fn to_records(&self) -> Vec<([usize; 2], Vec<u8>)> {
        let records = self.iter();
        records
            .map(|([layer, kv_head, _], keys)| ([*layer, *kv_head], keys.to_bytes()))
            .collect()
    }

    /// Restores from the result of `to_records`; `None` if the cache does not hold such keys.
    pub(crate) fn from_records(records: Vec<([usize; 2], Vec<u8>)>, cache: &KvCache) -> Option<Self> {
        let shape = cache.shape();
        let of_head = |([layer, kv_head], bytes): ([usize; 2], Vec<u8>)| {
            let is_there = layer < shape.layers.count() && kv_head < shape.layer(layer).kv_heads;
            let width = is_there.then(|| shape.layer(layer).key_width)?;
            let keys = SignKeys::from_bytes(&bytes, width)?;
            (keys.tokens() <= cache.head_tokens(layer, kv_head)).then_some(([layer, kv_head, 0], keys))
        };
        records.into_iter().map(of_head).collect()
    }

    /// The context with the index of its KV head, without pages.
    pub(super) fn shown_in<'c>(&'c self, context: &SelectContext<'_>) -> SelectContext<'c> {
        SelectContext {
            pages: &[],
            signs: self.get([context.layer, context.kv_head, 0]),
            ..*context
        }
    }
}

impl FollowsTokens for SignKeys {
    fn tokens(&self) -> usize {
        SignKeys::tokens(self)
    }

    fn truncate(&mut self, tokens: usize) {
        SignKeys::truncate(self, tokens);
    }
}

impl Policies {
    /// True if a policy of some phase reads the index of signs of a layer's KV head.
    fn read_signs(&self, layer: usize, kv_head: usize) -> bool {
        let of_head = |policies: &PolicySet| policies.layer(layer)[kv_head].traits().keys;
        let sets = [&self.prefill, &self.decode].into_iter().chain(&self.watchers);
        sets.map(of_head).any(|keys| keys == KeyUse::Indexed)
    }
}

impl AttentionState {
    /// Adds the cached keys of a layer that its indexes of signs lack, from any tier.
    pub(crate) fn extend_signs(&mut self, layer: usize) -> Result<(), EngineError> {
        let shape = self.cache.shape();
        let (page_tokens, head_dim) = (shape.page_tokens, shape.layer(layer).key_width);
        let mut wanted = vec![Vec::new(); shape.layer(layer).kv_heads];
        for (kv_head, wanted) in wanted.iter_mut().enumerate() {
            if !self.policies.read_signs(layer, kv_head) {
                continue;
            }
            let known = self.signs.get_or([layer, kv_head, 0], SignKeys::default).tokens();
            let held = self.cache.head_tokens(layer, kv_head);
            if known < held {
                wanted.push(reading::pages_of(&Span::new(known, held), page_tokens));
            }
        }
        if wanted.iter().all(Vec::is_empty) {
            return Ok(());
        }
        let Self { cache, signs, .. } = self;
        cache.stream::<EngineError>(layer, Some(&wanted), None, &mut |pages| {
            let heads: Vec<(usize, &mut SignKeys)> = signs.of_layer_mut(layer).collect();
            heads
                .into_par_iter()
                .for_each(|(kv_head, keys)| extend(keys, &pages[kv_head], head_dim));
            Ok(())
        })
    }
}

/// Adds the keys of consecutive pages that the index lacks.
fn extend(keys: &mut SignKeys, pages: &[PageView<'_>], head_dim: usize) {
    let end = pages.last().map_or(0, |page| page.start + page.tokens);
    keys.extend(pages, head_dim, end.max(keys.tokens()));
}

/// Bytes of the indexes of signs under some rules of either phase, for `tokens` tokens.
pub(crate) fn sign_index_bytes(rules: [&PolicyRules; 2], layers: &[PolicyShape], tokens: usize) -> u64 {
    if !rules.iter().any(|rules| rules.reads_signs()) {
        return 0;
    }
    let of_layer = |shape: &PolicyShape| SignIndex::bytes_per_token(shape.head_dim) * shape.kv_heads as f64;
    (layers.iter().map(of_layer).sum::<f64>() * tokens as f64) as u64
}
