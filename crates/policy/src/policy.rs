use std::fmt;

use riffle_attention::{PageView, QueryTile, Selection};

/// Whether prompt tokens are read or tokens are generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Prompt tokens, in chunks.
    Prefill,
    /// Generated tokens, one or a few at a time.
    Decode,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        })
    }
}

/// What a policy may know beside the queries. Positions and lengths are absolute.
#[derive(Debug, Clone, Copy)]
pub struct SelectContext<'a> {
    /// The phase the queries belong to.
    pub phase: Phase,
    /// Layer of the queries.
    pub layer: usize,
    /// Layers of the model.
    pub layers: usize,
    /// KV head of the queries.
    pub kv_head: usize,
    /// Tokens whose keys the layer holds, this chunk's included.
    pub tokens: usize,
    /// Tokens the layer will hold when the prompt has been read: how far off its end is. Equal to `tokens` in decode,
    /// and where it is not known.
    pub total_tokens: usize,
    /// Tokens in a page of the cache.
    pub page_tokens: usize,
    /// Factor on q·k before the softmax.
    pub scale: f32,
    /// The pages of this layer and KV head, in order; empty only for policies that never look at keys.
    pub pages: &'a [PageView<'a>],
}

/// A page of keys, for its summary.
#[derive(Debug, Clone, Copy)]
pub struct PageContent<'a> {
    /// Layer of the page.
    pub layer: usize,
    /// KV head of the page.
    pub kv_head: usize,
    /// Elements of a key.
    pub head_dim: usize,
    /// The page.
    pub page: PageView<'a>,
}

/// Softmax mass that keys received.
#[derive(Debug, Clone, Copy)]
pub struct ColumnMass<'a> {
    /// Layer of the queries.
    pub layer: usize,
    /// KV head of the queries.
    pub kv_head: usize,
    /// Absolute position of the first query.
    pub first_query: usize,
    /// Query positions summed over.
    pub rows: usize,
    /// Mass of key `j`, summed over rows and the heads of the group: `[tokens]`.
    pub mass: &'a [f32],
}

/// Chooses which tokens the queries read.
///
/// For each layer, and in it for each chunk of queries, the caller
/// 1. appends the chunk's keys,
/// 2. calls [`prepare`](Self::prepare) for each KV head with all queries of the chunk,
/// 3. calls [`select`](Self::select) for each KV head and each tile the chunk is cut into, in any order, on any thread,
/// 4. attends, and hands the column mass to [`observe`](Self::observe) where it has it.
///
/// A tile that no `prepare` covered is taken for a chunk of its own: right, though it costs its estimate again and the
/// estimate sees fewer queries. After a rollback of the cache, [`truncate`](Self::truncate) keeps what a policy has
/// stored in step with it.
pub trait SparsePolicy: Send + Sync {
    /// The name in the catalogue.
    fn name(&self) -> &'static str;

    /// Whether it chooses for prompt tokens.
    fn supports_prefill(&self) -> bool;

    /// Whether it chooses for generated tokens.
    fn supports_decode(&self) -> bool;

    /// Whether its selections leave out whole pages by their content, so that only those selected need to be near.
    fn requires_block_selection(&self) -> bool {
        false
    }

    /// Takes in a page's keys: before the page leaves the fast tier at the latest. A page may be shown again when it
    /// holds more tokens. Policies that keep summaries also do this on their own, in `prepare`, for the pages they see.
    fn summarize(&mut self, _page: &PageContent<'_>) {}

    /// Makes the estimate that `select` uses for all tiles of a chunk.
    fn prepare(&mut self, _chunk: &QueryTile<'_>, _context: &SelectContext<'_>) {}

    /// What the tile reads.
    fn select(&self, queries: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection;

    /// The largest softmax mass that a query of this KV head leaves unread in the chunk prepared last, for policies that
    /// know it exactly.
    fn dropped_mass(&self, _kv_head: usize) -> Option<f32> {
        None
    }

    /// Learns where the softmax mass went.
    fn observe(&mut self, _mass: &ColumnMass<'_>) {}

    /// Forgets what it stored about tokens at and after `tokens`.
    fn truncate(&mut self, _tokens: usize) {}

    /// Forgets everything about the sequence.
    fn reset(&mut self) {
        self.truncate(0);
    }
}
