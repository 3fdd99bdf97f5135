use alloc::vec::Vec;
use core::ops::Range;

use crate::visible::{Tokens, Visible};

/// A half-open range of absolute token positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// First position.
    pub start: usize,
    /// One past the last position.
    pub end: usize,
}

impl Span {
    /// A span; empty when `end <= start`.
    pub fn new(start: usize, end: usize) -> Self {
        Self { start, end }
    }

    /// Positions in the span.
    pub fn len(&self) -> usize {
        self.end.saturating_sub(self.start)
    }

    /// True if the span holds no position.
    pub fn is_empty(&self) -> bool {
        self.end <= self.start
    }

    /// The positions as a range.
    pub fn range(&self) -> Range<usize> {
        self.start..self.end
    }

    /// The positions in both spans.
    pub fn intersect(&self, other: &Self) -> Self {
        Self {
            start: self.start.max(other.start),
            end: self.end.min(other.end),
        }
    }
}

/// The tokens and summaries that one tile of queries reads of one KV head. It is the complete decision of a sparse
/// policy.
///
/// The form is canonical: spans are sorted, disjoint and merged when they touch; extras are sorted per row.
/// Selections that name the same tokens in the same way are equal and hash alike.
///
/// Query `i` sees key `j <= i` when `j` lies in a span, or `i - j < row_window`, or `i - j` is one of the diagonals, or
/// `j` is an extra of its row. A summary replaces a block of tokens. Row `i` sees it only when the block ends at or
/// before `i`. If the row reads no token of the block, the summary replaces all of them. If the row reads some, the
/// summary is hidden, or replaces the unread tokens ([`summarizing_parts`](Self::summarizing_parts)).
///
/// ```
/// use riffle_attention::{Selection, Span};
///
/// // 4 sink tokens and a window of 8: query 100 reads 0..4 and 93..=100.
/// let selection = Selection::from_spans([Span::new(0, 4)]).with_row_window(8);
/// assert!(selection.contains(100, 3) && !selection.contains(100, 4));
/// assert!(selection.contains(100, 93) && !selection.contains(100, 92));
/// assert_eq!(selection.pair_count(100, 1), 12);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Selection {
    spans: Vec<Span>,
    row_window: usize,
    diagonals: Vec<usize>,
    extras_start: usize,
    /// `extras[extra_ends[r - 1]..extra_ends[r]]` are the extras of query `extras_start + r`.
    extra_ends: Vec<usize>,
    extras: Vec<usize>,
    summaries: Vec<Span>,
    /// True if a summary may replace a part of its block.
    summarizes_parts: bool,
}

impl Selection {
    /// Every token of `0..tokens`.
    pub fn full(tokens: usize) -> Self {
        Self::from_spans([Span::new(0, tokens)])
    }

    /// Selects nothing.
    pub fn none() -> Self {
        Self::default()
    }

    /// The union of `spans`, in any order.
    pub fn from_spans(spans: impl IntoIterator<Item = Span>) -> Self {
        let mut spans: Vec<Span> = spans.into_iter().collect();
        merge_spans(&mut spans);
        Self {
            spans,
            ..Self::default()
        }
    }

    /// Query `i` also reads its last `window` tokens, itself included: `i + 1 - window..=i`.
    pub fn with_row_window(mut self, window: usize) -> Self {
        self.row_window = window;
        self
    }

    /// Query `i` also reads `i - distance` for each of these distances, given in any order (log strides,
    /// slashes).
    pub fn with_diagonals(mut self, distances: impl IntoIterator<Item = usize>) -> Self {
        self.diagonals = distances.into_iter().collect();
        self.diagonals.sort_unstable();
        self.diagonals.dedup();
        self
    }

    /// Query `first_query + r` also reads the tokens of `rows[r]`, given in any order.
    pub fn with_row_extras(
        mut self,
        first_query: usize,
        rows: impl IntoIterator<Item = impl IntoIterator<Item = usize>>,
    ) -> Self {
        self.extras.clear();
        self.extra_ends.clear();
        for row in rows {
            let begin = self.extras.len();
            self.extras.extend(row);
            self.extras[begin..].sort_unstable();
            let mut kept = begin;
            for at in begin..self.extras.len() {
                if kept == begin || self.extras[at] != self.extras[kept - 1] {
                    self.extras[kept] = self.extras[at];
                    kept += 1;
                }
            }
            self.extras.truncate(kept);
            self.extra_ends.push(kept);
        }
        // Rows without extras at either end have no effect; dropping them keeps the form canonical.
        let leading = self.extra_ends.iter().take_while(|end| **end == 0).count();
        self.extra_ends.drain(..leading);
        let total = self.extras.len();
        let used = self
            .extra_ends
            .iter()
            .position(|end| *end == total)
            .map_or(0, |at| at + 1);
        self.extra_ends.truncate(used);
        self.extras_start = if used == 0 { 0 } else { first_query + leading };
        self
    }

