use std::fmt;

use riffle_attention::{PageView, QueryTile, Scan, Selection, Span};

use crate::{Estimate, Estimated, PolicyError};

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
    /// Position of the first query of the chunk that the queries belong to.
    pub chunk_start: usize,
    /// Tokens whose keys may be read: all up to the end of this chunk.
    pub tokens: usize,
    /// Tokens the layer will hold when the prompt has been read: how far off its end is. Equal to `tokens` in decode,
    /// and where it is not known.
    pub total_tokens: usize,
    /// Tokens in a page of the cache.
    pub page_tokens: usize,
    /// Factor on q·k before the softmax.
    pub scale: f32,
    /// Logits become cap·tanh(logit / cap).
    pub soft_cap: Option<f32>,
    /// The pages of this layer and KV head, in order; empty only for policies that never look at keys.
    pub pages: &'a [PageView<'a>],
}

/// Softmax mass that keys received.
#[derive(Debug, Clone, Copy)]
pub struct ColumnMass<'a> {
    /// Positions of the queries that are summed over.
    pub queries: Span,
    /// Heads of the group, summed over as well.
    pub group: usize,
    /// Mass of the key at each position, under the softmax of everything the queries read: `[tokens]`.
    pub mass: &'a [f32],
}

impl ColumnMass<'_> {
    /// Queries, over the heads of the group, that could attend to the key at this position.
    pub(crate) fn voters(&self, position: usize) -> f32 {
        let from = self.queries.start.max(position);
        (self.queries.end.saturating_sub(from) * self.group) as f32
    }
}

/// Chooses which tokens the queries of one KV head of one layer read, in one sequence.
///
/// For each layer, and in it for each chunk of queries, the caller
/// 1. appends the chunk's keys,
/// 2. calls [`prepare`](Self::prepare) with all queries of the chunk,
/// 3. calls [`select`](Self::select) for each tile the chunk is cut into, in any order, on any thread,
/// 4. attends, and hands the column mass of the queries it is asked for to [`observe`](Self::observe),
/// 5. calls [`end_chunk`](Self::end_chunk).
///
/// A tile that no `prepare` covered is taken for a chunk of its own: right, though it costs its estimate again and the
/// estimate sees fewer queries. After a rollback of the cache, [`truncate`](Self::truncate) keeps what a policy has
/// stored in step with it.
pub trait SparsePolicy: Send + Sync {
    /// Whether its selections leave out whole pages by their content, so that only those selected need to be near.
    fn requires_block_selection(&self) -> bool {
        false
    }

    /// Whether its estimates look through the keys of the whole sequence, so that they are best kept near.
    fn scans_keys(&self) -> bool {
        true
    }

    /// The first token whose key [`prepare`](Self::prepare) and [`select`](Self::select) read now: pages before it need
    /// not be shown. A policy that does not scan keys reads those that it has not taken in.
    fn keys_from(&self, _context: &SelectContext<'_>) -> usize {
        0
    }

    /// Takes in a page's keys, of `head_dim` elements: before the page leaves the fast tier at the latest. A page may be
    /// shown again when it holds more tokens. Policies that keep summaries also do this on their own, in `prepare`, for
    /// the pages they see.
    fn summarize(&mut self, _page: &PageView<'_>, _head_dim: usize) {}

    /// Whether a chunk is attended to in two phases: first what [`select_own`](Self::select_own) names, for all chunks of
    /// a logical batch at once, then chunk by chunk what `select` names, which must be disjoint from it.
    fn has_two_phases(&self) -> bool {
        false
    }

    /// The first phase's part of what the tile reads, from its own chunk alone; nothing is prepared for it.
    fn select_own(&self, _queries: &QueryTile<'_>, _context: &SelectContext<'_>) -> Selection {
        Selection::none()
    }

    /// Makes the estimate that `select` uses for all tiles of a chunk.
    fn prepare(&mut self, _chunk: &QueryTile<'_>, _context: &SelectContext<'_>) {}

    /// What [`prepare`](Self::prepare) would compute from keys now, where it can be given that instead
    /// ([`prepare_from`](Self::prepare_from)); `None` where it looks at keys in another way or at none.
    fn estimate(&self, _chunk: &QueryTile<'_>, _context: &SelectContext<'_>) -> Option<Estimate> {
        None
    }

    /// As [`prepare`](Self::prepare), from what [`estimate`](Self::estimate) asked for.
    fn prepare_from(&mut self, chunk: &QueryTile<'_>, context: &SelectContext<'_>, _estimated: Estimated) {
        self.prepare(chunk, context);
    }

    /// What the tile reads.
    fn select(&self, queries: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection;

    /// The weights of every key for this tile, where the estimate made them: [`attend_scanned`] then reads what is selected
    /// without looking at keys again.
    ///
    /// [`attend_scanned`]: riffle_attention::attend_scanned
    fn scan(&self, _queries: &QueryTile<'_>) -> Option<&Scan> {
        None
    }

    /// Lets go of scratch: the chunk prepared last has been attended to.
    fn end_chunk(&mut self) {}

    /// Tokens in the blocks it names as summaries, from position 0 on; `None` where it names none.
    fn summary_tokens(&self) -> Option<usize> {
        None
    }

    /// The largest softmax mass that a query leaves unread in the chunk prepared last, for policies that know it exactly.
    fn dropped_mass(&self) -> Option<f32> {
        None
    }

    /// Which of the chunk's queries, from this position to the chunk's end, `observe` is to see the mass of.
    fn observes_from(&self, context: &SelectContext<'_>) -> usize {
        context.tokens
    }

    /// Learns where the softmax mass went.
    fn observe(&mut self, _mass: &ColumnMass<'_>) {}

    /// Whether its choices follow from the keys it is shown and the queries at hand, so that keys computed earlier, by
    /// another sequence with the same beginning, serve as well. False for a policy that learns from queries or masses
    /// that are gone.
    fn follows_from_keys(&self) -> bool {
        true
    }

    /// What it may still read of the first `tokens` tokens, ascending; `None` for a policy that may read any of them. What
    /// it has let go of never comes back, so that its memory can be freed.
    fn retained(&self, _tokens: usize) -> Option<Vec<Span>> {
        None
    }

    /// The cache holds nothing any more but what is [retained](Self::retained), and counts that without gaps: positions
    /// are places among the tokens that are left.
    fn close_gaps(&mut self) {}

    /// What it has stored about the sequence, for [`restore_state`](Self::restore_state); empty where it stores nothing
    /// that keys do not give back.
    fn save_state(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Takes back what [`save_state`](Self::save_state) of a policy of the same spec wrote about the same tokens, in
    /// place of what it has stored.
    ///
    /// # Errors
    /// [`PolicyError::BadState`] when the bytes are not such a state; it has then stored nothing.
    fn restore_state(&mut self, state: &[u8]) -> Result<(), PolicyError> {
        self.reset();
        if state.is_empty() {
            Ok(())
        } else {
            Err(PolicyError::BadState)
        }
    }

    /// Forgets what it stored about tokens at and after `tokens`.
    fn truncate(&mut self, _tokens: usize) {}

    /// Forgets everything about the sequence.
    fn reset(&mut self) {
        self.truncate(0);
    }
}
