use std::sync::Arc;

use riffle_attention::{PageView, PlaneMut, Span, write_keys, write_values};

use crate::ledger::Taken;
use crate::offload::{OffloadEngine, Pages};
use crate::pool::Pool;
use crate::store::{PlaneBytes, PlaneStore};
use crate::tiers::Layout;
use crate::{CacheShape, KvError, KvTiers, KvUsage, PagePool, TierBytes};

/// Keys and values of one sequence, in pages of (layer, KV head).
///
/// The newest pages and the first lie in the nearest tier; where farther tiers are given, the oldest leave for them
/// when room is needed, and come back through [`stream`](Self::stream) to be read. Sequences of one [`PagePool`] may hold
/// pages in common; who writes into one copies it first.
pub struct KvCache {
    pub(crate) pool: Arc<Pool>,
    pub(crate) keys: PlaneStore,
    pub(crate) values: PlaneStore,
    /// `[layers, kv_heads]`: heads differ where some have let tokens go ([`retain`](Self::retain)).
    pub(crate) tokens: Vec<usize>,
    pub(crate) offload: OffloadEngine,
    /// Memory of pages on their way and of keys that are looked through.
    _moving: Taken,
}

/// Takes pages of each KV head.
pub type ShowPages<'a, E> = dyn FnMut(&[Vec<PageView<'_>>]) -> Result<(), E> + 'a;

/// The planes of a page and how many tokens it holds.
pub(crate) type PagePlanes<'a> = (PlaneBytes<'a>, PlaneBytes<'a>, usize);

impl KvCache {
    /// An empty cache in main memory, which takes no page memory before tokens arrive and never more than
    /// `budget_bytes`.
    ///
    /// # Errors
    /// [`KvError::Shape`].
    pub fn new(shape: CacheShape, budget_bytes: Option<u64>) -> Result<Self, KvError> {
        Self::with_tiers(shape, KvTiers::memory(budget_bytes))
    }

    /// An empty cache over several tiers, which takes no page memory before tokens arrive and never more than each
    /// tier's budget.
    ///
    /// # Errors
    /// [`KvError::Shape`]; [`KvError::Disk`] when the folder of the disk tier cannot be written to.
    pub fn with_tiers(shape: CacheShape, tiers: KvTiers) -> Result<Self, KvError> {
        PagePool::new(shape, tiers)?.cache()
    }

    pub(crate) fn in_pool(pool: Arc<Pool>) -> Result<Self, KvError> {
        let (shape, tiers) = (&pool.shape, &pool.tiers);
        let layout = Layout::new(tiers, shape);
        let store =
            |what, format, slots| PlaneStore::new(what, shape, format, tiers, slots, layout.ram_slots, &pool.ledgers);
        let limited = tiers.has_farther() && tiers.near_budget_bytes().is_some();
        let moving = u64::from(limited) * (tiers.ring_bytes(shape).saturating_add(layout.scan_bytes));
        // A first sequence that has too little of everything is told so when it appends.
        let moving = moving.min(pool.ledgers.near.budget_bytes());
        Ok(Self {
            keys: store("keys", shape.key_format, layout.near_key_slots)?,
            values: store("values", shape.value_format, layout.near_value_slots)?,
            tokens: vec![0; shape.layers * shape.kv_heads],
            offload: OffloadEngine::new(tiers, shape, layout.scan_bytes),
            _moving: Taken::take(&pool.ledgers.near, moving, "pages on their way")?,
            pool,
        })
    }

    /// The cache's shape.
    pub fn shape(&self) -> &CacheShape {
        &self.pool.shape
    }

    /// The tiers its pages may lie in.
    pub fn tiers(&self) -> &KvTiers {
        &self.pool.tiers
    }

    /// Where its pages come from, for sequences that are to share some of them.
    pub fn pool(&self) -> PagePool {
        PagePool(Arc::clone(&self.pool))
    }

