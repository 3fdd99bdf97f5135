//! Tokens leave from the middle of one (layer, KV head), and those that stay move together.

use riffle_attention::{Format, Plane, PlaneMut, read_keys, read_values, write_keys, write_values};

use crate::arena::as_plane;
use crate::store::PlaneStore;
use crate::{KvCache, KvError};

impl KvCache {
    /// Keeps of a (layer, KV head) the tokens at `kept`, ascending places among those it holds, and lets go of the
    /// others. What stays moves down to places without gaps, to the bit what it was, and the pages that run empty are
    /// freed. Returns how many.
    ///
    /// A head that shares pages takes a copy of those that change first.
    ///
    /// # Errors
    /// [`KvError::Layer`]; [`KvError::Tokens`] for places that it does not hold or that do not ascend; nothing has changed
    /// then. [`KvError::Budget`] when there is no room for the copies. What reading from and writing to a farther tier can
    /// meet: the head is empty then, since part of it had moved.
    pub fn retain(&mut self, layer: usize, kv_head: usize, kept: &[usize]) -> Result<usize, KvError> {
        let shape = *self.shape();
        if layer >= shape.layers || kv_head >= shape.kv_heads {
            let layers = shape.layers;
            return Err(KvError::Layer { layer, layers });
        }
        let table = layer * shape.kv_heads + kv_head;
        let held = self.tokens[table];
        let ascending = kept.is_sorted_by(|a, b| a < b) && kept.last().is_none_or(|last| *last < held);
        if !ascending {
            let wanted = kept.iter().copied().max().map_or(0, |last| last + 1);
            return Err(KvError::Tokens { layer, held, wanted });
        }
        // Whole pages before the first token that leaves stay as they are.
        let first = kept
            .iter()
            .enumerate()
            .take_while(|(place, kept)| place == *kept)
            .count()
            / shape.page_tokens;
        if first == kept.len().div_ceil(shape.page_tokens) && kept.len() == held {
            return Ok(0);
        }
        self.forget_loaded();
        self.own_pages(table, first.min(kept.len().div_ceil(shape.page_tokens)))?;
        let before = self.keys.pages(table);
        let (keys, values) = (
            (shape.key_format, read_keys as Read, write_keys as Write),
            (shape.value_format, read_values as Read, write_values as Write),
        );
        let moved = gather(
            &mut self.keys,
            table,
            first,
            kept,
            shape.page_tokens,
            shape.head_dim,
            keys,
        )
        .and_then(|()| {
            gather(
                &mut self.values,
                table,
                first,
                kept,
                shape.page_tokens,
                shape.head_dim,
                values,
            )
        });
        let left = if moved.is_ok() { kept.len() } else { 0 };
        self.tokens[table] = left;
        self.drain_table(table, left.div_ceil(shape.page_tokens), usize::MAX);
        self.defragment();
        moved.map(|()| before - self.keys.pages(table))
    }

    /// Forgets the first `pages` whole pages of one layer; later tokens move down by as many places. Freed pages go back
    /// to the operating system.
    ///
    /// # Errors
    /// [`KvError::Layer`]; [`KvError::Tokens`] where a KV head of the layer does not hold so many whole pages. Nothing has
    /// changed then.
    pub fn remove_first_pages(&mut self, layer: usize, pages: usize) -> Result<(), KvError> {
        self.check_layer(layer)?;
        let shape = *self.shape();
        let tables = layer * shape.kv_heads..(layer + 1) * shape.kv_heads;
        let removed = pages.saturating_mul(shape.page_tokens);
        let held = self.tokens[tables.clone()].iter().copied().min().unwrap_or(0);
        if removed > held {
            let wanted = removed;
            return Err(KvError::Tokens { layer, held, wanted });
        }
        for table in tables {
            self.tokens[table] -= removed;
            self.drain_table(table, 0, pages);
        }
        Ok(())
    }
}

type Read = fn(&Plane<'_>, usize, usize, usize, &mut [f32], usize) -> Result<(), riffle_attention::AttendError>;
type Write = fn(&mut PlaneMut<'_>, usize, usize, usize, &[f32], usize) -> Result<(), riffle_attention::AttendError>;

/// Moves the tokens at `kept` to places from page `first` on, page by page: none is overwritten before it has moved,
/// since all move down.
fn gather(
    store: &mut PlaneStore,
    table: usize,
    first: usize,
    kept: &[usize],
    page_tokens: usize,
    head_dim: usize,
    (format, read, write): (Format, Read, Write),
) -> Result<(), KvError> {
    let mut rows = vec![0.0; page_tokens * head_dim];
    for (number, kept) in kept.chunks(page_tokens).enumerate().skip(first) {
        let mut source = None;
        for (from, run) in runs_in_pages(kept, page_tokens) {
            let (page, slot) = (kept[from] / page_tokens, kept[from] % page_tokens);
            let plane = match source.take() {
                Some((number, plane)) if number == page => plane,
                _ => store.bytes(table, page)?,
            };
            let out = &mut rows[from * head_dim..];
            read(&as_plane(format, &plane), head_dim, slot, run, out, head_dim).expect("lengths are checked");
            source = Some((page, plane));
        }
        drop(source);
        store.change(table, number, |plane| {
            write(plane, head_dim, 0, kept.len(), &rows, head_dim).expect("lengths are checked");
        })?;
    }
    Ok(())
}

/// (place in `kept`, length) of runs of neighbours that lie in one page.
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
