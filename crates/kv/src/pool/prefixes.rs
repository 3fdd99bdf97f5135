//! Finds the pages of known beginnings of texts. The key of a page is a hash of the identity and of all tokens up to
//! the page's end.

use std::collections::HashMap;

use super::page::{PageId, PlanePlace};
use super::row_watch::{PlaneCounts, RowChange, RowWatch};
use crate::TextBlock;

/// Rows of pages, one page per table, by the hash of all tokens up to the row's end. A row is known while all its
/// pages are held and unchanged. Being known does not hold a page.
#[derive(Debug, Default)]
pub(crate) struct KnownRows {
    by_key: HashMap<u128, Box<[PageId]>>,
    /// The key of each page's row.
    keys: HashMap<PageId, u128>,
    /// The changes of known rows, if they are watched.
    watch: Option<Box<RowWatch>>,
}

impl KnownRows {
    /// The pages of a row, `[layers, kv_heads]`.
    pub(crate) fn get(&self, key: u128) -> Option<&[PageId]> {
        self.by_key.get(&key).map(|pages| &pages[..])
    }

    /// Adds a known row, unless one of its pages belongs to another; returns true if it was added.
    pub(crate) fn insert(&mut self, key: u128, pages: Box<[PageId]>) -> bool {
        if pages.iter().any(|page| self.keys.contains_key(page)) {
            return false;
        }
        self.keys.extend(pages.iter().map(|page| (*page, key)));
        self.by_key.insert(key, pages);
        true
    }

    /// Starts to record changes of rows of this identity.
    pub(crate) fn watch(&mut self, identity: &[u8]) {
        self.watch = Some(Box::new(RowWatch::new(identity)));
    }

    /// True if changes of rows of this identity are recorded.
    pub(crate) fn watches(&self, identity: &[u8]) -> bool {
        self.watch.as_ref().is_some_and(|watch| *watch.identity == *identity)
    }

    /// Records a new known row and the tiers of its planes.
    pub(crate) fn note_known(&mut self, key: u128, block: TextBlock, planes: PlaneCounts) {
        if let Some(watch) = &mut self.watch {
            watch.insert(key, block, planes);
        }
    }

    /// Records that a plane of a page moved.
    pub(crate) fn note_move(&mut self, page: PageId, from: PlanePlace, to: PlanePlace) {
        if let Some(watch) = &mut self.watch
            && let Some(key) = self.keys.get(&page)
        {
            watch.move_plane(*key, from, to);
        }
    }

    /// The changes recorded since the last call.
    pub(crate) fn take_changes(&mut self) -> Vec<RowChange> {
        self.watch.as_mut().map(|watch| watch.take()).unwrap_or_default()
    }

    /// Removes the row of a page that will change or be freed.
    pub(crate) fn forget(&mut self, page: PageId) {
        let Some(key) = self.keys.get(&page).copied() else {
            return;
        };
        for page in self.by_key.remove(&key).into_iter().flatten() {
            self.keys.remove(&page);
        }
        if let Some(watch) = &mut self.watch {
            watch.forget(key);
        }
        if self.by_key.is_empty() {
            let watch = self.watch.take();
            *self = Self {
                watch,
                ..Self::default()
            };
        }
    }

    pub(crate) fn bookkeeping_bytes(&self) -> usize {
        let pages: usize = self.by_key.values().map(|pages| pages.len()).sum();
        pages * size_of::<PageId>()
            + self.by_key.capacity() * size_of::<(u128, Box<[PageId]>)>()
            + self.keys.capacity() * size_of::<(PageId, u128)>()
            + self.watch.as_ref().map_or(0, |watch| watch.bookkeeping_bytes())
    }
}
