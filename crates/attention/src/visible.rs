//! The keys of a block that each row sees, as bits.

use alloc::vec::Vec;

use crate::kernel::KEY_BLOCK;
use crate::selection::merge_spans;
use crate::{LANES, Selection, Span};

/// Decides which keys of a block each query position sees.
pub(crate) trait Visible {
    /// Positions that some query of `first..first + rows` may see without diagonals, merged and ascending.
    fn needs(&self, first: usize, rows: usize, needs: &mut Vec<Span>);
    /// Bits of the block that all rows share, before rules for single rows.
    fn block_bits(&self, block: Span) -> u128;
    /// True if each of the rows sees exactly the shared bits.
    fn uniform(&self, block: Span, shared: u128, first: usize, rows: usize) -> bool;
    /// The bits of the tokens in the block that the query sees.
    fn row_bits(&self, block: Span, shared: u128, query: usize) -> u128;
    /// Distances at which every row sees one token in addition to the bits.
    fn diagonals(&self) -> &[usize];
    /// Lanes that see their key only by a diagonal; lane `i` has query `query + i` and key `key + i`.
    fn diagonal_lanes(&self, query: usize, key: usize, lanes: u16) -> u16;
    /// True if diagonals reach only backwards.
    fn causal(&self) -> bool;
    /// Bias on the logit of the key at `position`, for keys that represent several tokens.
    fn bias(&self, position: usize) -> Option<f32>;
}

/// The `count` lowest bits.
pub(crate) fn low_bits(count: usize) -> u128 {
    if count >= KEY_BLOCK {
        u128::MAX
    } else {
        (1 << count) - 1
    }
}

/// Bits of the positions in both.
fn span_bits(block: Span, span: Span) -> u128 {
    let common = block.intersect(&span);
    if common.is_empty() {
        return 0;
    }
    low_bits(common.end - block.start) & !low_bits(common.start - block.start)
}

/// Tokens under a selection.
pub(crate) struct Tokens<'a> {
    pub(crate) selection: &'a Selection,
    pub(crate) causal: bool,
}

impl Visible for Tokens<'_> {
    fn needs(&self, first: usize, rows: usize, needs: &mut Vec<Span>) {
        needs.clear();
        let Some(last) = rows.checked_sub(1).map(|rows| first + rows) else {
            return;
        };
        let limit = Span::new(0, if self.causal { last + 1 } else { usize::MAX });
        needs.extend(self.selection.spans().iter().map(|span| span.intersect(&limit)));
        let (head, tail) = (
            self.selection.window_of(first, self.causal),
            self.selection.window_of(last, self.causal),
        );
        needs.push(Span::new(head.start, tail.end));
        if self.selection.has_row_extras() {
            for query in first..=last {
                let extras = self.selection.row_extras(query).iter();
                needs.extend(extras.map(|token| Span::new(*token, token.saturating_add(1)).intersect(&limit)));
            }
        }
        merge_spans(needs);
    }

    fn block_bits(&self, block: Span) -> u128 {
        let spans = self.selection.spans();
        let first = spans.partition_point(|span| span.end <= block.start);
        let inside = spans[first..].iter().take_while(|span| span.start < block.end);
        inside.fold(0, |bits, span| bits | span_bits(block, *span))
    }

    fn uniform(&self, block: Span, shared: u128, first: usize, rows: usize) -> bool {
        if self.causal && block.end > first + 1 {
            return false;
        }
        if shared == low_bits(block.len()) {
            return true;
        }
        let last = first + rows.max(1) - 1;
        let (head, tail) = (
            self.selection.window_of(first, self.causal),
            self.selection.window_of(last, self.causal),
        );
        let windows = Span::new(head.start, tail.end);
        block.intersect(&windows).is_empty() && !self.selection.has_row_extras()
    }

    fn row_bits(&self, block: Span, shared: u128, query: usize) -> u128 {
        let mut bits = shared | span_bits(block, self.selection.window_of(query, self.causal));
        let extras = self.selection.row_extras(query);
        if !extras.is_empty() {
            let first = extras.partition_point(|token| *token < block.start);
            for token in extras[first..].iter().take_while(|token| **token < block.end) {
                bits |= 1 << (token - block.start);
            }
        }
        if self.causal {
            bits &= span_bits(block, Span::new(0, query + 1));
        }
        bits
    }

    fn diagonals(&self) -> &[usize] {
        self.selection.diagonals()
    }

    fn diagonal_lanes(&self, query: usize, key: usize, lanes: u16) -> u16 {
        if query.abs_diff(key) < self.selection.row_window() {
            return 0;
        }
        let keys = Span::new(key, key + LANES);
        if !self.selection.has_row_extras() && !self.selection.spans_touch(keys) {
            return lanes;
        }
        let read_otherwise = |lane: usize| {
            let (query, key) = (query + lane, key + lane);
            self.selection.spans_touch(Span::new(key, key + 1))
                || self.selection.row_extras(query).binary_search(&key).is_ok()
        };
        (0..LANES)
            .filter(|lane| lanes & (1 << lane) != 0 && read_otherwise(*lane))
            .fold(lanes, |lanes, lane| lanes & !(1 << lane))
    }

    fn causal(&self) -> bool {
        self.causal
    }

    fn bias(&self, _: usize) -> Option<f32> {
        None
    }
}

