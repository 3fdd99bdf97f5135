//! Pages of known beginnings: found by the hash of what made them and of all tokens up to their end.

use std::collections::HashMap;

use super::page::PageId;

/// Rows of pages, one page of every table, by the hash of all tokens up to the row's end. A row is known while all its pages are
/// held and none has changed; being known holds no page.
#[derive(Debug, Default)]
pub(crate) struct KnownRows {
    by_key: HashMap<u128, Box<[PageId]>>,
    /// The key of the row that a page is part of.
    keys: HashMap<PageId, u128>,
}

impl KnownRows {
    /// The pages of a row, `[layers, kv_heads]`.
    pub(crate) fn get(&self, key: u128) -> Option<&[PageId]> {
        self.by_key.get(&key).map(|pages| &pages[..])
    }

    /// Makes a row known, unless one of its pages is part of another.
    pub(crate) fn insert(&mut self, key: u128, pages: Box<[PageId]>) {
        if pages.iter().any(|page| self.keys.contains_key(page)) {
            return;
        }
        self.keys.extend(pages.iter().map(|page| (*page, key)));
        self.by_key.insert(key, pages);
    }

    /// Forgets the row of a page that is about to change or to go.
    pub(crate) fn forget(&mut self, page: PageId) {
        let Some(key) = self.keys.get(&page) else { return };
        for page in self.by_key.remove(key).into_iter().flatten() {
            self.keys.remove(&page);
        }
        if self.by_key.is_empty() {
            *self = Self::default();
        }
    }

    pub(crate) fn bookkeeping_bytes(&self) -> usize {
        let pages: usize = self.by_key.values().map(|pages| pages.len()).sum();
        pages * size_of::<PageId>()
            + self.by_key.capacity() * size_of::<(u128, Box<[PageId]>)>()
            + self.keys.capacity() * size_of::<(PageId, u128)>()
    }
}
