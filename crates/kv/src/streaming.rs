//! A cache that moves on: pages leave from its middle, and keys are turned to new positions.

use riffle_attention::{read_keys, write_keys};

use crate::{CacheShape, KvCache, KvError};

impl KvCache {
    /// Forgets `pages` whole pages of every layer from page `first` on; later tokens move down by as many places.
    /// Freed pages go back to the operating system. Layers that hold fewer pages lose what they have of these.
    pub fn remove_pages(&mut self, first: usize, pages: usize) {
        let page_tokens = self.shape().page_tokens;
        for layer in 0..self.shape().layers {
            let tokens = self.tokens(layer);
            let from = first.saturating_mul(page_tokens).min(tokens);
            let to = (first.saturating_add(pages).saturating_mul(page_tokens)).min(tokens);
            self.set_tokens(layer, tokens - (to - from));
        }
        self.drain_pages(first, pages);
    }

    /// Keys of tokens `first..first + tokens` of a layer as f32, `[tokens, kv_heads, head_dim]`.
    ///
    /// # Errors
    /// [`KvError::Layer`], [`KvError::Tokens`] when the layer does not hold them all.
    pub fn read_keys(&self, layer: usize, first: usize, tokens: usize) -> Result<Vec<f32>, KvError> {
        self.check_tokens(layer, first, tokens)?;
        let CacheShape { kv_heads, head_dim, .. } = *self.shape();
        let width = kv_heads * head_dim;
        let mut keys = vec![0.0; tokens * width];
        for kv_head in 0..kv_heads {
            for page in self.pages(layer, kv_head) {
                let from = page.start.max(first);
                let to = (page.start + page.tokens).min(first + tokens);
                if from < to {
                    let out = &mut keys[(from - first) * width + kv_head * head_dim..];
                    read_keys(&page.keys, head_dim, from - page.start, to - from, out, width)
                        .expect("lengths are checked");
                }
            }
        }
        Ok(keys)
    }

    /// Replaces the keys of tokens from `first` on of a layer by `keys`, `[tokens, kv_heads, head_dim]`.
    ///
    /// # Errors
    /// [`KvError::Layer`], [`KvError::Length`], [`KvError::Tokens`] when the layer does not hold them all; nothing is
    /// replaced then.
    pub fn replace_keys(&mut self, layer: usize, first: usize, keys: &[f32]) -> Result<(), KvError> {
        let CacheShape {
            kv_heads,
            head_dim,
            page_tokens,
            ..
        } = *self.shape();
        let width = kv_heads * head_dim;
        if !keys.len().is_multiple_of(width) {
            return Err(KvError::Length {
                keys: keys.len(),
                values: keys.len(),
                width,
            });
        }
        let tokens = keys.len() / width;
        self.check_tokens(layer, first, tokens)?;
        for kv_head in 0..kv_heads {
            let mut token = 0;
            while token < tokens {
                let place = (first + token) % page_tokens;
                let count = (page_tokens - place).min(tokens - token);
                let (slot, _, _) = self.page_slots(layer, kv_head, (first + token) / page_tokens);
                let plane = &mut self.keys.plane_mut(slot);
                write_keys(
                    plane,
                    head_dim,
                    place,
                    count,
                    &keys[token * width + kv_head * head_dim..],
                    width,
                )
                .expect("lengths are checked");
                token += count;
            }
        }
        Ok(())
    }

    fn check_tokens(&self, layer: usize, first: usize, tokens: usize) -> Result<(), KvError> {
        let layers = self.shape().layers;
        if layer >= layers {
            return Err(KvError::Layer { layer, layers });
        }
        let held = self.tokens(layer);
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