    /// Reads these blocks as one mean each, by [`attend_summaries`](crate::attend_summaries). Blocks should be
    /// disjoint.
    pub fn with_summaries(mut self, blocks: impl IntoIterator<Item = Span>) -> Self {
        self.summaries = blocks.into_iter().filter(|span| !span.is_empty()).collect();
        self.summaries.sort_unstable();
        self.summaries.dedup();
        self.summarizes_parts = false;
        self
    }

    /// With `true`, a row that reads some tokens of a block also reads its summary, which replaces the unread tokens. A
    /// later [`with_summaries`](Self::with_summaries) sets it to false.
    pub fn summarizing_parts(mut self, parts: bool) -> Self {
        self.summarizes_parts = parts && !self.summaries.is_empty();
        self
    }

    /// Spans read in full by every row: sorted, disjoint, not touching.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Number of latest tokens that each row reads.
    pub fn row_window(&self) -> usize {
        self.row_window
    }

    /// Distances at which every row reads one token, ascending.
    pub fn diagonals(&self) -> &[usize] {
        &self.diagonals
    }

    /// Tokens that the query at this absolute position reads besides spans, window and diagonals, ascending.
    pub fn row_extras(&self, query: usize) -> &[usize] {
        let Some(row) = query.checked_sub(self.extras_start) else {
            return &[];
        };
        let Some(&end) = self.extra_ends.get(row) else {
            return &[];
        };
        let begin = if row == 0 { 0 } else { self.extra_ends[row - 1] };
        &self.extras[begin..end]
    }

    /// True if any row has extras.
    pub fn has_row_extras(&self) -> bool {
        !self.extras.is_empty()
    }

    /// Range of query positions from the first to the last with extras; empty if none has any.
    pub fn extra_rows(&self) -> Range<usize> {
        self.extras_start..self.extras_start + self.extra_ends.len()
    }

    /// Blocks read as summaries, ascending.
    pub fn summaries(&self) -> &[Span] {
        &self.summaries
    }

    /// True if a summary may replace a part of its block ([`summarizing_parts`](Self::summarizing_parts)).
    pub fn summarizes_parts(&self) -> bool {
        self.summarizes_parts
    }

    /// True if the query at `query` reads the key at `key`, causally.
    pub fn contains(&self, query: usize, key: usize) -> bool {
        self.contains_with(query, key, true)
    }

    /// As [`contains`](Self::contains). Without causality, window and diagonals extend to both sides.
    pub fn contains_with(&self, query: usize, key: usize, causal: bool) -> bool {
        if causal && key > query {
            return false;
        }
        query.abs_diff(key) < self.row_window
            || self.in_spans(key)
            || self.diagonals.binary_search(&query.abs_diff(key)).is_ok()
            || self.row_extras(query).binary_search(&key).is_ok()
    }

    /// Number of tokens that the summary of `block` replaces for the query at position `query`; 0 if the query does not
    /// read the summary. The block must end at or before the query or, without causality, not contain it.
    pub fn summarized(&self, query: usize, block: Span, causal: bool) -> usize {
        let holds_query = block.range().contains(&query);
        if holds_query || (causal && block.end > query) {
            return 0;
        }
        self.replaced(block, self.count_in(query, block, causal))
    }

    /// Number of tokens that the summary of `block` replaces for a query that reads `read` tokens of the block.
    pub(crate) fn replaced(&self, block: Span, read: usize) -> usize {
        match read {
            0 => block.len(),
            _ if self.summarizes_parts => block.len() - read,
            _ => 0,
        }
    }

