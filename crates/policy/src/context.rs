//! Context of a selection: the phase, the position of a chunk, and the attention mass of keys.

use std::fmt;

use riffle_attention::{Arithmetic, PageView, Span};

use crate::SignKeys;

/// Reading of prompt tokens, or generation of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Prompt tokens, in chunks.
    Prefill,
    /// Generated tokens, one or a few at a time.
    Decode,
}

impl Phase {
    /// Arithmetic of attention in this phase, independent of the number of rows.
    pub fn arithmetic(self) -> Arithmetic {
        match self {
            Self::Prefill => Arithmetic::Expanded,
            Self::Decode => Arithmetic::Fused,
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        })
    }
}

/// The chunk whose queries select, and the keys to select from. Positions count from the first token that the KV head
/// holds.
#[derive(Debug, Clone, Copy)]
pub struct SelectContext<'a> {
    /// The phase of the queries.
    pub phase: Phase,
    /// The layer of the queries.
    pub layer: usize,
    /// Number of layers of the model.
    pub layers: usize,
    /// The KV head of the queries.
    pub kv_head: usize,
    /// Position of the chunk's first query.
    pub chunk_start: usize,
    /// Tokens whose keys may be read: all until the end of the chunk.
    pub tokens: usize,
    /// Tokens of the layer at the end of the prompt. In decode, and if the end is unknown, this is `tokens`.
    pub total_tokens: usize,
    /// Tokens in a page of the cache.
    pub page_tokens: usize,
    /// Factor on q·k before the softmax.
    pub scale: f32,
    /// Logits become cap·tanh(logit / cap).
    pub soft_cap: Option<f32>,
    /// The pages of this layer and KV head, in order. It may be empty for a policy that never reads keys.
    pub pages: &'a [PageView<'a>],
    /// The index of signs of this layer and KV head. Without one, policies on it read all keys.
    pub signs: Option<&'a SignKeys>,
}

/// Softmax mass that keys received from some queries.
#[derive(Debug, Clone, Copy)]
pub struct ColumnMass<'a> {
    /// Positions of the queries over which the mass is summed.
    pub queries: Span,
    /// Query heads of the KV head; the mass is summed over them too.
    pub group: usize,
    /// Mass of the key at each position, under the softmax over everything that the queries read: `[tokens]`.
    pub mass: &'a [f32],
}

impl ColumnMass<'_> {
    /// Number of (query, head) pairs that can see the key at this position.
    pub(crate) fn voters(&self, position: usize) -> f32 {
        let first_query = self.queries.start.max(position);
        (self.queries.end.saturating_sub(first_query) * self.group) as f32
    }
}
