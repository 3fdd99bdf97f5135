//! Reads pages of sequences in place.

use std::sync::{Arc, RwLockReadGuard};

use riffle_attention::{PageView, Plane, Span};

use crate::disk::PlaneId;
use crate::pool::{PageId, PageStore, PageVersion, PlaneBytes, PlaneKind};
use crate::table::PageTable;
use crate::{CacheShape, KvCache, KvError};

/// The planes of a page and its number of tokens.
pub(crate) type PagePlanes<'a> = (PlaneBytes<'a>, PlaneBytes<'a>, usize);

/// Reads near pages in place. Readers share a pool: as long as one exists, no page of the pool moves or changes.
/// Changing a sequence of the pool waits for it.
pub struct PageReader<'c> {
    store: RwLockReadGuard<'c, PageStore>,
    cache: &'c KvCache,
}

/// The page tables of a sequence, in a pool that cannot change.
#[derive(Clone, Copy)]
pub struct SequencePages<'a> {
    pub(crate) store: &'a PageStore,
    /// `[layers, kv_heads]`
    pub(crate) tables: &'a [PageTable],
    /// `[layers, kv_heads]`
    pub(crate) tokens: &'a [usize],
}

impl KvCache {
    /// Begins to read near pages. Until the reader is dropped, the thread must neither change a sequence of the pool
    /// nor begin another read. [`PageReader::pages_of`] reads several sequences at once.
    pub fn read(&self) -> PageReader<'_> {
        PageReader {
            store: self.pool.read(),
            cache: self,
        }
    }
}

impl PageReader<'_> {
    /// As [`SequencePages::pages`], for the reader's own sequence.
    pub fn pages(&self, layer: usize, kv_head: usize) -> impl ExactSizeIterator<Item = PageView<'_>> {
        self.sequence().pages_from(layer, kv_head, 0)
    }

    /// As [`SequencePages::pages_from`], for the reader's own sequence.
    pub fn pages_from(
        &self,
        layer: usize,
        kv_head: usize,
        from_token: usize,
    ) -> impl ExactSizeIterator<Item = PageView<'_>> {
        self.sequence().pages_from(layer, kv_head, from_token)
    }

    /// As [`SequencePages::near_page`], for the reader's own sequence.
    pub fn near_page(&self, layer: usize, kv_head: usize, page: usize) -> Option<PageView<'_>> {
        self.sequence().near_page(layer, kv_head, page)
    }

    /// As [`SequencePages::page_versions`], for the reader's own sequence.
    pub fn page_versions(&self, layer: usize) -> Vec<Vec<PageVersion>> {
        self.sequence().page_versions(layer)
    }

    /// The pages of another sequence; `None` if it belongs to another pool.
    pub fn pages_of<'r>(&'r self, other: &'r KvCache) -> Option<SequencePages<'r>> {
        Arc::ptr_eq(&self.cache.pool, &other.pool).then(|| other.pages_in(&self.store))
    }

    fn sequence(&self) -> SequencePages<'_> {
        self.cache.pages_in(&self.store)
    }
}

impl<'a> SequencePages<'a> {
    /// The pages of a (layer, KV head) whose keys and values are near, in order: all pages until some move to a
    /// farther tier. Empty for a layer or head that does not exist.
    pub fn pages(&self, layer: usize, kv_head: usize) -> impl ExactSizeIterator<Item = PageView<'a>> + use<'a> {
        self.pages_from(layer, kv_head, 0)
    }

    /// As [`pages`](Self::pages), from the page with the token on.
    pub fn pages_from(
        &self,
        layer: usize,
        kv_head: usize,
        from_token: usize,
    ) -> impl ExactSizeIterator<Item = PageView<'a>> + use<'a> {
        let pages = self
            .table_of(layer, kv_head)
            .map_or(0, |table| self.page_ids(table).len());
        let first = (from_token / self.shape().page_tokens).min(pages);
        let views = (first..pages).filter_map(|page| self.near_page(layer, kv_head, page));
        views.collect::<Vec<_>>().into_iter()
    }

