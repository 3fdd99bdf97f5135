//! State of KV heads that follows from their cached tokens: indexes of keys, means of blocks.

use std::collections::BTreeMap;

use riffle_kv::KvCache;

/// State of the tokens that a KV head holds, from the first on.
pub(crate) trait FollowsTokens {
    /// Number of tokens in the state.
    fn tokens(&self) -> usize;

    /// Removes tokens at and after `tokens`, perhaps a few more.
    fn truncate(&mut self, tokens: usize);
}

/// State that sessions store.
pub(crate) trait Recorded: FollowsTokens + Sized {
    fn to_bytes(&self) -> Vec<u8>;

    /// From the result of `to_bytes`, for keys of `key_width` elements; `None` if the bytes are damaged.
    fn from_bytes(bytes: &[u8], key_width: usize) -> Option<Self>;
}

/// The bytes of a recorded state, with its layer and KV head.
pub(crate) type HeadRecord = ([usize; 2], Vec<u8>);

/// States by (layer, KV head), and by another number if a head has several.
#[derive(Clone)]
pub(crate) struct ByHead<T> {
    heads: BTreeMap<[usize; 3], T>,
}

impl<T> Default for ByHead<T> {
    fn default() -> Self {
        Self { heads: BTreeMap::new() }
    }
}

impl<T: FollowsTokens> ByHead<T> {
    pub(crate) fn get(&self, place: [usize; 3]) -> Option<&T> {
        self.heads.get(&place)
    }

    /// The state at a place, from `make` if there is none.
    pub(crate) fn get_or(&mut self, place: [usize; 3], make: impl FnOnce() -> T) -> &mut T {
        self.heads.entry(place).or_insert_with(make)
    }

    /// The states of one layer, by KV head.
    pub(crate) fn of_layer_mut(&mut self, layer: usize) -> impl Iterator<Item = (usize, &mut T)> {
        let states = self.heads.range_mut([layer, 0, 0]..[layer + 1, 0, 0]);
        states.map(|([_, kv_head, _], state)| (*kv_head, state))
    }

    /// All states with their places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[usize; 3], &T)> {
        self.heads.iter()
    }

    /// Removes all states of a KV head.
    pub(crate) fn forget(&mut self, layer: usize, kv_head: usize) {
        self.heads.retain(|place, _| place[..2] != [layer, kv_head]);
    }

    /// Removes tokens at and after `tokens`.
    pub(crate) fn truncate(&mut self, tokens: usize) {
        self.heads.values_mut().for_each(|state| cut(state, tokens));
    }

    /// Removes tokens at and after `tokens(kv_head)` in one layer.
    pub(crate) fn truncate_layer(&mut self, layer: usize, tokens: impl Fn(usize) -> usize) {
        self.of_layer_mut(layer)
            .for_each(|(kv_head, state)| cut(state, tokens(kv_head)));
    }
}

impl<T: Recorded> ByHead<T> {
    /// The states as bytes, by layer and KV head.
    pub(crate) fn to_records(&self) -> Vec<HeadRecord> {
        let records = self.iter();
        records
            .map(|([layer, kv_head, _], state)| ([*layer, *kv_head], state.to_bytes()))
            .collect()
    }

    /// Restores from the result of `to_records`; `None` if the cache does not hold such tokens.
    pub(crate) fn from_records(records: Vec<HeadRecord>, cache: &KvCache) -> Option<Self> {
        let shape = cache.shape();
        let of_head = |([layer, kv_head], bytes): HeadRecord| {
            let is_there = layer < shape.layers.count() && kv_head < shape.layer(layer).kv_heads;
            let width = is_there.then(|| shape.layer(layer).key_width)?;
            let state = T::from_bytes(&bytes, width)?;
            (state.tokens() <= cache.head_tokens(layer, kv_head)).then_some(([layer, kv_head, 0], state))
        };
        records.into_iter().map(of_head).collect()
    }
}

fn cut(state: &mut impl FollowsTokens, tokens: usize) {
    if tokens < state.tokens() {
        state.truncate(tokens);
    }
}

impl<T> FromIterator<([usize; 3], T)> for ByHead<T> {
    fn from_iter<I: IntoIterator<Item = ([usize; 3], T)>>(states: I) -> Self {
        Self {
            heads: states.into_iter().collect(),
        }
    }
}
