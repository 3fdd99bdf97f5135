//! Fetches a beginning from a shared store into a sequence.

use std::sync::Arc;
use std::time::Duration;

use super::envelope::{layers_of, slices};
use super::loading::{Loading, Taken};
use super::{SharedBlocks, blocks_of};
use crate::{CacheShape, KvCache, KvError};

/// A request to fetch a beginning.
#[derive(Debug, Clone, Copy)]
pub struct FetchRequest<'a> {
    /// The shape of the caches to fill.
    pub shape: CacheShape,
    /// The identity of keys and values; see [`PrefixCache::known_tokens`](crate::PrefixCache::known_tokens).
    pub identity: &'a [u8],
    /// The text's tokens; the fetch looks for its whole pages.
    pub tokens: &'a [u32],
    /// Leading tokens that the caller already has, in whole pages.
    pub held_tokens: usize,
    /// True if pages are useful only with a note ([`SharedBlocks::publish_note`]).
    pub wants_note: bool,
}

/// Blocks that threads load in the background. Dropping it ends them.
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
    /// Begins to fetch the stored blocks of a beginning, without waiting.
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
    /// Tokens of the beginning if everything arrives; `None` while the store is being asked. The store may turn out
    /// to have fewer.
    pub fn expected_tokens(&self) -> Option<usize> {
        let found = self.loading.state().found?;
        Some(self.held_tokens + found * self.loading.shape.page_tokens)
    }

    /// Appends about `most_bytes` of the arrived blocks to a cache, which has `held_tokens` tokens and the tokens of
    /// earlier calls. Layers may have different numbers of tokens until the fetch ends. Returns true at the end; the
    /// caller must then truncate the cache to [`whole_tokens`](Self::whole_tokens).
    ///
    /// # Errors
    /// The errors of an append. The cache then has some of the arrived blocks.
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

    /// True if [`fill`](Self::fill) has work: a block has arrived, or the fetch has ended.
    pub fn has_arrived(&self) -> bool {
        self.loading.has_arrived()
    }

    /// True if a block has arrived that [`fill`](Self::fill) has not appended yet.
    pub fn has_block(&self) -> bool {
        self.loading.has_item()
    }

    /// Waits until a block has arrived or the fetch has ended, at most `time`.
    pub fn wait(&self, time: Duration) {
        self.loading.wait_for_item(time);
    }

    /// Tokens that every layer of the cache has, in whole pages.
    pub fn whole_tokens(&self, cache: &KvCache) -> usize {
        let page = self.loading.shape.page_tokens;
        let fewest = (0..self.loading.shape.layers.count())
            .map(|layer| cache.tokens(layer))
            .min();
        fewest.unwrap_or(0) / page * page
    }

    /// Leading layers of the cache with all of [`expected_tokens`](Self::expected_tokens): they can be read while the
    /// others arrive.
    pub fn ready_layers(&self, cache: &KvCache) -> usize {
        let Some(expected) = self.expected_tokens() else {
            return 0;
        };
        let layers = 0..self.loading.shape.layers.count();
        layers.take_while(|layer| cache.tokens(*layer) >= expected).count()
    }

    /// The note that was found, and the tokens of its beginning. It is available before blocks arrive, unless the
    /// fetch waits for another process: then it is available at the end.
    pub fn take_note(&mut self) -> Option<(usize, Vec<u8>)> {
        let note = self.loading.state().note.take()?;
        let tokens = self.held_tokens + note.blocks * self.loading.shape.page_tokens;
        Some((tokens, note.bytes))
    }

    /// Number of slices per block.
    pub fn slices(&self) -> usize {
        slices(&self.loading.shape)
    }
}

impl Drop for SharedFetch {
    fn drop(&mut self) {
        self.loading.cancel();
    }
}