    /// A page of a (layer, KV head) if its keys and values are near; otherwise, or if it does not exist, `None`.
    pub fn near_page(&self, layer: usize, kv_head: usize, page: usize) -> Option<PageView<'a>> {
        let table = self.table_of(layer, kv_head)?;
        let id = *self.page_ids(table).get(page)?;
        let (keys, values) = (
            self.store.near_plane(id, PlaneKind::Keys)?,
            self.store.near_plane(id, PlaneKind::Values)?,
        );
        Some(self.page_view((layer, table), page, keys, values))
    }

    /// The versions of a layer's pages, for each KV head in page order; empty for a layer that does not exist.
    pub fn page_versions(&self, layer: usize) -> Vec<Vec<PageVersion>> {
        if layer >= self.shape().layers.count() {
            return Vec::new();
        }
        let versions = |table| self.page_ids(table).iter().map(|page| self.store.version(*page));
        let tables = self.shape().tables_of(layer);
        tables.map(|table| versions(table).collect()).collect()
    }

    pub(crate) fn shape(&self) -> &'a CacheShape {
        &self.store.shape
    }

    pub(crate) fn page_ids(&self, table: usize) -> &'a [PageId] {
        self.tables[table].pages()
    }

    /// True if all pages of a layer are near.
    pub(crate) fn are_near(&self, layer: usize) -> bool {
        let mut tables = self.tables[self.shape().tables_of(layer)].iter();
        tables.all(|table| self.store.are_near(table.pages()))
    }

    /// The wanted pages of a layer, by KV head, as spans of page numbers; `None` means all. Pages that are not near
    /// are left out.
    pub fn near_views(&self, layer: usize, wanted: Option<&[Vec<Span>]>) -> Vec<Vec<PageView<'a>>> {
        let tables = self.shape().tables_of(layer).enumerate();
        let views = tables.map(|(kv_head, table)| {
            let Some(wanted) = wanted else {
                return self.pages(layer, kv_head).collect();
            };
            let held = self.page_ids(table).len();
            let mut numbers: Vec<usize> = wanted[kv_head]
                .iter()
                .flat_map(|span| span.start..span.end.min(held))
                .collect();
            numbers.sort_unstable();
            numbers.dedup();
            let near = numbers
                .into_iter()
                .filter_map(|page| self.near_page(layer, kv_head, page));
            near.collect()
        });
        views.collect()
    }

    /// A page with these planes, in a table of a layer. In a latent layer the values are the keys.
    pub(crate) fn page_view<'p>(
        &self,
        (layer, table): (usize, usize),
        page: usize,
        keys: Plane<'p>,
        values: Plane<'p>,
    ) -> PageView<'p> {
        let is_latent = self.shape().layer(layer).is_latent;
        let values = if is_latent { keys } else { values };
        PageView {
            start: page * self.shape().page_tokens,
            tokens: self.tokens_in(table, page),
            keys,
            values,
        }
    }

    /// Tokens in a page that exists.
    pub(crate) fn tokens_in(&self, table: usize, page: usize) -> usize {
        let page_tokens = self.shape().page_tokens;
        page_tokens.min(self.tokens[table] - page * page_tokens)
    }

    /// A plane's bytes, in any tier.
    pub(crate) fn bytes(&self, table: usize, page: usize, kind: PlaneKind) -> Result<PlaneBytes<'a>, KvError> {
        let id = plane_id(self.shape(), kind, table, page);
        self.store.bytes(self.page_ids(table)[page], kind, id)
    }

    /// The planes of an existing page, in any tier, and its number of tokens.
    pub(crate) fn planes(&self, table: usize, page: usize) -> Result<PagePlanes<'a>, KvError> {
        let (keys, values) = (
            self.bytes(table, page, PlaneKind::Keys)?,
            self.bytes(table, page, PlaneKind::Values)?,
        );
        Ok((keys, values, self.tokens_in(table, page)))
    }

    fn table_of(&self, layer: usize, kv_head: usize) -> Option<usize> {
        let shape = self.shape();
        let tables = (layer < shape.layers.count()).then(|| shape.tables_of(layer))?;
        (kv_head < tables.len()).then_some(tables.start + kv_head)
    }
}

/// The id of a plane, for errors.
pub(crate) fn plane_id(shape: &CacheShape, kind: PlaneKind, table: usize, page: usize) -> PlaneId {
    let (layer, kv_head) = shape.place_of(table);
    PlaneId {
        what: kind.what(),
        layer,
        kv_head,
        page,
    }
}
