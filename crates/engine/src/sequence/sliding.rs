//! Frees the pages that the sliding windows of layers have left.
//!
//! A layer with a window of its own reads its latest tokens alone. After each batch the pages before its window leave the
//! cache, and later tokens of the layer move down by whole pages. The layer then counts places among the tokens it
//! holds, as a head does from which a policy has evicted tokens ([`Evicted`](crate::sequence::eviction::Evicted)).

use riffle_model::ModelConfig;

use crate::{EngineError, EngineOptions, Sequence, StreamWindow};

/// Tokens kept before a window, so that a session can go back by a short answer without reading its text again.
pub(crate) const BACK_TOKENS: usize = 512;

/// Windows longer than this are attended to in parts of [`PART_TOKENS`] places.
const LARGEST_WHOLE_WINDOW: usize = 8192;
const PART_TOKENS: usize = 4096;

/// The layers of a cache that hold a sliding window alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SlidingLayers {
    /// Layer of the cache, and tokens it looks back, the token itself counted.
    layers: Vec<(usize, usize)>,
    page_tokens: usize,
    batch_tokens: usize,
}

impl SlidingLayers {
    /// None where every page is kept: the window of the whole sequence moves all layers, and beginnings that are kept for
    /// other sequences have to be whole.
    pub(crate) fn of(config: &ModelConfig, options: &EngineOptions, window: Option<StreamWindow>) -> Self {
        let keeps_all = window.is_some() || options.keeps_beginnings;
        let windows = config.windows.iter().enumerate().filter(|_| !keeps_all);
        let layers = windows.filter_map(|(layer, window)| Some((config.cache_layer(layer)?, (*window)?)));
        Self {
            layers: layers.collect(),
            page_tokens: options.page_tokens,
            batch_tokens: options.batch_tokens,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.layers.len()
    }

    /// Tokens that each of these layers holds at most: its window, what is kept before it, and a batch.
    pub(crate) fn most_tokens(&self) -> usize {
        let most = self.layers.iter().map(|(_, window)| self.before_step(*window)).max();
        most.map_or(0, |before| before.saturating_add(self.batch_tokens))
    }

    /// Tokens of a sequence that are read before the first page leaves; `None` where none leaves.
    pub(crate) fn whole_tokens(&self) -> Option<usize> {
        let shortest = self.layers.iter().map(|(_, window)| self.before_step(*window)).min();
        shortest.map(|before| before.saturating_sub(2))
    }

    /// The length at which the first step of pages leaves a layer.
    fn before_step(&self, window: usize) -> usize {
        window.saturating_add(BACK_TOKENS).saturating_add(self.step(window))
    }

    /// Tokens that leave a layer together. Attention sums keys page by page, and the parts of a long window part by part:
    /// moves by whole pages and parts change no bit.
    fn step(&self, window: usize) -> usize {
        match window > LARGEST_WHOLE_WINDOW {
            true => lcm(self.page_tokens, PART_TOKENS),
            false => self.page_tokens,
        }
    }
}

impl Sequence {
    /// Frees the pages that windows have left behind.
    pub(crate) fn slide(&mut self) -> Result<(), EngineError> {
        let sliding = self.placement.sliding.clone();
        let shape = *self.cache.shape();
        for (layer, window) in &sliding.layers {
            let left = self.placement.evicted.evicted_tokens(*layer, shape.kv_heads, 0);
            // The first token that the next query reads.
            let first = (self.tokens.len() + 1).saturating_sub(*window);
            let step = sliding.step(*window);
            let tokens = first.saturating_sub(BACK_TOKENS + left) / step * step;
            if tokens == 0 {
                continue;
            }
            self.cache.remove_first_pages(*layer, tokens / shape.page_tokens)?;
            for kv_head in 0..shape.kv_heads {
                self.placement.evicted.add(&shape, *layer, kv_head, tokens);
                if let Some(pages) = &mut self.device {
                    pages.truncate_head(*layer, kv_head, 0);
                }
            }
        }
        Ok(())
    }

    /// Whether the windows of all layers are still there at the first `tokens` tokens.
    pub(crate) fn windows_reach(&self, tokens: usize) -> bool {
        let kv_heads = self.cache.shape().kv_heads;
        self.placement.sliding.layers.iter().all(|(layer, window)| {
            let first = (tokens + 1).saturating_sub(*window);
            self.placement.evicted.evicted_tokens(*layer, kv_heads, 0) <= first
        })
    }
}

pub(crate) fn lcm(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}
