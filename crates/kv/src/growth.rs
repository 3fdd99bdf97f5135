//! Grows a sequence: either takes pages within the pool's budgets, or changes nothing.

use std::sync::Arc;

use crate::disk::PlaneId;
use crate::pool::{PageStore, PlaneKind};
use crate::reader::plane_id;
use crate::table::PageTable;
use crate::{KvCache, KvError, largest};

impl KvCache {
    /// Extends a layer of whole pages by one page of `tokens` tokens. `fill` writes the planes: for each KV head
    /// keys, then values.
    pub(crate) fn append_page(
        &mut self,
        layer: usize,
        tokens: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), KvError> {
        let pool = Arc::clone(&self.pool);
        let page_tokens = pool.shape.page_tokens;
        let store = &mut *pool.write();
        let number = self.tokens(layer) / page_tokens;
        self.take_pages(store, layer, tokens)?;
        for table in pool.shape.tables_of(layer) {
            let page = self.tables[table].pages()[number];
            for kind in PlaneKind::BOTH {
                fill(store.bytes_mut(page, kind));
            }
            self.set_tokens(store, table, number * page_tokens + tokens);
        }
        Ok(())
    }

    /// Adds a page of `tokens` tokens to a page table of whole pages; `fill` writes keys and values.
    pub(crate) fn push_page<E: From<KvError>>(
        &mut self,
        table: usize,
        tokens: usize,
        fill: impl FnMut(PlaneKind, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let pool = Arc::clone(&self.pool);
        let store = &mut *pool.write();
        store.make_room(pool.shape.size_of_table(table), [1, 1])?;
        self.push_pages(store, table, 1);
        let page = *self.tables[table].pages().last().expect("a page was added");
        let mut fill = fill;
        for kind in PlaneKind::BOTH {
            fill(kind, store.bytes_mut(page, kind))?;
        }
        self.set_tokens(store, table, self.tokens[table] + tokens);
        Ok(())
    }

    /// Checks that the pool has room for a sequence with this many tokens in each (layer, KV head).
    pub(crate) fn check_fits(&self, tokens: &[usize]) -> Result<(), KvError> {
        let store = self.pool.read();
        let mut pages = store.counts();
        for (table, tokens) in tokens.iter().enumerate() {
            let (layer, _) = self.shape().place_of(table);
            let of_size = &mut pages[self.shape().size_of(layer)];
            *of_size = of_size.saturating_add(tokens.div_ceil(self.shape().page_tokens));
            if !store.fits(pages) {
                return Err(self.over_budget(&store, layer, *tokens));
            }
        }
        Ok(())
    }

    /// Extends the layer's tables by `added` tokens. Ensures that the pages to be written are near and not shared, or
    /// changes nothing that a reader could notice.
    pub(crate) fn take_pages(&mut self, store: &mut PageStore, layer: usize, added: usize) -> Result<(), KvError> {
        self.wake(store);
        let (page_tokens, size) = (self.shape().page_tokens, self.shape().size_of(layer));
        let tables = self.shape().tables_of(layer);
        let new_pages: Vec<usize> = tables
            .clone()
            .map(|table| (self.tokens[table] + added).div_ceil(page_tokens) - self.tables[table].pages().len())
            .collect();
        let new: usize = new_pages.iter().sum();
        let is_partial = |table: &usize| added > 0 && !self.tokens[*table].is_multiple_of(page_tokens);
        let partial: Vec<usize> = tables.clone().filter(is_partial).collect();
        let (mut planes, mut copies) = ([new; 2], 0);
        for table in &partial {
            let page = *self.tables[*table].pages().last().expect("a page holds its tokens");
            let [keys, values] = store.planes_to_write(page);
            planes = [planes[0] + keys, planes[1] + values];
            copies += usize::from(store.is_shared(page));
        }
        if !store.fits_more(size, new + copies) {
            return Err(self.over_budget(store, layer, self.tokens(layer) + added));
        }
        store.make_room(size, planes)?;
        for table in partial {
            let last = self.tables[table].pages().len() - 1;
            self.make_writable(store, table, last)?;
            if self.tables[table].set_cut(false) {
                store.renew(self.tables[table].pages()[last]);
            }
        }
        for (table, pages) in tables.zip(new_pages) {
            self.push_pages(store, table, pages);
        }
        Ok(())
    }

    /// Makes room for copies of shared pages.
    pub(crate) fn make_room_for_copies(
        &self,
        store: &mut PageStore,
        table: usize,
        copies: usize,
    ) -> Result<(), KvError> {
        let (layer, _) = self.shape().place_of(table);
        let size = self.shape().size_of(layer);
        if !store.fits_more(size, copies) {
            return Err(self.over_budget(store, layer, self.tokens[table]));
        }
        store.make_room(size, [copies; 2])
    }

    /// Makes a page near and unshared; room for its planes must exist.
    pub(crate) fn make_writable(&mut self, store: &mut PageStore, table: usize, number: usize) -> Result<(), KvError> {
        let shape = self.pool.shape;
        let id = |kind: PlaneKind| -> PlaneId { plane_id(&shape, kind, table, number) };
        let page = self.tables[table].pages()[number];
        if store.is_shared(page) {
            let row = self.rows[self.tables[table].row(number)];
            let copy = store.copy(page, (table, row), id)?;
            self.tables[table].replace(number, copy, store);
        } else if !store.is_near(page) {
            store.bring(page, id)?;
        }
        store.forget_contents(self.tables[table].pages()[number]);
        Ok(())
    }

    /// Adds pages to a table; room for them must exist.
    fn push_pages(&mut self, store: &mut PageStore, table: usize, pages: usize) {
        self.tables[table].reserve(pages);
        for _ in 0..pages {
            let row = self.tables[table].rows();
            while self.rows.len() <= row {
                self.rows.push(store.begin_row());
            }
            let page = store.take(table, self.rows[row]);
            self.tables[table].push(page, store);
        }
    }

    /// Marks the pages to keep near again, after the sequence was [parked](Self::park).
    pub(crate) fn wake(&mut self, store: &mut PageStore) {
        if std::mem::take(&mut self.is_parked) {
            let page_tokens = self.pool.shape.page_tokens;
            for (table, tokens) in self.tables.iter_mut().zip(&self.tokens) {
                table.wake(tokens / page_tokens, store);
            }
        }
    }

    fn over_budget(&self, store: &PageStore, layer: usize, wanted_tokens: usize) -> KvError {
        let shape = &self.pool.shape;
        let (page_tokens, tables) = (shape.page_tokens, shape.tables_of(layer));
        let mut of_others = store.counts();
        for page in self.tables.iter().flat_map(PageTable::pages) {
            of_others[store.size(*page)] -= 1;
        }
        let rows_fit = |rows: usize| {
            let mut counts = of_others;
            for layer in 0..shape.layers.count() {
                let more = rows.saturating_mul(shape.layer(layer).kv_heads);
                let of_size = &mut counts[shape.size_of(layer)];
                *of_size = of_size.saturating_add(more);
            }
            store.fits(counts)
        };
        let free = largest(usize::MAX, |pages| store.fits_more(shape.size_of(layer), pages));
        let budget = |bytes: Option<u64>| bytes.unwrap_or(u64::MAX);
        let tiers = self.tiers();
        let disk = tiers.disk.as_ref().map_or(0, |disk| budget(disk.budget_bytes));
        let ram = budget(tiers.ram_budget_bytes);
        KvError::Budget {
            budget_bytes: tiers.device_budget_bytes.saturating_add(ram).saturating_add(disk),
            fitting_tokens: largest(usize::MAX, rows_fit).saturating_mul(page_tokens),
            layer,
            layer_tokens: (self.tables[tables.start].pages().len() + free / tables.len()) * page_tokens,
            wanted_tokens,
        }
    }
}
