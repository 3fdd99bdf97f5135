//! The rolling window of an endless sequence, after StreamingLLM, Xiao et al. 2024, arXiv:2309.17453.
//!
//! Positions are cache slots, so the model's context never grows. Pages before the window are freed, and later tokens
//! move down in the cache. Rotary attention depends only on position differences, so the window's keys keep their
//! angles. Only the few sinks are re-rotated, up to the window. Each rotation starts from their original positions, so
//! that rounding does not accumulate. When the angles would exceed the model's longest context, the whole window is
//! rotated back.

use serde::{Deserialize, Serialize};

use crate::attention::{Position, Slot};

/// The location of the window in a sequence, and the keys of the sinks before it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct RollingWindow {
    /// Tokens dropped from the cache.
    dropped_tokens: usize,
    /// Length of the sequence at the latest drop; the sequence cannot return to earlier lengths.
    since: usize,
    /// Position of the window's keys minus their slot in the cache.
    pub(crate) offset: usize,
    /// Keys of the sinks at their original positions: for each layer of the cache `[sink_tokens, kv_heads, head_dim]`.
    /// Empty before the first drop.
    pub(crate) sinks: Vec<Vec<f32>>,
}

impl RollingWindow {
    /// True if the cache still has the original beginning of the sequence.
    pub(crate) fn is_whole(&self) -> bool {
        self.dropped_tokens == 0
    }

    /// The slot of a future token, or of one added after the latest drop.
    pub(crate) fn slot(&self, token: usize) -> Slot {
        Slot(token - self.dropped_tokens)
    }

    /// The position to which such a token's key is rotated.
    pub(crate) fn position(&self, token: usize) -> Position {
        Position(token - self.dropped_tokens + self.offset)
    }

    /// True if the sequence can return to its first `tokens` tokens.
    pub(crate) fn reaches(&self, tokens: usize) -> bool {
        tokens >= self.since
    }

    /// Records tokens dropped from the cache of a sequence of `length` tokens.
    pub(crate) fn drop_tokens(&mut self, tokens: usize, length: usize) {
        self.dropped_tokens += tokens;
        self.offset += tokens;
        self.since = length;
    }
}