/// Block means under a selection. A "position" is an index into `blocks`.
pub(crate) struct Summaries<'a> {
    pub(crate) selection: &'a Selection,
    pub(crate) causal: bool,
    /// Sorted by start.
    pub(crate) blocks: &'a [Span],
    /// True if blocks are disjoint, so that the window hides a contiguous run of them.
    pub(crate) disjoint: bool,
    /// For each block: the tokens that its mean replaces, before rules for single rows; 0 if it is not read.
    pub(crate) tokens: &'a [usize],
    /// For each block: ln of these tokens.
    pub(crate) weights: &'a [f32],
    /// True if there is one row, and its rules are already applied.
    pub(crate) is_of_row: bool,
}

impl Summaries<'_> {
    /// Disjoint blocks of which the row reads a token by a diagonal.
    fn on_diagonals(&self, block: Span, query: usize) -> u128 {
        let diagonals = self.selection.diagonals();
        let mut bits = 0;
        // Blocks descend as distances grow, so one walk over both finds every pair that can overlap.
        let mut next = diagonals.iter().peekable();
        for at in block.range().rev() {
            let span = self.blocks[at];
            if span.start > query {
                continue;
            }
            while next
                .next_if(|distance| query.saturating_sub(**distance) >= span.end)
                .is_some()
            {}
            let Some(distance) = next.peek() else { break };
            if query.checked_sub(**distance).is_some_and(|key| key >= span.start) {
                bits |= 1 << (at - block.start);
            }
        }
        if !self.causal {
            let mut next = diagonals.iter().peekable();
            for at in block.range() {
                let span = self.blocks[at];
                while next.next_if(|distance| query + **distance < span.start).is_some() {}
                let Some(distance) = next.peek() else { break };
                if query + **distance < span.end {
                    bits |= 1 << (at - block.start);
                }
            }
        }
        bits
    }
}

impl Visible for Summaries<'_> {
    fn needs(&self, first: usize, rows: usize, needs: &mut Vec<Span>) {
        needs.clear();
        let last = first + rows.max(1) - 1;
        let end = if self.causal && self.disjoint {
            self.blocks.partition_point(|block| block.end <= last)
        } else {
            self.blocks.len()
        };
        needs.push(Span::new(0, end));
        merge_spans(needs);
    }

    fn block_bits(&self, block: Span) -> u128 {
        let tokens = self.tokens[block.range()].iter().enumerate();
        tokens.fold(0, |bits, (i, tokens)| bits | (u128::from(*tokens > 0) << i))
    }

    fn uniform(&self, _: Span, _: u128, _: usize, _: usize) -> bool {
        false
    }

    fn row_bits(&self, block: Span, shared: u128, query: usize) -> u128 {
        if self.is_of_row {
            return shared;
        }
        if !self.disjoint {
            let seen = |i: usize| {
                let block = self.blocks[block.start + i];
                self.selection.summarized(query, block, self.causal) > 0
            };
            return (0..block.len()).fold(0, |bits, i| bits | ((shared >> i) & u128::from(seen(i))) << i);
        }
        // The blocks that overlap the row's window or the row itself are contiguous. With causality, all later blocks
        // are hidden too.
        let mut hidden = self.selection.window_of(query, self.causal);
        if hidden.is_empty() {
            hidden = Span::new(query, query + 1);
        }
        let first = self.blocks.partition_point(|b| b.end <= hidden.start);
        let after = if self.causal {
            self.blocks.len()
        } else {
            self.blocks.partition_point(|b| b.start < hidden.end)
        };
        let mut bits = shared & !span_bits(block, Span::new(first, after.max(first)));
        for token in self.selection.row_extras(query) {
            let at = self.blocks.partition_point(|b| b.end <= *token);
            if block.range().contains(&at) && self.blocks[at].start <= *token {
                bits &= !(1 << (at - block.start));
            }
        }
        if !self.selection.diagonals().is_empty() {
            bits &= !self.on_diagonals(block, query);
        }
        bits
    }

    fn diagonals(&self) -> &[usize] {
        &[]
    }

    fn diagonal_lanes(&self, _: usize, _: usize, _: u16) -> u16 {
        0
    }

    fn causal(&self) -> bool {
        self.causal
    }

    fn bias(&self, position: usize) -> Option<f32> {
        Some(self.weights[position])
    }
}
