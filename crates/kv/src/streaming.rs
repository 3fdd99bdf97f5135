//! Streaming: removes pages from the middle of a cache, and rewrites keys for new positions.

use riffle_attention::{Plane, read_keys, write_keys};

use crate::pool::PlaneKind;
use crate::{CacheShape, KvCache, KvError};

impl KvCache {
    /// Removes `pages` whole pages of every layer from page `first` on; later tokens move down by as many slots.
    /// Freed pages return to the operating system. Layers with fewer pages lose those they have in this range.
    pub fn remove_pages(&mut self, first: usize, pages: usize) {
        let page_tokens = self.shape().page_tokens;
        for tokens in &mut self.tokens {
            let from = first.saturating_mul(page_tokens).min(*tokens);
            let to = (first.saturating_add(pages).saturating_mul(page_tokens)).min(*tokens);
            *tokens -= to - from;
        }
        self.drain_pages(0..self.tables.len(), first, pages);
    }

    /// Keys of tokens `first..first + tokens` of a layer as f32, `[tokens, kv_heads, key_width]`.
    ///
    /// # Errors
    /// [`KvError::Layer`], [`KvError::Tokens`] if the layer lacks some of them, and errors of reading from a farther
    /// tier.
    pub fn read_keys(&self, layer: usize, first: usize, tokens: usize) -> Result<Vec<f32>, KvError> {
        self.check_tokens(layer, first, tokens)?;
        let CacheShape {
            page_tokens,
            key_format,
            ..
        } = *self.shape();
        let (tables, key_width) = (self.shape().tables_of(layer), self.shape().layer(layer).key_width);
        let width = tables.len() * key_width;
        let mut keys = vec![0.0; tokens * width];
        let store = self.pool.read();
        let sequence = self.pages_in(&store);
        for (kv_head, table) in tables.enumerate() {
            let pages = first / page_tokens..(first + tokens).div_ceil(page_tokens);
            for page in pages.filter(|_| tokens > 0) {
                let start = page * page_tokens;
                let from = start.max(first);
                let to = (start + page_tokens).min(first + tokens);
                let plane = sequence.bytes(table, page, PlaneKind::Keys)?;
                let plane = Plane::from_bytes(key_format, &plane);
                let out = &mut keys[(from - first) * width + kv_head * key_width..];
                read_keys(&plane, key_width, from - start, to - from, out, width).expect("lengths are checked");
            }
        }
        Ok(keys)
    }

    /// Replaces the keys of tokens from `first` on of a layer by `keys`, `[tokens, kv_heads, key_width]`.
    ///
    /// # Errors
    /// [`KvError::Layer`], [`KvError::Length`], [`KvError::Tokens`] if the layer lacks some of them; then nothing is
    /// replaced. After an error of a farther tier, keys before the failure are replaced.
    pub fn replace_keys(&mut self, layer: usize, first: usize, keys: &[f32]) -> Result<(), KvError> {
        self.check_layer(layer)?;
        let page_tokens = self.shape().page_tokens;
        let (tables, key_width) = (self.shape().tables_of(layer), self.shape().layer(layer).key_width);
        let width = tables.len() * key_width;
        if !keys.len().is_multiple_of(width) {
            return Err(KvError::Length {
                keys: keys.len(),
                values: keys.len(),
                strides: [width; 2],
            });
        }
        let tokens = keys.len() / width;
        self.check_tokens(layer, first, tokens)?;
        for (kv_head, table) in tables.enumerate() {
            let mut token = 0;
            while token < tokens {
                let place = (first + token) % page_tokens;
                let count = (page_tokens - place).min(tokens - token);
                let source = &keys[token * width + kv_head * key_width..];
                self.change_keys(table, (first + token) / page_tokens, |plane| {
                    write_keys(plane, key_width, place, count, source, width).expect("lengths are checked");
                })?;
                token += count;
            }
        }
        Ok(())
    }

    fn check_tokens(&self, layer: usize, first: usize, tokens: usize) -> Result<(), KvError> {
        self.check_layer(layer)?;
        let heads = &self.tokens[self.shape().tables_of(layer)];
        let held = heads.iter().copied().min().unwrap_or(0);
        match first.checked_add(tokens) {
            Some(end) if end <= held => Ok(()),
            end => Err(KvError::Tokens {
                layer,
                held,
                wanted: end.unwrap_or(usize::MAX),
            }),
        }
    }
}
