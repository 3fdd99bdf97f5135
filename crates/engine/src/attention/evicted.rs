//! Counts evicted tokens for each head.

use riffle_attention::Span;
use riffle_kv::{CacheShape, KvError};
use serde::{Deserialize, Serialize};

/// Pages are freed when there is one empty page for this many remaining ones. Freeing moves tokens; rare moves cost
/// little per token.
const WORTH: usize = 8;

/// Number of evicted tokens of each (layer, KV head).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Evicted {
    /// Evicted tokens, `[layers, kv_heads]`; empty if there are none.
    evicted_tokens: Vec<usize>,
    /// The sequence cannot return to lengths below this one, because earlier tokens were evicted.
    pub(crate) since: usize,
}

impl Evicted {
    /// Evicted tokens of a (layer, KV head).
    pub(crate) fn evicted_tokens(&self, shape: &CacheShape, layer: usize, kv_head: usize) -> usize {
        let at = shape.tables_of(layer).start + kv_head;
        self.evicted_tokens.get(at).copied().unwrap_or(0)
    }

    /// Evicted tokens of each KV head of a layer.
    pub(crate) fn of_layer(&self, shape: &CacheShape, layer: usize) -> Vec<usize> {
        let of_table = |table: usize| self.evicted_tokens.get(table).copied().unwrap_or(0);
        shape.tables_of(layer).map(of_table).collect()
    }

    /// True if the sequence can return to its first `tokens` tokens.
    pub(crate) fn reaches(&self, tokens: usize) -> bool {
        tokens >= self.since
    }

    /// Records that the sequence can no longer return to fewer than `tokens` tokens.
    pub(crate) fn forbid_below(&mut self, tokens: usize) {
        self.since = self.since.max(tokens);
    }

    /// Adds evicted tokens of a (layer, KV head).
    pub(crate) fn add(&mut self, shape: &CacheShape, layer: usize, kv_head: usize, tokens: usize) {
        self.evicted_tokens.resize(shape.tables(), 0);
        self.evicted_tokens[shape.tables_of(layer).start + kv_head] += tokens;
    }

    /// Adds tokens that all heads of some layers never stored, for a sequence of `length` tokens.
    pub(crate) fn add_unread(&mut self, shape: &CacheShape, layers: &[usize], tokens: usize, length: usize) {
        for layer in layers {
            for kv_head in 0..shape.layer(*layer).kv_heads {
                self.add(shape, *layer, kv_head, tokens);
            }
        }
        self.since = length;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.evicted_tokens.is_empty()
    }

    /// True if these counts fit a cache: in each head, evicted tokens and `held` tokens, `[layers, kv_heads]`, add up
    /// to `tokens`.
    pub(crate) fn leaves(&self, tokens: usize, held: &[usize]) -> bool {
        let evicted = self.evicted_tokens.iter().copied().chain(std::iter::repeat(0));
        let sound = self.is_empty() || self.evicted_tokens.len() == held.len();
        sound
            && self.since <= tokens
            && held
                .iter()
                .zip(evicted)
                .all(|(held, evicted)| held.checked_add(evicted) == Some(tokens))
    }
}

/// True if an eviction of all but `retained` would empty enough pages of a head with `held` tokens. Fewer pages are not
/// worth the work.
pub(crate) fn runs_empty(shape: &CacheShape, held: usize, retained: &[Span]) -> bool {
    let kept: usize = retained.iter().map(Span::len).sum();
    let left = kept.div_ceil(shape.page_tokens);
    let empty = held.div_ceil(shape.page_tokens) - left;
    empty >= (left / WORTH).max(1)
}

/// True if an operation on pages failed for lack of room.
pub(crate) fn lacks_room(error: &KvError) -> bool {
    matches!(
        error,
        KvError::Budget { .. }
            | KvError::NearBudget { .. }
            | KvError::DiskBudget { .. }
            | KvError::Disk { .. }
            | KvError::Memory { .. }
    )
}
