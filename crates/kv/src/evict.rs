//! Evicts tokens from the middle of one (layer, KV head) and moves the remaining tokens together.

use std::sync::Arc;

use riffle_attention::{Plane, read_keys, read_values, write_keys, write_values};

use crate::pool::{PageStore, PlaneKind};
use crate::reader::plane_id;
use crate::{KvCache, KvError};

impl KvCache {
    /// Keeps the tokens `kept` of a (layer, KV head), ascending head slots, and evicts the others. Kept tokens move
    /// to consecutive slots with the same bits, and empty pages are freed. Returns the number of freed pages.
    ///
    /// Shared pages that change are copied first.
    ///
    /// # Errors
    /// [`KvError::Layer`]; [`KvError::Tokens`] for slots that do not exist or do not ascend; [`KvError::Budget`] if
    /// there is no room for the copies. Nothing has changed then. After an error of a farther tier the head is empty,
    /// because some tokens had already moved.
    pub fn retain(&mut self, layer: usize, kv_head: usize, kept: &[usize]) -> Result<usize, KvError> {
        let shape = *self.shape();
        let layers = shape.layers.count();
        if layer >= layers || kv_head >= shape.layer(layer).kv_heads {
            return Err(KvError::Layer { layer, layers });
        }
        let table = shape.tables_of(layer).start + kv_head;
        let held = self.tokens[table];
        let ascending = kept.is_sorted_by(|a, b| a < b) && kept.last().is_none_or(|last| *last < held);
        if !ascending {
            let wanted = kept.iter().copied().max().map_or(0, |last| last + 1);
            return Err(KvError::Tokens { layer, held, wanted });
        }
        // Whole pages before the first evicted token are unchanged.
        let first = kept
            .iter()
            .enumerate()
            .take_while(|(place, kept)| place == *kept)
            .count()
            / shape.page_tokens;
        if first == kept.len().div_ceil(shape.page_tokens) && kept.len() == held {
            return Ok(0);
        }
        let pool = Arc::clone(&self.pool);
        let store = &mut *pool.write();
        let before = self.tables[table].pages();
        let changed = &before[first..kept.len().div_ceil(shape.page_tokens).max(first)];
        let copies = changed.iter().filter(|page| store.is_shared(**page)).count();
        let before = before.len();
        self.make_room_for_copies(store, table, copies)?;
        let moved = self.gather(store, table, first, kept);
        self.tokens[table] = if moved.is_ok() { kept.len() } else { 0 };
        let left = self.tokens[table].div_ceil(shape.page_tokens);
        self.drain_pages_in(store, table..table + 1, left, usize::MAX);
        store.defragment();
        moved.map(|()| before - left)
    }

    /// Moves the tokens at `kept` to slots from page `first` on, page by page. All tokens move down, so none is
    /// overwritten before it has moved. Room for copies of shared pages must exist.
    fn gather(&mut self, store: &mut PageStore, table: usize, first: usize, kept: &[usize]) -> Result<(), KvError> {
        let page_tokens = self.shape().page_tokens;
        for (number, kept) in kept.chunks(page_tokens).enumerate().skip(first) {
            let rows = [
                self.read_rows(store, table, PlaneKind::Keys, kept)?,
                self.read_rows(store, table, PlaneKind::Values, kept)?,
            ];
            if store.is_shared(self.tables[table].pages()[number]) {
                self.make_writable(store, table, number)?;
            }
            let page = self.tables[table].pages()[number];
            for (kind, rows) in PlaneKind::BOTH.into_iter().zip(rows) {
                let (id, width) = (plane_id(self.shape(), kind, table, number), self.width(table, kind));
                if width == 0 {
                    continue;
                }
                store.change(page, kind, id, |plane| {
                    let written = match kind {
                        PlaneKind::Keys => write_keys(plane, width, 0, kept.len(), &rows, width),
                        PlaneKind::Values => write_values(plane, width, 0, kept.len(), &rows, width),
                    };
                    written.expect("lengths are checked");
                })?;
            }
        }
        Ok(())
    }

    /// Keys or values of tokens of a page table at ascending places, `[tokens, width]`.
    fn read_rows(
        &self,
        store: &PageStore,
        table: usize,
        kind: PlaneKind,
        places: &[usize],
    ) -> Result<Vec<f32>, KvError> {
        let (page_tokens, width) = (self.shape().page_tokens, self.width(table, kind));
        if width == 0 {
            return Ok(Vec::new());
        }
        let read: Read = match kind {
            PlaneKind::Keys => read_keys,
            PlaneKind::Values => read_values,
        };
        let format = self.shape().format(kind);
        let mut rows = vec![0.0; places.len() * width];
        let mut source = None;
        for (from, run) in runs_in_pages(places, page_tokens) {
            let (number, slot) = (places[from] / page_tokens, places[from] % page_tokens);
            let plane = match source.take() {
                Some((found, plane)) if found == number => plane,
                _ => self.pages_in(store).bytes(table, number, kind)?,
            };
            let out = &mut rows[from * width..];
            read(&Plane::from_bytes(format, &plane), width, slot, run, out, width).expect("lengths are checked");
            source = Some((number, plane));
        }
        Ok(rows)
    }

    /// Elements of a key, or of a value, of a page table.
    fn width(&self, table: usize, kind: PlaneKind) -> usize {
        self.shape().width(self.shape().size_of_table(table), kind)
    }

    /// Removes the first `pages` whole pages of one layer; later tokens move down by as many slots. Freed pages
    /// return to the operating system.
    ///
    /// # Errors
    /// [`KvError::Layer`]; [`KvError::Tokens`] if a KV head of the layer has fewer whole pages. Nothing has changed
    /// then.
    pub fn remove_first_pages(&mut self, layer: usize, pages: usize) -> Result<(), KvError> {
        self.check_layer(layer)?;
        let shape = *self.shape();
        let tables = shape.tables_of(layer);
        let removed = pages.saturating_mul(shape.page_tokens);
        let held = self.tokens[tables.clone()].iter().copied().min().unwrap_or(0);
        if removed > held {
            let wanted = removed;
            return Err(KvError::Tokens { layer, held, wanted });
        }
        tables.clone().for_each(|table| self.tokens[table] -= removed);
        self.drain_pages(tables, 0, pages);
        Ok(())
    }
}

type Read = fn(&Plane<'_>, usize, usize, usize, &mut [f32], usize) -> Result<(), riffle_attention::AttendError>;

/// Runs of neighbours within one page: (index in `kept`, length).
fn runs_in_pages(kept: &[usize], page_tokens: usize) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (place, token) in kept.iter().enumerate() {
        match runs.last_mut() {
            Some((from, run)) if kept[*from] + *run == *token && token % page_tokens != 0 => *run += 1,
            _ => runs.push((place, 1)),
        }
    }
    runs
}