    /// Tokens in a layer, in the KV head that holds most; 0 for a layer that does not exist.
    pub fn tokens(&self, layer: usize) -> usize {
        let heads = self.pool.shape.kv_heads;
        let heads = self
            .tokens
            .get(layer.saturating_mul(heads)..layer.saturating_add(1).saturating_mul(heads));
        heads.and_then(|heads| heads.iter().copied().max()).unwrap_or(0)
    }

    /// Tokens in a (layer, KV head) that exists.
    pub fn head_tokens(&self, layer: usize, kv_head: usize) -> usize {
        self.tokens[layer * self.pool.shape.kv_heads + kv_head]
    }

    /// Appends tokens to a layer. Keys and values are `[tokens, kv_heads, head_dim]`. The pages they fill lie near until
    /// the next append.
    ///
    /// # Errors
    /// [`KvError::Layer`], [`KvError::Length`], [`KvError::Budget`] (before anything is allocated),
    /// [`KvError::NearBudget`], [`KvError::Memory`], and what writing to the disk tier can meet; the cache holds what it
    /// held before.
    pub fn append(&mut self, layer: usize, keys: &[f32], values: &[f32]) -> Result<(), KvError> {
        let CacheShape {
            layers,
            kv_heads,
            head_dim,
            page_tokens,
            ..
        } = self.pool.shape;
        if layer >= layers {
            return Err(KvError::Layer { layer, layers });
        }
        let width = kv_heads * head_dim;
        if keys.len() != values.len() || !keys.len().is_multiple_of(width) {
            return Err(KvError::Length {
                keys: keys.len(),
                values: values.len(),
                width,
            });
        }
        let added = keys.len() / width;
        self.take_pages(layer, added)?;

        for kv_head in 0..kv_heads {
            let table = layer * kv_heads + kv_head;
            let held = self.tokens[table];
            let mut token = 0;
            while token < added {
                let slot = (held + token) % page_tokens;
                let count = (page_tokens - slot).min(added - token);
                let at = token * width + kv_head * head_dim;
                let page = (held + token) / page_tokens;
                let plane = &mut self.keys.plane_mut(table, page);
                write_keys(plane, head_dim, slot, count, &keys[at..], width).expect("lengths are checked");
                let plane = &mut self.values.plane_mut(table, page);
                write_values(plane, head_dim, slot, count, &values[at..], width).expect("lengths are checked");
                token += count;
            }
            self.tokens[table] = held + added;
        }
        Ok(())
    }

