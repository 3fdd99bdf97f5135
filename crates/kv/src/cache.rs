use std::sync::Arc;

use riffle_attention::{PageView, PlaneMut, Span, write_keys, write_values};

use crate::offload::{self, LayerRead, stream_together};
use crate::pool::{PageId, PageStore, PageVersion, PlaneKind, Pool};
use crate::reader::{SequencePages, plane_id};
use crate::table::PageTable;
use crate::{CacheShape, KvError, KvTiers, LayerShape, PagePool};

/// Keys and values of one sequence, in pages of (layer, KV head): page tables over the pages of a [`PagePool`], and
/// counts of tokens.
///
/// The first and the newest pages stay in the nearest tier. If there are farther tiers, the oldest pages move there
/// when room is needed, and [`stream`](Self::stream) loads them again for reading. Sequences of one [`PagePool`] may
/// share pages; a sequence copies a shared page before it writes to it.
pub struct KvCache {
    pub(crate) pool: Arc<Pool>,
    /// `[layers, kv_heads]`
    pub(crate) tables: Vec<PageTable>,
    /// `[layers, kv_heads]`: heads differ after some have evicted tokens ([`retain`](Self::retain)).
    pub(crate) tokens: Vec<usize>,
    /// The pool's row count when each row of pages began.
    pub(crate) rows: Vec<u64>,
    /// The last reads of each layer: `[layers, kv_heads]`, spans of pages; empty for layers that are completely near.
    pub(crate) last_read: Vec<Vec<Vec<Span>>>,
    pub(crate) is_parked: bool,
}

/// A callback that receives pages of each KV head.
pub type ShowPages<'a, E> = dyn FnMut(&[Vec<PageView<'_>>]) -> Result<(), E> + 'a;

impl KvCache {
    /// An empty cache in main memory. It takes page memory only for tokens, and never more than `budget_bytes`.
    ///
    /// # Errors
    /// [`KvError::Shape`].
    pub fn new(shape: CacheShape, budget_bytes: Option<u64>) -> Result<Self, KvError> {
        Self::with_tiers(shape, KvTiers::memory(budget_bytes))
    }

    /// An empty cache over several tiers. It takes page memory only for tokens, and never more than each tier's
    /// budget.
    ///
    /// # Errors
    /// [`KvError::Shape`]; [`KvError::Disk`] if the folder of the disk tier is not writable.
    pub fn with_tiers(shape: CacheShape, tiers: KvTiers) -> Result<Self, KvError> {
        Ok(PagePool::new(shape, tiers)?.cache())
    }

    pub(crate) fn in_pool(pool: Arc<Pool>) -> Self {
        pool.begin_sequence();
        let (layers, tables) = (pool.shape.layers.count(), pool.shape.tables());
        Self {
            pool,
            tables: vec![PageTable::new(); tables],
            tokens: vec![0; tables],
            rows: Vec::new(),
            last_read: vec![Vec::new(); layers],
            is_parked: false,
        }
    }

    /// The cache's shape.
    pub fn shape(&self) -> &CacheShape {
        &self.pool.shape
    }

    /// The tiers for pages of the cache.
    pub fn tiers(&self) -> &KvTiers {
        &self.pool.tiers
    }

    /// The pool of the cache's pages; sequences of one pool can share pages.
    pub fn pool(&self) -> PagePool {
        PagePool(Arc::clone(&self.pool))
    }

