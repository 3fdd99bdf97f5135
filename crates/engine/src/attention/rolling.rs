//! The window of an endless sequence over its cache, after StreamingLLM, Xiao et al. 2024, arXiv:2309.17453.
//!
//! Positions are places in the cache: what the model sees never grows, however long the sequence. Pages that the window has left are
//! freed, and later tokens move down in the cache. Rotary attention depends on differences alone, so the keys in the window keep their
//! angles. Only the few sinks are turned: from their first positions up to the window, anew each time, so that rounding does not add up.
//! When the angles would pass the positions that the model was made for, the window is turned back as a whole.

use serde::{Deserialize, Serialize};

use crate::attention::{Position, Slot};

/// The place of the window in a sequence, and the keys of the sinks before it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct RollingWindow {
    /// Tokens that have left the cache.
    dropped_tokens: usize,
    /// Length of the sequence when tokens left last: earlier lengths cannot be gone back to.
    since: usize,
    /// Position that the angles of the window's keys stand for, less their place in the cache.
    pub(crate) offset: usize,
    /// Keys of the sinks at their first positions: for each layer of the cache `[sink_tokens, kv_heads, head_dim]`. Empty while nothing
    /// has left.
    pub(crate) sinks: Vec<Vec<f32>>,
}

impl RollingWindow {
    /// True if the cache holds the beginning of the sequence as it was read.
    pub(crate) fn is_whole(&self) -> bool {
        self.dropped_tokens == 0
    }

    /// The slot of a token that is still to come, or that came after tokens left last.
    pub(crate) fn slot(&self, token: usize) -> Slot {
        Slot(token - self.dropped_tokens)
    }

    /// The position that such a token's key is turned to.
    pub(crate) fn position(&self, token: usize) -> Position {
        Position(token - self.dropped_tokens + self.offset)
    }

    /// True if the sequence can go back to its first `tokens` tokens.
    pub(crate) fn reaches(&self, tokens: usize) -> bool {
        tokens >= self.since
    }

    /// Counts tokens that have left the cache of a sequence of `length` tokens.
    pub(crate) fn drop_tokens(&mut self, tokens: usize, length: usize) {
        self.dropped_tokens += tokens;
        self.offset += tokens;
        self.since = length;
    }
}