    /// The pages of a (layer, KV head) whose keys and values lie near, in order: all of them while nothing has left for
    /// a farther tier. None for a layer or head that does not exist.
    pub fn pages(&self, layer: usize, kv_head: usize) -> impl ExactSizeIterator<Item = PageView<'_>> {
        self.pages_from(layer, kv_head, 0)
    }

    /// As [`pages`](Self::pages), from the page on that holds the token.
    pub fn pages_from(
        &self,
        layer: usize,
        kv_head: usize,
        from_token: usize,
    ) -> impl ExactSizeIterator<Item = PageView<'_>> {
        let shape = self.shape();
        let exists = layer < shape.layers && kv_head < shape.kv_heads;
        let table = if exists { layer * shape.kv_heads + kv_head } else { 0 };
        let pages = if exists { self.keys.pages(table) } else { 0 };
        let first = (from_token / shape.page_tokens).min(pages);
        let near: Vec<usize> = (first..pages)
            .filter(|page| !self.keys.is_far(table, *page) && !self.values.is_far(table, *page))
            .collect();
        near.into_iter().map(move |page| {
            let (keys, values) = (self.keys.plane(table, page), self.values.plane(table, page));
            self.parts().page_view(table, page, keys, values)
        })
    }

    /// A page of a (layer, KV head) if its keys and values lie near; `None` for others, and for those that do not exist.
    pub fn near_page(&self, layer: usize, kv_head: usize, page: usize) -> Option<PageView<'_>> {
        let shape = self.shape();
        if layer >= shape.layers || kv_head >= shape.kv_heads {
            return None;
        }
        let table = layer * shape.kv_heads + kv_head;
        let is_near =
            page < self.keys.pages(table) && !self.keys.is_far(table, page) && !self.values.is_far(table, page);
        is_near.then(|| {
            let (keys, values) = (self.keys.plane(table, page), self.values.plane(table, page));
            self.parts().page_view(table, page, keys, values)
        })
    }

    /// Whether all pages of a layer lie near.
    pub fn is_near(&self, layer: usize) -> bool {
        self.parts().are_near(layer)
    }

    /// Shows pages of a layer to `each`, some at a time and loading ahead: to each call for each KV head pages in order,
    /// after those of earlier calls. `wanted` names the pages of each KV head, as spans of page numbers; `None` is all.
    /// `next` is the layer that will be streamed next, if it is known.
    ///
    /// # Errors
    /// [`KvError::Layer`], [`KvError::DamagedPage`], [`KvError::Disk`], [`KvError::Memory`], and those of `each`.
    pub fn stream<E: From<KvError>>(
        &mut self,
        layer: usize,
        wanted: Option<&[Vec<Span>]>,
        next: Option<usize>,
        each: &mut ShowPages<'_, E>,
    ) -> Result<(), E> {
        self.check_layer(layer)?;
        next.map_or(Ok(()), |next| self.check_layer(next))?;
        let pages = Pages {
            shape: &self.pool.shape,
            keys: &self.keys,
            values: &self.values,
            tokens: &self.tokens,
        };
        self.offload.stream(pages, layer, wanted, next, each)
    }

    /// Shows the pages of a (layer, KV head) from the one that holds `from_token` on, all at once and without values:
    /// for estimates that look through the keys.
    ///
    /// # Errors
    /// As [`stream`](Self::stream); [`KvError::NearBudget`] when [`Outlook`](crate::Outlook) did not say that keys
    /// would be looked through.
    pub fn with_keys<T>(
        &mut self,
        layer: usize,
        kv_head: usize,
        from_token: usize,
        show: impl FnOnce(&[PageView<'_>]) -> T,
    ) -> Result<T, KvError> {
        self.check_layer(layer)?;
        let pages = Pages {
            shape: &self.pool.shape,
            keys: &self.keys,
            values: &self.values,
            tokens: &self.tokens,
        };
        self.offload.with_keys(pages, layer, kv_head, from_token, show)
    }

    /// Forgets everything after the first `tokens` tokens, in every layer; freed pages go back to the operating
    /// system. Heads that have let tokens go count those that they still hold.
    pub fn truncate(&mut self, tokens: usize) {
        for held in &mut self.tokens {
            *held = tokens.min(*held);
        }
        self.drain_pages(tokens.div_ceil(self.shape().page_tokens), usize::MAX);
    }

    /// Forgets everything after the first `tokens` tokens of one (layer, KV head) that exists.
    pub fn truncate_head(&mut self, layer: usize, kv_head: usize, tokens: usize) {
        let table = layer * self.shape().kv_heads + kv_head;
        self.tokens[table] = tokens.min(self.tokens[table]);
        self.drain_table(table, tokens.div_ceil(self.shape().page_tokens), usize::MAX);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// What the cache holds, pages that it shares included.
    pub fn usage(&self) -> KvUsage {
        let [near, ram, disk] = {
            let (keys, values) = (self.keys.tier_bytes(), self.values.tier_bytes());
            [keys[0] + values[0], keys[1] + values[1], keys[2] + values[2]]
        };
        let device = match self.tiers().device.reads_main_memory() {
            // The newest pages count for the device tier.
            true => near.min(self.tiers().device_budget_bytes),
            false => near,
        };
        let bookkeeping = self.keys.bookkeeping_bytes()
            + self.values.bookkeeping_bytes()
            + self.tokens.capacity() * size_of::<usize>();
        KvUsage {
            tokens: self.tokens.iter().copied().max().unwrap_or(0),
            pages: (0..self.tokens.len()).map(|table| self.keys.pages(table)).sum(),
            bytes_by_tier: TierBytes {
                device,
                ram: near - device + ram,
                disk,
            },
            shared_bytes: self.keys.shared_bytes() + self.values.shared_bytes(),
            bookkeeping_bytes: bookkeeping as u64,
        }
    }

    /// Bytes of memory mapped for pages, shared ones included, and for those on their way: at least the pages' own, at
    /// most the budgets of device and RAM.
    pub fn mapped_bytes(&self) -> u64 {
        let (keys, values) = (self.keys.mapped_bytes(), self.values.mapped_bytes());
        (keys.iter().chain(&values).sum::<usize>() + self.offload.allocated_bytes()) as u64
    }

    /// Bytes of the disk tier's files: at most its budget.
    pub fn file_bytes(&self) -> u64 {
        self.keys.file_bytes() + self.values.file_bytes()
    }

    /// Brings the disk tier's files to the disk and asks the system to keep none of them in memory
    /// ([`forget_cached`](crate::forget_cached)), so that a measurement reads the disk and not memory.
    ///
    /// # Errors
    /// [`KvError::Disk`].
    pub fn forget_cached_files(&mut self) -> Result<(), KvError> {
        self.offload.forget();
        self.keys.forget_cached_files()?;
        self.values.forget_cached_files()
    }

    /// The planes of a page that exists, wherever they lie, and how many tokens it holds.
    pub(crate) fn page_planes(&self, layer: usize, kv_head: usize, page: usize) -> Result<PagePlanes<'_>, KvError> {
        let table = layer * self.shape().kv_heads + kv_head;
        let tokens = self.parts().tokens_in(table, page);
        Ok((self.keys.bytes(table, page)?, self.values.bytes(table, page)?, tokens))
    }

    /// Takes `pages` entries from entry `first` on out of every table and frees their slots.
    pub(crate) fn drain_pages(&mut self, first: usize, pages: usize) {
        self.offload.forget();
        let tables = 0..self.tokens.len();
        self.keys.drain(tables.clone(), first, pages);
        self.values.drain(tables, first, pages);
    }

    /// Takes `pages` entries from entry `first` on out of one table and frees their slots.
    pub(crate) fn drain_table(&mut self, table: usize, first: usize, pages: usize) {
        self.offload.forget();
        self.keys.drain(table..table + 1, first, pages);
        self.values.drain(table..table + 1, first, pages);
    }

    /// Moves pages together after many have gone, so that others can have their room.
    pub(crate) fn defragment(&mut self) {
        self.keys.defragment();
        self.values.defragment();
    }

    /// Forgets what was loaded ahead: pages are about to change.
    pub(crate) fn forget_loaded(&mut self) {
        self.offload.forget();
    }

    /// Changes the keys of a page that exists, wherever it lies; one that was shared becomes the sequence's own.
    pub(crate) fn change_keys(
        &mut self,
        layer: usize,
        kv_head: usize,
        page: usize,
        change: impl FnOnce(&mut PlaneMut<'_>),
    ) -> Result<(), KvError> {
        let table = layer * self.shape().kv_heads + kv_head;
        if self.keys.is_far(table, page) || page < self.keys.shared_pages(table) {
            self.offload.forget();
        }
        self.own_pages(table, page)?;
        self.keys.change(table, page, change)
    }

    pub(crate) fn parts(&self) -> Pages<'_> {
        Pages {
            shape: &self.pool.shape,
            keys: &self.keys,
            values: &self.values,
            tokens: &self.tokens,
        }
    }

    pub(crate) fn check_layer(&self, layer: usize) -> Result<(), KvError> {
        let layers = self.shape().layers;
        if layer < layers {
            Ok(())
        } else {
            Err(KvError::Layer { layer, layers })
        }
    }
}
