//! State of KV heads that follows from their cached tokens: indexes of keys, means of blocks.

use std::collections::BTreeMap;

/// State of the tokens that a KV head holds, from the first on.
pub(crate) trait FollowsTokens {
    /// Number of tokens in the state.
    fn tokens(&self) -> usize;

    /// Removes tokens at and after `tokens`, perhaps a few more.
    fn truncate(&mut self, tokens: usize);
}

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