    /// Number of tokens of a block that the query reads.
    fn count_in(&self, query: usize, block: Span, causal: bool) -> usize {
        let window = self.window_of(query, causal).intersect(&block);
        let after = self.spans.partition_point(|span| span.end <= block.start);
        let spans = self.spans[after..].iter().take_while(|span| span.start < block.end);
        let in_spans = spans.map(|span| {
            let span = span.intersect(&block);
            span.len() - span.intersect(&window).len()
        });
        let single = self
            .single_keys(query, causal)
            .filter(|key| block.range().contains(key) && !window.range().contains(key) && !self.in_spans(*key));
        window.len() + in_spans.sum::<usize>() + single.count()
    }

    /// The keys that the query reads on diagonals and as extras, each once.
    pub(crate) fn single_keys(&self, query: usize, causal: bool) -> impl Iterator<Item = usize> {
        let on_diagonals = self.diagonals.iter().flat_map(move |distance| {
            let ahead = query.checked_add(*distance).filter(|_| !causal && *distance > 0);
            [query.checked_sub(*distance), ahead]
        });
        let extras = self.row_extras(query).iter().copied();
        let extras = extras.filter(move |key| self.diagonals.binary_search(&query.abs_diff(*key)).is_err());
        on_diagonals.flatten().chain(extras)
    }

    /// (query, key) pairs that the queries `start..start + rows` read causally, without summaries.
    pub fn pair_count(&self, start: usize, rows: usize) -> usize {
        (start..start.saturating_add(rows))
            .map(|query| self.row_count(query))
            .sum()
    }

    /// Spans that cover every token which some query of `start..start + rows` reads causally, sorted and disjoint.
    /// These must be near before the rows attend. Summaries are not counted.
    pub fn reads(&self, start: usize, rows: usize) -> Vec<Span> {
        let mut needs = Vec::new();
        let tokens = Tokens {
            selection: self,
            causal: true,
        };
        tokens.needs(start, rows, &mut needs);
        for distance in &self.diagonals {
            needs.extend(diagonal_spans(start, rows, *distance, true));
        }
        merge_spans(&mut needs);
        needs
    }

    /// `[rows, tokens]`: true if the query at `start + r` reads key `j` causally.
    pub fn to_mask(&self, start: usize, rows: usize, tokens: usize) -> Vec<bool> {
        let mut mask = Vec::with_capacity(rows * tokens);
        for query in start..start + rows {
            mask.extend((0..tokens).map(|key| self.contains(query, key)));
        }
        mask
    }

    /// The tokens of the row's window, not clipped at the end of the sequence.
    pub(crate) fn window_of(&self, query: usize, causal: bool) -> Span {
        if self.row_window == 0 {
            return Span::new(0, 0);
        }
        let start = (query + 1).saturating_sub(self.row_window);
        let end = if causal {
            query + 1
        } else {
            query.saturating_add(self.row_window)
        };
        Span::new(start, end)
    }

    /// True if any span holds a token of the block.
    pub(crate) fn spans_touch(&self, block: Span) -> bool {
        let after = self.spans.partition_point(|span| span.end <= block.start);
        self.spans.get(after).is_some_and(|span| span.start < block.end)
    }

    fn in_spans(&self, key: usize) -> bool {
        let after = self.spans.partition_point(|span| span.end <= key);
        self.spans.get(after).is_some_and(|span| span.start <= key)
    }

    fn row_count(&self, query: usize) -> usize {
        let window = self.window_of(query, true);
        let visible = Span::new(0, query + 1);
        let mut count = window.len();
        for span in &self.spans {
            if span.start > query {
                break;
            }
            let span = span.intersect(&visible);
            count += span.len() - span.intersect(&window).len();
        }
        let apart = |key: usize| key <= query && !window.range().contains(&key) && !self.in_spans(key);
        let diagonals = self
            .diagonals
            .iter()
            .filter_map(|distance| query.checked_sub(*distance));
        let extras = self.row_extras(query).iter().copied();
        let extras = extras.filter(|key| *key <= query && self.diagonals.binary_search(&(query - key)).is_err());
        count + diagonals.chain(extras).filter(|key| apart(*key)).count()
    }
}

/// The tokens at `distance` before the queries `start..start + rows`; without causality, also after them.
pub(crate) fn diagonal_spans(start: usize, rows: usize, distance: usize, causal: bool) -> impl Iterator<Item = Span> {
    let end = start.saturating_add(rows);
    let behind = Span::new(start.saturating_sub(distance), end.saturating_sub(distance));
    let ahead = Span::new(start.saturating_add(distance), end.saturating_add(distance));
    let ahead = Some(ahead).filter(|_| !causal && distance > 0);
    [Some(behind), ahead]
        .into_iter()
        .flatten()
        .filter(|span| !span.is_empty())
}

