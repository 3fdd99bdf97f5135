//! How a cache grows: pages are taken within the budgets, or nothing has changed.

use crate::store::PlaneStore;
use crate::{CacheShape, KvCache, KvError, largest};

impl KvCache {
    /// Makes the shared pages of a table from page `first` on its own.
    pub(crate) fn own_pages(&mut self, table: usize, first: usize) -> Result<(), KvError> {
        let CacheShape {
            kv_heads, page_tokens, ..
        } = self.pool.shape;
        let full = |table: usize| self.tokens[table] / page_tokens;
        let copied = self.keys.shared_pages(table).saturating_sub(first);
        if copied > 0 && !self.fits(self.keys.own_pages() + copied) {
            return Err(self.over_budget(table / kv_heads, self.tokens[table]));
        }
        for store in [&mut self.keys, &mut self.values] {
            store.make_room(copied, &full)?;
            store.own(table, first)?;
            store.drop_unnamed();
        }
        Ok(())
    }

    /// Extends a layer that holds whole pages by one whose planes `fill` fills in: for each KV head keys, then values.
    pub(crate) fn append_page(&mut self, layer: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<(), KvError> {
        let CacheShape {
            kv_heads, page_tokens, ..
        } = self.pool.shape;
        let page = self.tokens(layer) / page_tokens;
        self.take_pages(layer, page_tokens)?;
        for table in layer * kv_heads..(layer + 1) * kv_heads {
            for store in [&mut self.keys, &mut self.values] {
                fill(store.bytes_mut(table, page));
            }
            self.tokens[table] = (page + 1) * page_tokens;
        }
        Ok(())
    }

    /// Sets an empty cache to hold this many tokens in each (layer, KV head); their pages are still to be added and
    /// filled in.
    pub(crate) fn begin_unfilled(&mut self, tokens: Vec<usize>) -> Result<(), KvError> {
        let mut pages = 0usize;
        for (table, tokens) in tokens.iter().enumerate() {
            pages = pages.saturating_add(tokens.div_ceil(self.shape().page_tokens));
            if !self.fits(pages) {
                return Err(self.over_budget(table / self.shape().kv_heads, *tokens));
            }
        }
        self.tokens = tokens;
        Ok(())
    }

    /// Adds the next page of a (layer, KV head): its keys and values, to be filled in.
    pub(crate) fn next_unfilled(&mut self, layer: usize, kv_head: usize) -> Result<[&mut [u8]; 2], KvError> {
        let CacheShape {
            kv_heads, page_tokens, ..
        } = self.pool.shape;
        let table = layer * kv_heads + kv_head;
        let tokens = &self.tokens;
        let take = |store: &mut PlaneStore| {
            let filled: Vec<usize> = (0..tokens.len()).map(|table| store.pages(table)).collect();
            let full = |table: usize| filled[table].min(tokens[table] / page_tokens);
            store.make_room(1, &full)?;
            store.take(table, 1);
            Ok::<_, KvError>(filled[table])
        };
        let page = take(&mut self.keys)?;
        take(&mut self.values)?;
        Ok([self.keys.bytes_mut(table, page), self.values.bytes_mut(table, page)])
    }

    /// Extends the layer's tables by `added` tokens and sees to it that the pages that will be written to lie near and
    /// are the sequence's own, or changes nothing that a reader could tell.
    pub(crate) fn take_pages(&mut self, layer: usize, added: usize) -> Result<(), KvError> {
        let CacheShape {
            kv_heads, page_tokens, ..
        } = self.pool.shape;
        let tables = layer * kv_heads..(layer + 1) * kv_heads;
        let tokens = &self.tokens;
        let full = |table: usize| tokens[table] / page_tokens;
        let new_pages: Vec<usize> = tables
            .clone()
            .map(|table| (tokens[table] + added).div_ceil(page_tokens) - self.keys.pages(table))
            .collect();
        let partial = |table: &usize| added > 0 && !tokens[*table].is_multiple_of(page_tokens);
        let bring = |store: &PlaneStore| -> Vec<usize> {
            let partial = tables.clone().filter(partial);
            partial.filter(|table| store.must_bring_last(*table)).collect()
        };
        let copied = tables.clone().filter(partial);
        let copied = copied.filter(|table| self.keys.shared_pages(*table) == self.keys.pages(*table));
        let more = new_pages.iter().sum::<usize>() + copied.count();
        if !self.fits(self.keys.own_pages().saturating_add(more)) {
            return Err(self.over_budget(layer, self.tokens(layer) + added));
        }
        let brought = [bring(&self.keys), bring(&self.values)];
        if brought.iter().any(|tables| !tables.is_empty()) {
            self.offload.forget();
        }
        let planes = new_pages.iter().sum::<usize>();
        if planes > 0 && !self.pool.tiers.device.reads_main_memory() {
            self.offload.settle();
        }
        let room = (|| {
            for (store, tables) in [&mut self.keys, &mut self.values].into_iter().zip(brought) {
                store.make_room(tables.len(), &full)?;
                for table in tables {
                    store.bring_last(table)?;
                }
            }
            self.keys.make_room(planes, &full)?;
            self.values
                .make_room(planes, &full)
                .inspect_err(|_| self.keys.unreserve())
        })();
        room.map_err(|error| match error {
            // Other sequences have what was still free.
            KvError::NearBudget { .. } if !self.pool.tiers.has_farther() => {
                self.over_budget(layer, self.tokens(layer) + added)
            }
            error => error,
        })?;
        for (table, pages) in tables.zip(new_pages) {
            self.keys.take(table, pages);
            self.values.take(table, pages);
        }
        Ok(())
    }

    fn over_budget(&self, layer: usize, wanted_tokens: usize) -> KvError {
        let CacheShape {
            layers,
            kv_heads,
            page_tokens,
            ..
        } = self.pool.shape;
        let most = largest(usize::MAX, |pages| self.fits(pages));
        let held = self.keys.own_pages();
        let shared: usize = (0..self.tokens.len()).map(|table| self.keys.shared_pages(table)).sum();
        let budget = |bytes: Option<u64>| bytes.unwrap_or(u64::MAX);
        let tiers = self.tiers();
        let disk = tiers.disk.as_ref().map_or(0, |disk| budget(disk.budget_bytes));
        let ram = budget(tiers.ram_budget_bytes);
        KvError::Budget {
            budget_bytes: tiers.device_budget_bytes.saturating_add(ram).saturating_add(disk),
            fitting_tokens: (most.saturating_add(shared) / (layers * kv_heads)).saturating_mul(page_tokens),
            layer,
            layer_tokens: (self.keys.pages(layer * kv_heads) + most.saturating_sub(held) / kv_heads) * page_tokens,
            wanted_tokens,
        }
    }

    /// Whether the tiers hold this many pages beside those that are shared.
    fn fits(&self, pages: usize) -> bool {
        let shape = self.shape();
        let (key_slots, value_slots) = self.near_slots();
        let (keys, values) = (
            self.keys.on_disk_of(pages, key_slots),
            self.values.on_disk_of(pages, value_slots),
        );
        if keys == 0 && values == 0 {
            return true;
        }
        let bytes = |planes: usize, plane: u64| (planes as u128) * u128::from(plane);
        let bytes = bytes(keys, shape.key_plane_bytes()) + bytes(values, shape.value_plane_bytes());
        let ledger = &self.pool.ledgers.disk;
        let budget = ledger.free_bytes().saturating_add(self.file_bytes());
        self.keys.has_disk() && bytes <= u128::from(budget)
    }

    /// Planes of keys and values that may lie near: what the budget allows for, less what other sequences of the pool
    /// and shared pages have taken of it.
    fn near_slots(&self) -> (usize, usize) {
        let shape = self.shape();
        let (keys, values) = (self.keys.near_slots(), self.values.near_slots());
        let bytes = |slots: usize, plane: u64| (slots as u128) * u128::from(plane);
        let mapped = (self.keys.own_mapped_bytes() + self.values.own_mapped_bytes()) as u64;
        let room = self.pool.ledgers.near.free_bytes().saturating_add(mapped);
        let wanted = bytes(keys, shape.key_plane_bytes()) + bytes(values, shape.value_plane_bytes());
        if wanted <= u128::from(room) || room == u64::MAX {
            return (keys, values);
        }
        let pairs = usize::try_from(room / shape.page_bytes()).unwrap_or(usize::MAX);
        (keys.min(pairs), values.min(pairs))
    }
}
