//! Layers with a sliding window, which read only their latest tokens.
//!
//! After each batch the pages before a layer's window are removed from the cache, and later tokens of the layer move
//! down by whole pages. The layer then uses head slots, as a head with evicted tokens does
//! ([`Evicted`](crate::attention::Evicted)).

/// Tokens kept before a window, so that a session can undo a short answer without reading its text again.
pub(crate) const BACK_TOKENS: usize = 512;

/// Longer windows are attended in parts of [`PART_TOKENS`] slots.
const LARGEST_WHOLE_WINDOW: usize = 8192;
const PART_TOKENS: usize = 4096;

/// A cache layer that stores only a sliding window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlidingLayer {
    /// The layer's index among layers with keys and values.
    pub(crate) layer: usize,
    /// Window of the layer in tokens, including the token itself.
    pub(crate) window_tokens: usize,
    /// Number of tokens removed at a time. Attention sums keys page by page, and long windows part by part: removing
    /// whole pages and parts changes no bits.
    pub(crate) step_tokens: usize,
}

/// The cache layers that store only a sliding window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SlidingLayers {
    pub(crate) layers: Vec<SlidingLayer>,
    batch_tokens: usize,
}

impl SlidingLayer {
    pub(crate) fn new(layer: usize, window_tokens: usize, page_tokens: usize) -> Self {
        let step_tokens = if window_tokens > LARGEST_WHOLE_WINDOW {
            lcm(page_tokens, PART_TOKENS)
        } else {
            page_tokens
        };
        Self {
            layer,
            window_tokens,
            step_tokens,
        }
    }

    /// Number of tokens that can be removed from the layer of a sequence of `tokens` tokens, after `left` were
    /// removed.
    pub(crate) fn leaving(&self, tokens: usize, left: usize) -> usize {
        // The first token that the next query reads.
        let first = (tokens + 1).saturating_sub(self.window_tokens);
        first.saturating_sub(BACK_TOKENS + left) / self.step_tokens * self.step_tokens
    }

    /// True if the complete window before the token after `tokens` tokens remains, with `left` tokens removed.
    pub(crate) fn reaches(&self, tokens: usize, left: usize) -> bool {
        left <= (tokens + 1).saturating_sub(self.window_tokens)
    }

    /// The length at which the first pages are removed from the layer.
    fn before_step(&self) -> usize {
        let window = self.window_tokens.saturating_add(BACK_TOKENS);
        window.saturating_add(self.step_tokens)
    }
}

impl SlidingLayers {
    /// Layers of the cache with their windows in tokens, read in batches of up to `batch_tokens`.
    pub(crate) fn new(windows: impl Iterator<Item = (usize, usize)>, page_tokens: usize, batch_tokens: usize) -> Self {
        let layers = windows.map(|(layer, window)| SlidingLayer::new(layer, window, page_tokens));
        Self {
            layers: layers.collect(),
            batch_tokens,
        }
    }

    /// The most tokens stored by these layers: the window, the tokens kept before it, and a batch.
    pub(crate) fn most_tokens(&self) -> usize {
        let most = self.layers.iter().map(SlidingLayer::before_step).max();
        most.map_or(0, |before| before.saturating_add(self.batch_tokens))
    }

    /// Number of tokens read before the first page is removed; `None` if none ever is.
    pub(crate) fn whole_tokens(&self) -> Option<usize> {
        let shortest = self.layers.iter().map(SlidingLayer::before_step).min();
        shortest.map(|before| before.saturating_sub(2))
    }
}

pub(crate) fn lcm(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}
