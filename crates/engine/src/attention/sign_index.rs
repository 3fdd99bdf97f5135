//! The indexes of signs of a sequence's keys, for the policies of both phases. They grow as tokens are appended, while
//! their keys are near. Forks share their memory, and sessions store them.

use rayon::prelude::*;
use riffle_attention::{PageView, Span};
use riffle_policy::{KeyUse, PolicyRules, PolicySet, PolicyShape, SelectContext, SignKeys};

use crate::EngineError;
use crate::attention::by_head::{FollowsTokens, Recorded};
use crate::attention::{AttentionState, ByHead, Policies, reading};

/// The indexes of signs of a sequence.
pub(crate) type SignIndexes = ByHead<SignKeys>;

impl SignIndexes {
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

impl Recorded for SignKeys {
    fn to_bytes(&self) -> Vec<u8> {
        SignKeys::to_bytes(self)
    }

    fn from_bytes(bytes: &[u8], key_width: usize) -> Option<Self> {
        SignKeys::from_bytes(bytes, key_width)
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
        let (page_tokens, shape) = (shape.page_tokens, shape.layer(layer));
        let mut wanted = Vec::new();
        for kv_head in (0..shape.kv_heads).filter(|kv_head| self.policies.read_signs(layer, *kv_head)) {
            let known = self.signs.get_or([layer, kv_head, 0], SignKeys::default).tokens();
            let missing = Span::new(known, self.cache.head_tokens(layer, kv_head));
            if !missing.is_empty() {
                wanted.resize(shape.kv_heads, Vec::new());
                wanted[kv_head].push(reading::pages_of(&missing, page_tokens));
            }
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let head_dim = shape.key_width;
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
    let of_layer = |shape: &PolicyShape| SignKeys::most_bytes(tokens, shape.head_dim) * shape.kv_heads as f64;
    layers.iter().map(of_layer).sum::<f64>() as u64
}

#[cfg(test)]
mod tests {
    use riffle_attention::{Format, SignIndex};
    use riffle_kv::{CacheShape, KvCache, LayerShape, LayerShapes};

    use super::*;

    const HEAD_DIM: usize = 32;

    /// A cache of two layers with two KV heads and `tokens` tokens.
    fn cache(tokens: usize) -> KvCache {
        let shape = CacheShape {
            layers: LayerShapes::alike(2, LayerShape::new(2, HEAD_DIM)),
            page_tokens: 64,
            key_format: Format::F32,
            value_format: Format::F32,
        };
        let mut cache = KvCache::new(shape, None).unwrap();
        let rows = made(tokens * 2 * HEAD_DIM);
        (0..2).for_each(|layer| cache.append(layer, &rows, &rows).unwrap());
        cache
    }

    fn made(count: usize) -> Vec<f32> {
        (0..count).map(|n| (n * 7919 % 1009) as f32 / 504.5 - 1.0).collect()
    }

    /// The index of one KV head of the cache.
    fn index(cache: &KvCache, [layer, kv_head]: [usize; 2]) -> SignKeys {
        let (reader, mut keys) = (cache.read(), SignKeys::default());
        let pages: Vec<PageView<'_>> = reader.pages_from(layer, kv_head, 0).collect();
        extend(&mut keys, &pages, HEAD_DIM);
        keys
    }

    /// The indexes of some KV heads of the cache.
    fn indexes(cache: &KvCache, places: [[usize; 2]; 3]) -> SignIndexes {
        let of_place = |[layer, kv_head]: [usize; 2]| ([layer, kv_head, 0], index(cache, [layer, kv_head]));
        places.into_iter().map(of_place).collect()
    }

    #[test]
    fn records_are_restored_only_into_a_cache_that_holds_their_keys() {
        let (shorter, cache) = (cache(191), cache(200));
        let records = indexes(&cache, [[0, 0], [0, 1], [1, 1]]).to_records();
        let restored = SignIndexes::from_records(records.clone(), &cache).unwrap();
        // The keys after the last whole segment are read again.
        assert!(restored.iter().all(|(_, keys)| keys.tokens() == 192));
        assert_eq!(restored.to_records(), records);
        let at = |place: [usize; 2]| vec![(place, records[0].1.clone())];
        assert!(SignIndexes::from_records(at([1, 0]), &cache).is_some());
        assert!(SignIndexes::from_records(at([2, 0]), &cache).is_none());
        assert!(SignIndexes::from_records(at([0, 2]), &cache).is_none());
        assert!(SignIndexes::from_records(at([0, 0]), &shorter).is_none());
        let mut narrow = SignIndex::default();
        narrow.push(&mut made(SignIndex::SEGMENT * 16), 16).unwrap();
        assert!(SignIndexes::from_records(vec![([0, 0], narrow.to_bytes())], &cache).is_none());
        assert!(SignIndexes::from_records(vec![([0, 0], vec![1, 2, 3])], &cache).is_none());
    }

    #[test]
    fn states_are_cut_and_forgotten_by_head() {
        let mut indexes = indexes(&cache(200), [[0, 0], [0, 1], [1, 0]]);
        let tokens = |indexes: &SignIndexes| -> Vec<usize> { indexes.iter().map(|(_, keys)| keys.tokens()).collect() };
        indexes.truncate_layer(0, |kv_head| [usize::MAX, 130][kv_head]);
        assert_eq!(tokens(&indexes), [200, 130, 200]);
        assert_eq!(indexes.of_layer_mut(0).count(), 2);
        indexes.forget(0, 0);
        assert_eq!(tokens(&indexes), [130, 200]);
        assert!(indexes.get([0, 0, 0]).is_none());
    }
}
