//! Memory of tokens that decode policies have let go of for good.
//!
//! `h2o` and `snapkv` name what they may still read. When enough has left a (layer, KV head) that pages run empty, what
//! stays moves together and the pages are freed. From then on that head counts places among the tokens it holds, as a
//! shorter sequence would: rotary angles are in the keys already, and everything that is held lies before what comes.
//! What read the head before, the other phase's policy and block means, begins anew on what is left.

use riffle_attention::Span;
use riffle_kv::{CacheShape, KvError};
use serde::{Deserialize, Serialize};

use crate::sequence::placement::{HeadSlot, Slot};
use crate::{Failure, Sequence};

/// Pages are freed once they are this part of those that stay, so that what moves costs little a token.
const WORTH: usize = 8;

/// What has left the cache, head by head.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Evicted {
    /// Tokens that have left, `[layers, kv_heads]`; empty while none has.
    evicted_tokens: Vec<usize>,
    /// Lengths below this one cannot be gone back to: tokens before it have left.
    since: usize,
}

impl Evicted {
    /// Tokens that have left a (layer, KV head).
    pub(crate) fn evicted_tokens(&self, layer: usize, kv_heads: usize, kv_head: usize) -> usize {
        self.evicted_tokens
            .get(layer * kv_heads + kv_head)
            .copied()
            .unwrap_or(0)
    }

    /// Where the token of a slot stands in a (layer, KV head), which has evicted none from there on.
    pub(crate) fn head_slot(&self, Slot(slot): Slot, layer: usize, kv_heads: usize, kv_head: usize) -> HeadSlot {
        HeadSlot(slot - self.evicted_tokens(layer, kv_heads, kv_head))
    }

    /// Whether the sequence can go back to its first `tokens` tokens.
    pub(crate) fn reaches(&self, tokens: usize) -> bool {
        tokens >= self.since
    }

    /// Lengths below this one cannot be gone back to.
    pub(crate) fn since(&self) -> usize {
        self.since
    }

    /// Counts tokens that have left a (layer, KV head).
    pub(crate) fn add(&mut self, shape: &CacheShape, layer: usize, kv_head: usize, tokens: usize) {
        self.evicted_tokens.resize(shape.layers * shape.kv_heads, 0);
        self.evicted_tokens[layer * shape.kv_heads + kv_head] += tokens;
    }

    /// Counts tokens that every head of some layers has never held, of a sequence of `length` tokens.
    pub(crate) fn add_unread(&mut self, shape: &CacheShape, layers: &[usize], tokens: usize, length: usize) {
        for layer in layers {
            for kv_head in 0..shape.kv_heads {
                self.add(shape, *layer, kv_head, tokens);
            }
        }
        self.since = length;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.evicted_tokens.is_empty()
    }

    /// Whether heads that hold `held` tokens, `[layers, kv_heads]`, hold what these left of a sequence of `tokens`.
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

impl Sequence {
    /// Frees the pages of what the decode policies will not read again. Where a page cannot be read or written meanwhile, the
    /// whole sequence has to be read again.
    pub(crate) fn evict(&mut self) -> Result<(), Box<Failure>> {
        let shape = *self.cache.shape();
        // No policy acts on a layer that has a window of its own.
        for (_, layer) in self.whole_layers() {
            for kv_head in 0..shape.kv_heads {
                let held = self.cache.head_tokens(layer, kv_head);
                let Some(retained) = self.decode.layer_mut(layer)[kv_head].retained(held) else {
                    continue;
                };
                if !runs_empty(&shape, held, &retained) {
                    continue;
                }
                let places: Vec<usize> = retained.iter().flat_map(|span| span.range()).collect();
                match self.retain_alone([layer, kv_head], &places, self.tokens.len()) {
                    Ok(()) => self.decode.layer_mut(layer)[kv_head].close_gaps(),
                    // Shared pages are copied before tokens leave them; without room for that they stay.
                    Err(error) if lacks_room(&error) && self.cache.head_tokens(layer, kv_head) == held => continue,
                    Err(error) => {
                        return Err(Box::new(Failure {
                            error: error.into(),
                            again: self.forget_all(),
                        }));
                    }
                }
            }
        }
        Ok(())
    }

    /// As [`Engine::whole_layers`].
    pub(crate) fn whole_layers(&self) -> Vec<(usize, usize)> {
        self.engine.whole_layers()
    }

    /// Keeps of a (layer, KV head) the tokens at `places` alone, ascending; every token from `since` on is among them, so that the
    /// sequence can still go back as far. What read the head before begins anew on what is left, apart from its decode policy, which
    /// the caller tells.
    ///
    /// # Errors
    /// As [`KvCache::retain`](riffle_kv::KvCache::retain): where the head holds what it held, nothing has changed.
    pub(crate) fn retain_alone(
        &mut self,
        [layer, kv_head]: [usize; 2],
        places: &[usize],
        since: usize,
    ) -> Result<(), KvError> {
        let shape = *self.cache.shape();
        let held = self.cache.head_tokens(layer, kv_head);
        self.cache.retain(layer, kv_head, places)?;
        if let Some(pages) = &mut self.device {
            pages.truncate_head(layer, kv_head, 0);
        }
        self.prefill.layer_mut(layer)[kv_head].reset();
        self.means.forget(layer, kv_head);
        self.placement.evicted.add(&shape, layer, kv_head, held - places.len());
        self.placement.evicted.since = self.placement.evicted.since.max(since);
        Ok(())
    }

    /// Cuts the cache and what is known of it at the first `tokens` tokens of a sequence that can go back there.
    pub(crate) fn cut(&mut self, tokens: usize) {
        let Slot(place) = self.placement.slot(tokens);
        if self.placement.evicted.is_empty() {
            self.cache.truncate(place);
            if let Some(pages) = &mut self.device {
                pages.truncate(place);
            }
            self.prefill.truncate(place);
            self.decode.truncate(place);
            self.means.truncate(|_, _| place);
            return;
        }
        let shape = *self.cache.shape();
        let evicted = &self.placement.evicted;
        let held =
            |layer: usize, kv_head: usize| tokens - evicted.evicted_tokens(layer, shape.kv_heads, kv_head).min(tokens);
        for layer in 0..shape.layers {
            for kv_head in 0..shape.kv_heads {
                self.cache.truncate_head(layer, kv_head, held(layer, kv_head));
                if let Some(pages) = &mut self.device {
                    pages.truncate_head(layer, kv_head, held(layer, kv_head));
                }
                self.prefill.layer_mut(layer)[kv_head].truncate(held(layer, kv_head));
                self.decode.layer_mut(layer)[kv_head].truncate(held(layer, kv_head));
            }
        }
        self.means.truncate(held);
        if tokens == 0 {
            self.placement.evicted = Evicted::default();
        }
    }
}

/// Whether so many pages of a head that holds `held` tokens would be empty without the others than `retained` that it pays to free them.
pub(crate) fn runs_empty(shape: &CacheShape, held: usize, retained: &[Span]) -> bool {
    let kept: usize = retained.iter().map(Span::len).sum();
    let left = kept.div_ceil(shape.page_tokens);
    let empty = held.div_ceil(shape.page_tokens) - left;
    empty >= (left / WORTH).max(1)
}

/// Whether an operation on pages was refused for want of room.
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
