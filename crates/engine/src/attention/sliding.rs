//! Layers that read a window of their latest tokens alone.
//!
//! After each batch the pages before a layer's window leave the cache, and later tokens of the layer move down by whole pages. The layer
//! then counts places among the tokens it holds, as a head does from which a policy has evicted tokens
//! ([`Evicted`](crate::attention::Evicted)).

/// Tokens kept before a window, so that a session can go back by a short answer without reading its text again.
pub(crate) const BACK_TOKENS: usize = 512;

/// Windows longer than this are attended to in parts of [`PART_TOKENS`] places.
const LARGEST_WHOLE_WINDOW: usize = 8192;
const PART_TOKENS: usize = 4096;

/// A layer of the cache that holds a sliding window alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlidingLayer {
    /// The layer, among those with keys and values.
    pub(crate) layer: usize,
    /// Tokens that it looks back, the token itself counted.
    pub(crate) window_tokens: usize,
    /// Tokens that leave it together. Attention sums keys page by page, and the parts of a long window part by part: moves by whole
    /// pages and parts change no bit.
    pub(crate) step_tokens: usize,
}

/// The layers of a cache that hold a sliding window alone.
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

    /// Tokens that may leave the layer of a sequence of `tokens` tokens, of which `left` have.
    pub(crate) fn leaving(&self, tokens: usize, left: usize) -> usize {
        // The first token that the next query reads.
        let first = (tokens + 1).saturating_sub(self.window_tokens);
        first.saturating_sub(BACK_TOKENS + left) / self.step_tokens * self.step_tokens
    }

    /// True if the window before the token that follows `tokens` tokens is still there, once `left` have left.
    pub(crate) fn reaches(&self, tokens: usize, left: usize) -> bool {
        left <= (tokens + 1).saturating_sub(self.window_tokens)
    }

    /// The length at which the first step of pages leaves the layer.
    fn before_step(&self) -> usize {
        let window = self.window_tokens.saturating_add(BACK_TOKENS);
        window.saturating_add(self.step_tokens)
    }
}

impl SlidingLayers {
    /// Layers of the cache with the tokens that each looks back, read in batches of up to `batch_tokens`.
    pub(crate) fn new(windows: impl Iterator<Item = (usize, usize)>, page_tokens: usize, batch_tokens: usize) -> Self {
        let layers = windows.map(|(layer, window)| SlidingLayer::new(layer, window, page_tokens));
        Self {
            layers: layers.collect(),
            batch_tokens,
        }
    }

    /// Tokens that each of these layers holds at most: its window, what is kept before it, and a batch.
    pub(crate) fn most_tokens(&self) -> usize {
        let most = self.layers.iter().map(SlidingLayer::before_step).max();
        most.map_or(0, |before| before.saturating_add(self.batch_tokens))
    }

    /// Tokens of a sequence that are read before the first page leaves; `None` where none leaves.
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