    /// True if both sequences use the same pool.
    pub fn is_beside(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pool, &other.pool)
    }

    /// Tokens of a layer, in the KV head with most tokens; 0 for a layer that does not exist.
    pub fn tokens(&self, layer: usize) -> usize {
        let exists = layer < self.shape().layers.count();
        let heads = exists.then(|| &self.tokens[self.shape().tables_of(layer)]);
        heads.and_then(|heads| heads.iter().copied().max()).unwrap_or(0)
    }

    /// Tokens of an existing (layer, KV head).
    pub fn head_tokens(&self, layer: usize, kv_head: usize) -> usize {
        self.tokens[self.shape().tables_of(layer)][kv_head]
    }

    /// Appends tokens to a layer. Keys are `[tokens, kv_heads, key_width]`, values `[tokens, kv_heads, value_width]`;
    /// a latent layer has no values. The new tokens' pages stay near until the next append.
    ///
    /// # Errors
    /// [`KvError::Layer`], [`KvError::Length`], [`KvError::Budget`] (before anything is allocated),
    /// [`KvError::NearBudget`], [`KvError::Memory`], and errors of writing to the disk tier. The cache is then
    /// unchanged.
    pub fn append(&mut self, layer: usize, keys: &[f32], values: &[f32]) -> Result<(), KvError> {
        self.check_layer(layer)?;
        let page_tokens = self.shape().page_tokens;
        let LayerShape {
            kv_heads, key_width, ..
        } = self.shape().layer(layer);
        let value_width = self.shape().layer(layer).held_value_width();
        let strides = [kv_heads * key_width, kv_heads * value_width];
        let added = keys.len() / strides[0];
        if [keys.len(), values.len()] != strides.map(|stride| added * stride) {
            return Err(KvError::Length {
                keys: keys.len(),
                values: values.len(),
                strides,
            });
        }
        let pool = Arc::clone(&self.pool);
        let store = &mut *pool.write();
        self.take_pages(store, layer, added)?;
        for (kv_head, table) in pool.shape.tables_of(layer).enumerate() {
            let held = self.tokens[table];
            let mut token = 0;
            while token < added {
                let slot = (held + token) % page_tokens;
                let count = (page_tokens - slot).min(added - token);
                let page = self.tables[table].pages()[(held + token) / page_tokens];
                let plane = &mut store.plane_mut(page, PlaneKind::Keys);
                let rows = &keys[token * strides[0] + kv_head * key_width..];
                write_keys(plane, key_width, slot, count, rows, strides[0]).expect("lengths are checked");
                if value_width > 0 {
                    let plane = &mut store.plane_mut(page, PlaneKind::Values);
                    let rows = &values[token * strides[1] + kv_head * value_width..];
                    write_values(plane, value_width, slot, count, rows, strides[1]).expect("lengths are checked");
                }
                token += count;
            }
            self.set_tokens(store, table, held + added);
        }
        Ok(())
    }

    /// The ids of the pages of a (layer, KV head), in order; empty for one that does not exist. Sequences that share
    /// a page return the same id.
    pub fn page_ids(&self, layer: usize, kv_head: usize) -> &[PageId] {
        let exists = layer < self.shape().layers.count();
        let tables = exists.then(|| &self.tables[self.shape().tables_of(layer)]);
        tables
            .and_then(|tables| tables.get(kv_head))
            .map_or(&[], PageTable::pages)
    }

    /// As [`SequencePages::page_versions`](crate::SequencePages::page_versions), for callers without a reader.
    pub fn page_versions(&self, layer: usize) -> Vec<Vec<PageVersion>> {
        self.pages_in(&self.pool.read()).page_versions(layer)
    }

    /// True if all pages of a layer are near.
    pub fn is_near(&self, layer: usize) -> bool {
        self.pages_in(&self.pool.read()).are_near(layer)
    }

    /// Passes the pages of a layer to `each`, a few at a time, and loads ahead. Each call gets the next pages of
    /// every KV head, in order. `wanted` lists the pages of each KV head as spans of page numbers; `None` means all.
    /// `next` is the next layer to stream, if known.
    ///
    /// # Errors
    /// [`KvError::Layer`], [`KvError::DamagedPage`], [`KvError::Disk`], [`KvError::Memory`], and errors of `each`,
    /// which must not use another sequence of the pool.
    pub fn stream<E: From<KvError>>(
        &mut self,
        layer: usize,
        wanted: Option<&[Vec<Span>]>,
        next: Option<usize>,
        each: &mut ShowPages<'_, E>,
    ) -> Result<(), E> {
        let read = LayerRead { sequence: 0, wanted };
        stream_together(&mut [self], &[read], layer, next, &mut |reads| each(&reads[0]))
    }

    /// Passes the pages of a (layer, KV head), from the page of `from_token` on, all at once and without values.
    /// Estimates use it to scan the keys.
    ///
    /// # Errors
    /// As [`stream`](Self::stream); [`KvError::NearBudget`] if [`Outlook::scans_keys`](crate::Outlook::scans_keys)
    /// was not set.
    pub fn with_keys<T>(
        &self,
        layer: usize,
        kv_head: usize,
        from_token: usize,
        show: impl FnOnce(&[PageView<'_>]) -> T,
    ) -> Result<T, KvError> {
        self.check_layer(layer)?;
        let store = self.pool.read();
        offload::with_keys(self.pages_in(&store), layer, kv_head, from_token, show)
    }

    /// Removes everything after the first `tokens` tokens, in every layer; freed pages return to the operating
    /// system. For heads with evicted tokens, `tokens` counts the tokens they still hold.
    pub fn truncate(&mut self, tokens: usize) {
        (0..self.tables.len()).for_each(|table| self.lower_tokens(table, tokens));
        self.drain_pages(
            0..self.tables.len(),
            tokens.div_ceil(self.shape().page_tokens),
            usize::MAX,
        );
    }

    /// Removes everything after the first `tokens` tokens of one existing (layer, KV head).
    pub fn truncate_head(&mut self, layer: usize, kv_head: usize, tokens: usize) {
        let table = self.shape().tables_of(layer).start + kv_head;
        self.lower_tokens(table, tokens);
        self.drain_pages(table..table + 1, tokens.div_ceil(self.shape().page_tokens), usize::MAX);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Bytes mapped for the pages of all sequences of the pool and for pages being loaded: at most the budgets of
    /// device and RAM.
    pub fn mapped_bytes(&self) -> u64 {
        self.pool.read().mapped_bytes() as u64
    }

    /// Bytes of the disk tier's files, for all sequences of the pool: at most its budget.
    pub fn file_bytes(&self) -> u64 {
        self.pool.file_bytes()
    }

    /// Writes the disk tier's files to the disk and drops them from the system's cache
    /// ([`forget_cached`](crate::forget_cached)). A measurement then reads the disk and not memory.
    ///
    /// # Errors
    /// [`KvError::Disk`].
    pub fn forget_cached_files(&mut self) -> Result<(), KvError> {
        self.pool.write().forget_cached_files()
    }

    /// Removes `pages` entries, from entry `first` on, from each page table of `tables`, and releases these pages.
    /// The caller sets the token counts before.
    pub(crate) fn drain_pages(&mut self, tables: std::ops::Range<usize>, first: usize, pages: usize) {
        let pool = Arc::clone(&self.pool);
        self.drain_pages_in(&mut pool.write(), tables, first, pages);
    }

    /// As [`drain_pages`](Self::drain_pages), in a locked pool.
    pub(crate) fn drain_pages_in(
        &mut self,
        store: &mut PageStore,
        tables: std::ops::Range<usize>,
        first: usize,
        pages: usize,
    ) {
        let mut drained = Vec::new();
        for table in tables {
            drained.extend(self.tables[table].drain(first, pages, store));
            self.set_tokens(store, table, self.tokens[table]);
        }
        store.let_go(&drained);
        let rows = self.tables.iter().map(PageTable::rows).max();
        self.rows.truncate(rows.unwrap_or(0));
    }

    /// Limits the token count of a table to `tokens`; later tokens may remain in its last page.
    fn lower_tokens(&mut self, table: usize, tokens: usize) {
        if tokens < self.tokens[table] {
            self.tokens[table] = tokens;
            self.tables[table].set_cut(!tokens.is_multiple_of(self.pool.shape.page_tokens));
        }
    }

    /// Sets the number of tokens of a table, and so which of its pages are full.
    pub(crate) fn set_tokens(&mut self, store: &mut PageStore, table: usize, tokens: usize) {
        self.tokens[table] = tokens;
        if !self.is_parked {
            self.tables[table].set_full(tokens / self.pool.shape.page_tokens, store);
        }
    }

    /// Changes the keys of an existing page in any tier; a shared page is copied first.
    pub(crate) fn change_keys(
        &mut self,
        table: usize,
        number: usize,
        change: impl FnOnce(&mut PlaneMut<'_>),
    ) -> Result<(), KvError> {
        let pool = Arc::clone(&self.pool);
        let store = &mut *pool.write();
        if store.is_shared(self.tables[table].pages()[number]) {
            self.make_room_for_copies(store, table, 1)?;
            self.make_writable(store, table, number)?;
        }
        let id = plane_id(&pool.shape, PlaneKind::Keys, table, number);
        store.change(self.tables[table].pages()[number], PlaneKind::Keys, id, change)
    }

    /// The sequence's page tables in its locked pool.
    pub(crate) fn pages_in<'a>(&'a self, store: &'a PageStore) -> SequencePages<'a> {
        SequencePages {
            store,
            tables: &self.tables,
            tokens: &self.tokens,
        }
    }

    pub(crate) fn check_layer(&self, layer: usize) -> Result<(), KvError> {
        let layers = self.shape().layers.count();
        if layer < layers {
            Ok(())
        } else {
            Err(KvError::Layer { layer, layers })
        }
    }
}

impl Drop for KvCache {
    fn drop(&mut self) {
        let store = &mut *self.pool.write();
        let pages: Vec<PageId> = self.tables.iter_mut().flat_map(|table| table.take(store)).collect();
        store.let_go(&pages);
        store.end_sequence(&self.pool.tiers);
    }
}