/// Sorts, drops empty spans, and merges those that overlap or touch.
pub(crate) fn merge_spans(spans: &mut Vec<Span>) {
    spans.retain(|span| !span.is_empty());
    spans.sort_unstable();
    let mut kept = 0;
    for at in 0..spans.len() {
        let span = spans[at];
        if kept > 0 && span.start <= spans[kept - 1].end {
            spans[kept - 1].end = spans[kept - 1].end.max(span.end);
        } else {
            spans[kept] = span;
            kept += 1;
        }
    }
    spans.truncate(kept);
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn spans_become_canonical() {
        let a = Selection::from_spans([Span::new(8, 12), Span::new(0, 4), Span::new(3, 8), Span::new(9, 9)]);
        assert_eq!(a, Selection::full(12));
        assert_eq!(a.spans(), [Span::new(0, 12)]);
    }

    #[test]
    fn extras_become_canonical() {
        let rows = [vec![], vec![3, 1, 3], vec![], vec![2], vec![]];
        let a = Selection::none().with_row_extras(10, rows);
        let b = Selection::none().with_row_extras(11, [vec![1, 3], vec![], vec![2]]);
        assert_eq!(a, b);
        assert_eq!(a.row_extras(11), [1, 3]);
        assert_eq!(a.row_extras(12), [0usize; 0]);
        assert_eq!(a.row_extras(13), [2]);
        assert_eq!((a.extra_rows(), Selection::none().extra_rows()), (11..14, 0..0));
        assert_eq!(a.row_extras(14), [0usize; 0]);
        assert_eq!(
            Selection::none().with_row_extras(7, [vec![], vec![]]),
            Selection::none()
        );
    }

    #[test]
    fn a_summary_yields_to_any_full_read() {
        let block = Span::new(8, 16);
        let selection = Selection::none().with_summaries([block]).with_row_window(4);
        let summarized = |query| selection.summarized(query, block, true);
        assert_eq!([15, 16, 18, 19].map(summarized), [0, 0, 0, 8]);
        let with_span = Selection::from_spans([Span::new(15, 17)]);
        assert_eq!(with_span.summarized(40, block, true), 0);
        let with_extra = Selection::none().with_row_extras(40, [[12]]);
        assert_eq!([40, 41].map(|query| with_extra.summarized(query, block, true)), [0, 8]);
    }

    proptest::proptest! {
        #[test]
        fn pair_count_equals_the_mask(
            spans in proptest::collection::vec((0usize..60, 0usize..60), 0..5),
            window in 0usize..20,
            extras in proptest::collection::vec(proptest::collection::vec(0usize..70, 0..4), 0..6),
            diagonals in proptest::collection::vec(0usize..70, 0..5),
            start in 0usize..50,
            rows in 0usize..8,
        ) {
            let selection = Selection::from_spans(spans.iter().map(|(a, b)| Span::new(*a, *b)))
                .with_row_window(window)
                .with_diagonals(diagonals)
                .with_row_extras(start, extras);
            let mask = selection.to_mask(start, rows, start + rows);
            proptest::prop_assert_eq!(selection.pair_count(start, rows), mask.iter().filter(|x| **x).count());
            let reads = selection.reads(start, rows);
            for (at, read) in mask.iter().enumerate() {
                let key = at % (start + rows);
                proptest::prop_assert!(!read || reads.iter().any(|span| span.range().contains(&key)));
            }
            for block in [Span::new(3, 9), Span::new(8, 24), Span::new(20, 21)] {
                let parts = selection.clone().with_summaries([block]).summarizing_parts(true);
                for (query, causal) in (start..start + rows).flat_map(|query| [(query, true), (query, false)]) {
                    let is_before = block.end <= query || (!causal && block.start > query);
                    let is_unread = |key: &usize| is_before && !selection.contains_with(query, *key, causal);
                    let unread = block.range().filter(is_unread).count();
                    let whole = if unread == block.len() { unread } else { 0 };
                    proptest::prop_assert_eq!(parts.summarized(query, block, causal), unread);
                    proptest::prop_assert_eq!(selection.summarized(query, block, causal), whole);
                }
            }
            proptest::prop_assert!(reads.iter().all(|span| span.end <= start + rows));
        }
    }
}
