//! The page table of one (layer, KV head) of a sequence.

use crate::pool::{PageId, PageStore};

/// The pages of a sequence, in order. The table wants its first page near, and pages that are not full.
#[derive(Debug, Clone)]
pub(crate) struct PageTable {
    pages: Vec<PageId>,
    /// Number of pages removed before the present ones: added to a page's number, it gives the row.
    removed: usize,
    /// First of the last pages that are wanted near.
    near_from: usize,
    wants_first: bool,
    /// True if the last page has tokens after those that the sequence counts: the next append overwrites them.
    is_cut: bool,
}

impl PageTable {
    pub(crate) fn new() -> Self {
        Self {
            pages: Vec::new(),
            removed: 0,
            near_from: 0,
            wants_first: true,
            is_cut: false,
        }
    }

    pub(crate) fn pages(&self) -> &[PageId] {
        &self.pages
    }

    /// Sets `is_cut`, and returns the old value.
    pub(crate) fn set_cut(&mut self, is_cut: bool) -> bool {
        std::mem::replace(&mut self.is_cut, is_cut)
    }

    /// The row of the page with this number.
    pub(crate) fn row(&self, page: usize) -> usize {
        self.removed + page
    }

    /// Number of rows up to the last page.
    pub(crate) fn rows(&self) -> usize {
        self.removed + self.pages.len()
    }

    pub(crate) fn bookkeeping_bytes(&self) -> usize {
        self.pages.capacity() * size_of::<PageId>() + size_of::<Self>()
    }

    /// Adds a page that the table already holds.
    pub(crate) fn push(&mut self, page: PageId, store: &mut PageStore) {
        if self.pages.len() == self.pages.capacity() {
            // Doubling would waste memory with many small pages.
            self.pages.reserve_exact((self.pages.len() / 8).max(1));
        }
        self.pages.push(page);
        self.wish(self.pages.len() - 1, store);
    }

    /// Reserves room for pages to push.
    pub(crate) fn reserve(&mut self, pages: usize) {
        if self.pages.len() + pages > self.pages.capacity() {
            self.pages.reserve_exact(pages.max(self.pages.len() / 8));
        }
    }

    /// Replaces a page by another that the table already holds; the old page is released.
    pub(crate) fn replace(&mut self, number: usize, page: PageId, store: &mut PageStore) {
        self.drop_wish(number, store);
        let before = std::mem::replace(&mut self.pages[number], page);
        self.wish(number, store);
        store.let_go(&[before]);
    }

    /// Removes `pages` pages from page `first` on; later ones move down. The table remains a holder of the removed
    /// pages, which are returned.
    #[must_use]
    pub(crate) fn drain(&mut self, first: usize, pages: usize, store: &mut PageStore) -> Vec<PageId> {
        let end = first.saturating_add(pages).min(self.pages.len());
        let first = first.min(end);
        (first..end).for_each(|number| self.drop_wish(number, store));
        let drained: Vec<PageId> = self.pages.drain(first..end).collect();
        self.pages.shrink_to(self.pages.len() * 2);
        self.near_from -= self.near_from.clamp(first, end) - first;
        match self.pages.first() {
            None => self.removed = 0,
            Some(_) if first < self.pages.len() => self.removed += drained.len(),
            Some(_) => {}
        }
        let new_first = self
            .pages
            .first()
            .filter(|_| first == 0 && self.wants_first && !drained.is_empty());
        if let Some(page) = new_first {
            store.wish_near(*page);
        }
        drained
    }

    /// Sets the number of full pages: later pages are wanted near.
    pub(crate) fn set_full(&mut self, full: usize, store: &mut PageStore) {
        let full = full.min(self.pages.len());
        let before = std::mem::replace(&mut self.near_from, full);
        for page in self.pages.get(before..full).into_iter().flatten() {
            store.drop_wish(*page);
        }
        for page in self.pages.get(full..before.min(self.pages.len())).into_iter().flatten() {
            store.wish_near(*page);
        }
    }

    /// Wants no page near until the table is [woken](Self::wake).
    pub(crate) fn sleep(&mut self, store: &mut PageStore) {
        self.set_full(self.pages.len(), store);
        if let Some(first) = self.pages.first().filter(|_| self.wants_first) {
            store.drop_wish(*first);
        }
        self.wants_first = false;
    }

    /// Asks for the pages to be near again; the first `full` pages are full.
    pub(crate) fn wake(&mut self, full: usize, store: &mut PageStore) {
        self.set_full(full, store);
        if let Some(first) = self.pages.first().filter(|_| !self.wants_first) {
            store.wish_near(*first);
        }
        self.wants_first = true;
    }

    /// A table of another sequence that also holds these pages.
    pub(crate) fn fork(&self, store: &mut PageStore) -> Self {
        self.pages.iter().for_each(|page| store.hold(*page));
        let fork = self.clone();
        fork.wished().for_each(|page| store.wish_near(page));
        fork
    }

    /// Removes the table's pages, for the pool to release.
    pub(crate) fn take(&mut self, store: &mut PageStore) -> Vec<PageId> {
        self.wished().for_each(|page| store.drop_wish(page));
        std::mem::replace(self, Self::new()).pages
    }

    /// The pages that the table wants near, once per wish.
    fn wished(&self) -> impl Iterator<Item = PageId> + '_ {
        let first = self.pages.first().filter(|_| self.wants_first);
        let not_full = self.pages.get(self.near_from..).unwrap_or_default();
        first.into_iter().chain(not_full).copied()
    }

    fn wishes(&self, number: usize) -> usize {
        usize::from(number == 0 && self.wants_first) + usize::from(number >= self.near_from)
    }

    fn wish(&self, number: usize, store: &mut PageStore) {
        (0..self.wishes(number)).for_each(|_| store.wish_near(self.pages[number]));
    }

    fn drop_wish(&self, number: usize, store: &mut PageStore) {
        (0..self.wishes(number)).for_each(|_| store.drop_wish(self.pages[number]));
    }
}
