//! Sequences that share pages.

use std::sync::Arc;

use crate::KvCache;
use crate::pool::PageId;
use crate::prefix::chain;
use crate::text_block::key_after;
use crate::{RowTier, TextBlock};

impl KvCache {
    /// A sequence that begins with all tokens of this one and shares its pages. A page is copied when one of them
    /// writes to it.
    pub fn fork(&self) -> Self {
        let mut fork = Self::in_pool(Arc::clone(&self.pool));
        let store = &mut *self.pool.write();
        fork.tables = self.tables.iter().map(|table| table.fork(store)).collect();
        fork.tokens.clone_from(&self.tokens);
        fork.rows.clone_from(&self.rows);
        fork.is_parked = self.is_parked;
        fork
    }

    /// Shares the whole pages of the sequence's first `tokens.len()` tokens, which must be exactly `tokens`. Other
    /// sequences of the pool can then [`adopt`](Self::adopt) them. If others already share equal pages, these replace
    /// the sequence's own, which are freed. Returns the number of shared tokens; 0 if some heads have evicted tokens.
    ///
    /// `identity` names everything that determines keys and values; pages of different identities are never equal.
    pub fn share(&mut self, identity: &[u8], tokens: &[u32]) -> usize {
        let held = self.tokens.iter().copied().min().unwrap_or(0);
        if self.tokens.iter().any(|tokens| *tokens != held) {
            return 0;
        }
        let pool = Arc::clone(&self.pool);
        let keys = chain(&pool.shape, identity, &tokens[..tokens.len().min(held)]);
        let rows = keys.len();
        let store = &mut *pool.write();
        let is_watched = store.known.watches(identity);
        let mut parent = None;
        for (row, key) in keys.into_iter().enumerate() {
            let page_tokens = pool.shape.page_tokens;
            let text = &tokens[row * page_tokens..][..page_tokens];
            let before = parent;
            if is_watched {
                parent = Some(key_after(before, text));
            }
            match store.known.get(key).map(<[PageId]>::to_vec) {
                Some(pages) => {
                    for (table, page) in self.tables.iter_mut().zip(pages) {
                        if table.pages()[row] != page {
                            store.hold(page);
                            table.replace(row, page, store);
                        }
                    }
                }
                None => {
                    let pages = || self.tables.iter().map(|table| table.pages()[row]);
                    if store.known.insert(key, pages().collect()) && is_watched {
                        let planes = store.plane_counts(pages());
                        store.known.note_known(key, TextBlock::after(before, text), planes);
                    }
                }
            }
        }
        store.defragment();
        rows * pool.shape.page_tokens
    }

    /// Fills an empty sequence with the longest beginning of `tokens` that another sequence of the pool holds and
    /// [shares](Self::share), in whole pages. Returns its number of tokens.
    pub fn adopt(&mut self, identity: &[u8], tokens: &[u32]) -> usize {
        if self.tokens.iter().any(|tokens| *tokens > 0) {
            return 0;
        }
        let pool = Arc::clone(&self.pool);
        let store = &mut *pool.write();
        self.wake(store);
        for key in chain(&pool.shape, identity, tokens) {
            let Some(pages) = store.known.get(key).map(<[PageId]>::to_vec) else {
                break;
            };
            self.rows.push(store.begin_row());
            for (table, page) in self.tables.iter_mut().zip(pages) {
                store.hold(page);
                table.push(page, store);
            }
        }
        let tokens = self.rows.len() * pool.shape.page_tokens;
        (0..self.tables.len()).for_each(|table| self.set_tokens(store, table, tokens));
        tokens
    }

    /// The tier of a row of the sequence's pages, which is the farthest tier of its planes. `None` if some (layer, KV
    /// head) lacks this row.
    pub fn row_tier(&self, row: usize) -> Option<RowTier> {
        let pages: Option<Vec<PageId>> = self
            .tables
            .iter()
            .map(|table| table.pages().get(row).copied())
            .collect();
        Some(self.pool.read().plane_counts(pages?.into_iter()).tier())
    }

    /// Moves every unshared page to the farthest tier with room, for a sequence that will not be read for a while.
    /// Reading loads pages as usual, and appending wakes the sequence. Returns the bytes that left the nearest tier.
    ///
    /// # Errors
    /// [`KvError::Disk`](crate::KvError::Disk), [`KvError::Memory`](crate::KvError::Memory); every page is then still
    /// readable.
    pub fn park(&mut self) -> Result<u64, crate::KvError> {
        let pool = Arc::clone(&self.pool);
        let store = &mut *pool.write();
        if !pool.tiers.has_farther() {
            return Ok(0);
        }
        self.is_parked = true;
        self.tables.iter_mut().for_each(|table| table.sleep(store));
        let mut bytes = 0;
        for page in self.tables.iter().flat_map(|table| table.pages()) {
            if !store.is_shared(*page) {
                bytes += store.send_far(*page)?;
            }
        }
        store.defragment();
        Ok(bytes)
    }
}
