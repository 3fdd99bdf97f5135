use std::sync::Arc;

use riffle_attention::{PageView, PlaneMut, Span, write_keys, write_values};

use crate::disk::{DiskSpace, HASH_BYTES};
use crate::offload::{OffloadEngine, Pages};
use crate::store::{PlaneBytes, PlaneStore};
use crate::tiers::Layout;
use crate::{CacheShape, KvError, KvTiers, KvUsage, TierBytes};

/// Keys and values of one sequence, in pages of (layer, KV head).
///
/// The newest pages and the first lie in the nearest tier; where farther tiers are given, the oldest leave for them
/// when room is needed, and come back through [`stream`](Self::stream) to be read.
pub struct KvCache {
    shape: CacheShape,
    tiers: KvTiers,
    space: Arc<DiskSpace>,
    pub(crate) keys: PlaneStore,
    pub(crate) values: PlaneStore,
    /// `[layers]`
    tokens: Vec<usize>,
    offload: OffloadEngine,
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
        shape.validate()?;
        tiers.check()?;
        let layout = Layout::new(&tiers, &shape);
        let space = Arc::new(DiskSpace::new(tiers.disk.as_ref().and_then(|disk| disk.budget_bytes)));
        let store =
            |what, format, slots| PlaneStore::new(what, &shape, format, &tiers, slots, layout.ram_slots, &space);
        Ok(Self {
            keys: store("keys", shape.key_format, layout.near_key_slots)?,
            values: store("values", shape.value_format, layout.near_value_slots)?,
            tokens: vec![0; shape.layers],
            offload: OffloadEngine::new(&tiers, &shape, layout.scan_bytes),
            shape,
            tiers,
            space,
        })
    }

    /// The cache's shape.
    pub fn shape(&self) -> &CacheShape {
        &self.shape
    }

    /// The tiers its pages may lie in.
    pub fn tiers(&self) -> &KvTiers {
        &self.tiers
    }

    /// Tokens in a layer; 0 for a layer that does not exist.
    pub fn tokens(&self, layer: usize) -> usize {
        self.tokens.get(layer).copied().unwrap_or(0)
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
        } = self.shape;
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
        let held = self.tokens[layer];
        let added = keys.len() / width;
        self.take_pages(layer, held + added)?;

        for kv_head in 0..kv_heads {
            let table = layer * kv_heads + kv_head;
            let mut token = 0;
            while token < added {
                let slot = (held + token) % page_tokens;
                let count = (page_tokens - slot).min(added - token);
                let at = token * width + kv_head * head_dim;
                let page = (held + token) / page_tokens;
                let place = self.keys.slot(table, page);
                let plane = &mut self.keys.near.plane_mut(place);
                write_keys(plane, head_dim, slot, count, &keys[at..], width).expect("lengths are checked");
                let place = self.values.slot(table, page);
                let plane = &mut self.values.near.plane_mut(place);
                write_values(plane, head_dim, slot, count, &values[at..], width).expect("lengths are checked");
                token += count;
            }
        }
        self.tokens[layer] = held + added;
        Ok(())
    }

    /// The pages of a (layer, KV head) whose keys and values lie near, in order: all of them while nothing has left for
    /// a farther tier. None for a layer or head that does not exist.
    pub fn pages(&self, layer: usize, kv_head: usize) -> impl ExactSizeIterator<Item = PageView<'_>> {
        let exists = layer < self.shape.layers && kv_head < self.shape.kv_heads;
        let table = if exists {
            layer * self.shape.kv_heads + kv_head
        } else {
            0
        };
        let pages = if exists { self.keys.pages(table) } else { 0 };
        let (keys, values) = (self.keys.far(table), self.values.far(table));
        let far = match (keys.is_empty(), values.is_empty()) {
            (true, _) => values,
            (_, true) => keys,
            _ => keys.start.min(values.start)..keys.end.max(values.end),
        };
        let shown = if exists { pages - far.len() } else { 0 };
        (0..shown).map(move |near| {
            let page = if near < far.start { near } else { near + far.len() };
            let keys = self.keys.near.plane(self.keys.slot(table, page));
            let values = self.values.near.plane(self.values.slot(table, page));
            self.parts().page_view(layer, page, keys, values)
        })
    }

    /// Whether all pages of a layer lie near.
    pub fn is_near(&self, layer: usize) -> bool {
        let heads = self.shape.kv_heads;
        (layer * heads..(layer + 1) * heads)
            .all(|table| self.keys.far(table).is_empty() && self.values.far(table).is_empty())
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
            shape: &self.shape,
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
            shape: &self.shape,
            keys: &self.keys,
            values: &self.values,
            tokens: &self.tokens,
        };
        self.offload.with_keys(pages, layer, kv_head, from_token, show)
    }

    /// Forgets everything after the first `tokens` tokens, in every layer; freed pages go back to the operating
    /// system.
    pub fn truncate(&mut self, tokens: usize) {
        for held in &mut self.tokens {
            *held = tokens.min(*held);
        }
        self.drain_pages(tokens.div_ceil(self.shape.page_tokens), usize::MAX);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// What the cache holds.
    pub fn usage(&self) -> KvUsage {
        let [near, ram, disk] = {
            let (keys, values) = (self.keys.tier_bytes(), self.values.tier_bytes());
            [keys[0] + values[0], keys[1] + values[1], keys[2] + values[2]]
        };
        let device = match self.tiers.device.reads_main_memory() {
            // The newest pages count for the device tier.
            true => near.min(self.tiers.device_budget_bytes),
            false => near,
        };
        let bookkeeping = self.keys.bookkeeping_bytes()
            + self.values.bookkeeping_bytes()
            + self.tokens.capacity() * size_of::<usize>();
        KvUsage {
            tokens: self.tokens.iter().copied().max().unwrap_or(0),
            pages: self.page_total(),
            bytes_by_tier: TierBytes {
                device,
                ram: near - device + ram,
                disk,
            },
            bookkeeping_bytes: bookkeeping as u64,
        }
    }

    /// Bytes of memory mapped for pages and for those on their way: at least the pages' own, at most the budgets of
    /// device and RAM.
    pub fn mapped_bytes(&self) -> u64 {
        let (keys, values) = (self.keys.mapped_bytes(), self.values.mapped_bytes());
        (keys.iter().chain(&values).sum::<usize>() + self.offload.allocated_bytes()) as u64
    }

    /// Bytes of the disk tier's files, checksums included: at most its budget.
    pub fn file_bytes(&self) -> u64 {
        self.keys.file_bytes() + self.values.file_bytes()
    }

    /// The planes of a page that exists, wherever they lie, and how many tokens it holds.
    pub(crate) fn page_planes(&self, layer: usize, kv_head: usize, page: usize) -> Result<PagePlanes<'_>, KvError> {
        let table = layer * self.shape.kv_heads + kv_head;
        let tokens = self.page_tokens_held(layer, page);
        Ok((self.keys.bytes(table, page)?, self.values.bytes(table, page)?, tokens))
    }

    pub(crate) fn set_tokens(&mut self, layer: usize, tokens: usize) {
        self.tokens[layer] = tokens;
    }

    /// Takes `pages` entries from entry `first` on out of every table and frees their slots.
    pub(crate) fn drain_pages(&mut self, first: usize, pages: usize) {
        self.offload.forget();
        self.keys.drain(first, pages);
        self.values.drain(first, pages);
    }

    /// Changes the keys of a page that exists, wherever it lies.
    pub(crate) fn change_keys(
        &mut self,
        layer: usize,
        kv_head: usize,
        page: usize,
        change: impl FnOnce(&mut PlaneMut<'_>),
    ) -> Result<(), KvError> {
        let table = layer * self.shape.kv_heads + kv_head;
        if self.keys.is_far(table, page) {
            self.offload.forget();
        }
        self.keys.change(table, page, change)
    }

    /// Tokens in a page that exists.
    pub(crate) fn page_tokens_held(&self, layer: usize, page: usize) -> usize {
        (self.tokens[layer] - page * self.shape.page_tokens).min(self.shape.page_tokens)
    }

    /// Extends a layer that holds whole pages by one whose planes `fill` fills in: for each KV head keys, then values.
    pub(crate) fn append_page(&mut self, layer: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<(), KvError> {
        let CacheShape {
            kv_heads, page_tokens, ..
        } = self.shape;
        let page = self.tokens[layer] / page_tokens;
        self.take_pages(layer, (page + 1) * page_tokens)?;
        for table in layer * kv_heads..(layer + 1) * kv_heads {
            for store in [&mut self.keys, &mut self.values] {
                let slot = store.slot(table, page);
                fill(store.near.bytes_mut(slot));
            }
        }
        self.tokens[layer] = (page + 1) * page_tokens;
        Ok(())
    }

    /// Sets an empty cache to hold this many tokens in each layer; their pages are still to be added and filled in.
    pub(crate) fn begin_unfilled(&mut self, tokens: Vec<usize>) -> Result<(), KvError> {
        let mut pages = 0;
        for (layer, tokens) in tokens.iter().enumerate() {
            let more = tokens.div_ceil(self.shape.page_tokens).checked_mul(self.shape.kv_heads);
            pages = more.map_or(usize::MAX, |more| more.saturating_add(pages));
            if !self.fits(pages) {
                return Err(self.over_budget(layer, *tokens));
            }
        }
        self.tokens = tokens;
        Ok(())
    }

    /// Adds the next page of a (layer, KV head): its keys and values, to be filled in.
    pub(crate) fn next_unfilled(&mut self, layer: usize, kv_head: usize) -> Result<[&mut [u8]; 2], KvError> {
        let CacheShape {
            kv_heads, page_tokens, ..
        } = self.shape;
        let table = layer * kv_heads + kv_head;
        let tokens = &self.tokens;
        let take = |store: &mut PlaneStore| {
            let filled: Vec<usize> = (0..tokens.len() * kv_heads).map(|table| store.pages(table)).collect();
            let full = |table: usize| filled[table].min(tokens[table / kv_heads] / page_tokens);
            store.make_room(1, &full)?;
            store.take(table, 1);
            Ok::<_, KvError>(store.slot(table, filled[table]))
        };
        let (keys, values) = (take(&mut self.keys)?, take(&mut self.values)?);
        Ok([self.keys.near.bytes_mut(keys), self.values.near.bytes_mut(values)])
    }

    fn parts(&self) -> Pages<'_> {
        Pages {
            shape: &self.shape,
            keys: &self.keys,
            values: &self.values,
            tokens: &self.tokens,
        }
    }

    fn check_layer(&self, layer: usize) -> Result<(), KvError> {
        let layers = self.shape.layers;
        if layer < layers {
            Ok(())
        } else {
            Err(KvError::Layer { layer, layers })
        }
    }

    fn page_total(&self) -> usize {
        (0..self.shape.layers * self.shape.kv_heads)
            .map(|table| self.keys.pages(table))
            .sum()
    }

    /// Extends the layer's tables to `tokens` and brings the page that will be written to near, or changes nothing that
    /// a reader could tell.
    fn take_pages(&mut self, layer: usize, tokens: usize) -> Result<(), KvError> {
        let CacheShape {
            kv_heads, page_tokens, ..
        } = self.shape;
        let tables = layer * kv_heads..(layer + 1) * kv_heads;
        let held = self.keys.pages(tables.start);
        let new_pages = tokens.div_ceil(page_tokens) - held;
        self.check_budget(layer, tokens, new_pages)?;
        let written_to = self.tokens[layer] / page_tokens;
        let full = |table: usize| self.tokens[table / kv_heads] / page_tokens;
        let bring = |store: &PlaneStore, table: usize| tokens > self.tokens[layer] && store.is_far(table, written_to);
        if tables
            .clone()
            .any(|table| bring(&self.keys, table) || bring(&self.values, table))
        {
            self.offload.forget();
        }
        if new_pages > 0 && !self.tiers.device.reads_main_memory() {
            self.offload.settle();
        }
        for store in [&mut self.keys, &mut self.values] {
            let last = tables.clone().filter(|table| bring(store, *table)).collect::<Vec<_>>();
            store.make_room(last.len(), &full)?;
            for table in last {
                store.bring_last(table)?;
            }
        }
        let planes = new_pages * kv_heads;
        self.keys.make_room(planes, &full)?;
        if let Err(error) = self.values.make_room(planes, &full) {
            self.keys.unreserve();
            return Err(error);
        }
        for table in tables {
            self.keys.take(table, new_pages);
            self.values.take(table, new_pages);
        }
        Ok(())
    }

    /// Refuses what no tier has room for.
    fn check_budget(&self, layer: usize, tokens: usize, new_pages: usize) -> Result<(), KvError> {
        let kv_heads = self.shape.kv_heads;
        let held = self.page_total();
        if new_pages
            .checked_mul(kv_heads)
            .is_some_and(|more| self.fits(held.saturating_add(more)))
        {
            return Ok(());
        }
        Err(self.over_budget(layer, tokens))
    }

    fn over_budget(&self, layer: usize, wanted_tokens: usize) -> KvError {
        let (kv_heads, held) = (self.shape.kv_heads, self.page_total());
        let most = largest(usize::MAX, |pages| self.fits(pages));
        let pages_of_token = self.shape.layers * kv_heads;
        let budget = |bytes: Option<u64>| bytes.unwrap_or(u64::MAX);
        let disk = self.tiers.disk.as_ref().map_or(0, |disk| budget(disk.budget_bytes));
        let ram = budget(self.tiers.ram_budget_bytes);
        KvError::Budget {
            budget_bytes: self.tiers.device_budget_bytes.saturating_add(ram).saturating_add(disk),
            fitting_tokens: (most / pages_of_token).saturating_mul(self.shape.page_tokens),
            layer,
            layer_tokens: (self.keys.pages(layer * kv_heads) + (most - held) / kv_heads) * self.shape.page_tokens,
            wanted_tokens,
        }
    }

    /// Whether the tiers hold this many pages.
    fn fits(&self, pages: usize) -> bool {
        let (keys, values) = (self.keys.on_disk_of(pages), self.values.on_disk_of(pages));
        if keys == 0 && values == 0 {
            return true;
        }
        let bytes = |planes: usize, plane: u64| (planes as u128) * u128::from(plane + HASH_BYTES as u64);
        let bytes = bytes(keys, self.shape.key_plane_bytes()) + bytes(values, self.shape.value_plane_bytes());
        let budget = self.space.budget_bytes.unwrap_or(u64::MAX);
        self.keys.has_disk() && bytes <= u128::from(budget)
    }
}

/// The largest number up to `limit` that fits, given that all smaller ones do.
fn largest(limit: usize, fits: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, limit);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}
