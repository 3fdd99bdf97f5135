//! A beginning on its way from a shared store into a sequence.

use std::sync::Arc;
use std::time::Duration;

use super::envelope::{layers_of, slices};
use super::loading::{Loading, Taken};
use super::{SharedBlocks, blocks_of};
use crate::{CacheShape, KvCache, KvError};

/// A request to fetch a beginning.
#[derive(Debug, Clone, Copy)]
pub struct FetchRequest<'a> {
    /// The shape of the caches that it fills.
    pub shape: CacheShape,
    /// The identity that keys and values are kept under; see [`PrefixCache::known_tokens`](crate::PrefixCache::known_tokens).
    pub identity: &'a [u8],
    /// The beginning, whose whole pages are looked for.
    pub tokens: &'a [u32],
    /// Leading tokens that the caller has, in whole pages.
    pub held_tokens: usize,
    /// True if pages are of use with a note alone ([`SharedBlocks::publish_note`]).
    pub wants_note: bool,
}

/// Blocks that threads load while the caller does other things. Dropping it ends them.
pub struct SharedFetch {
    loading: Arc<Loading>,
    held_tokens: usize,
}

impl std::fmt::Debug for SharedFetch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedFetch")
            .field("held_tokens", &self.held_tokens)
            .finish_non_exhaustive()
    }
}

impl SharedBlocks {
    /// Begins to fetch what the store has of a beginning. Waits for nothing.
    pub fn fetch(&self, request: &FetchRequest<'_>) -> SharedFetch {
        let page = request.shape.page_tokens;
        let mut blocks = blocks_of(&request.shape, request.identity, request.tokens);
        blocks.drain(..blocks.len().min(request.held_tokens / page));
        let wait = self.inner.options.wait;
        SharedFetch {
            loading: Loading::start(&self.inner, request.shape, blocks, request.wants_note, wait),
            held_tokens: request.held_tokens / page * page,
        }
    }
}

impl SharedFetch {
    /// Tokens that the beginning has where everything arrives; `None` while the store is being asked. A store may have fewer than it
    /// seemed to.
    pub fn expected_tokens(&self) -> Option<usize> {
        let found = self.loading.state().found?;
        Some(self.held_tokens + found * self.loading.shape.page_tokens)
    }

    /// Appends what has arrived to a cache that holds `held_tokens` tokens and what earlier calls appended, some `most_bytes` at most.
    /// Layers may hold different numbers of tokens until the fetch is over. True when nothing more will come: then the caller is to
    /// truncate the cache to [`whole_tokens`](Self::whole_tokens).
    ///
    /// # Errors
    /// The errors of an append. The cache then holds some of the blocks that arrived.
    pub fn fill(&mut self, cache: &mut KvCache, most_bytes: usize) -> Result<bool, KvError> {
        let mut bytes = 0;
        while bytes < most_bytes {
            match self.loading.take() {
                Taken::Over => return Ok(true),
                Taken::NotYet => return Ok(false),
                Taken::Item(item, planes) => {
                    let found = self.loading.state().found.unwrap_or_default();
                    let (_, slice) = self.loading.place_of(item, found);
                    bytes += planes.len();
                    let mut rest = &planes[..];
                    for layer in layers_of(&self.loading.shape, slice) {
                        cache.append_page(layer, self.loading.shape.page_tokens, &mut |plane| {
                            let (here, later) = rest.split_at(plane.len());
                            plane.copy_from_slice(here);
                            rest = later;
                        })?;
                    }
                }
            }
        }
        Ok(false)
    }

    /// True if [`fill`](Self::fill) would do something: a block has arrived, or nothing more will come.
    pub fn has_arrived(&self) -> bool {
        self.loading.has_arrived()
    }

    /// True if a block has arrived that no call of [`fill`](Self::fill) has taken.
    pub fn has_block(&self) -> bool {
        self.loading.has_item()
    }

    /// Waits until something has arrived or nothing more will come, at most `time`.
    pub fn wait(&self, time: Duration) {
        self.loading.wait_for_item(time);
    }

    /// Tokens that every layer of the cache holds, in whole pages.
    pub fn whole_tokens(&self, cache: &KvCache) -> usize {
        let page = self.loading.shape.page_tokens;
        let fewest = (0..self.loading.shape.layers.count())
            .map(|layer| cache.tokens(layer))
            .min();
        fewest.unwrap_or(0) / page * page
    }

    /// Leading layers of the cache that hold all of [`expected_tokens`](Self::expected_tokens): they can be read while the others arrive.
    pub fn ready_layers(&self, cache: &KvCache) -> usize {
        let Some(expected) = self.expected_tokens() else {
            return 0;
        };
        let layers = 0..self.loading.shape.layers.count();
        layers.take_while(|layer| cache.tokens(*layer) >= expected).count()
    }

    /// The note that was found, and the tokens of its beginning. Present before blocks arrive, unless the fetch waits for another
    /// process: then it is there when the fetch is over.
    pub fn take_note(&mut self) -> Option<(usize, Vec<u8>)> {
        let note = self.loading.state().note.take()?;
        let tokens = self.held_tokens + note.blocks * self.loading.shape.page_tokens;
        Some((tokens, note.bytes))
    }

    /// Parts that a block is sent in, each some layers.
    pub fn slices(&self) -> usize {
        slices(&self.loading.shape)
    }
}

impl Drop for SharedFetch {
    fn drop(&mut self) {
        self.loading.cancel();
    }
}
