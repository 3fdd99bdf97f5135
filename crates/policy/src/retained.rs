//! Tokens that an evicting policy still reads.

use riffle_attention::{Selection, Span};

use crate::ranking::top_count;
use crate::spans::runs;

/// The positions that are still read. An evicted position never returns.
#[derive(Clone, Default)]
pub struct RetainedTokens {
    /// Ascending.
    positions: Vec<usize>,
    /// Number of tokens seen so far, retained or evicted.
    seen: usize,
}

impl RetainedTokens {
    /// The retained positions, ascending.
    pub fn positions(&self) -> &[usize] {
        &self.positions
    }

    /// Retains every new token up to `tokens`.
    pub fn extend(&mut self, tokens: usize) {
        self.positions.extend(self.seen..tokens);
        self.seen = self.seen.max(tokens);
    }

    /// Retains the `budget` best by score (one score per retained position), protected ones first, and evicts the
    /// rest. Returns the remaining indices into the previously retained positions.
    pub fn evict(&mut self, scores: &[f32], budget: usize, protected: impl Fn(usize, usize) -> bool) -> Vec<usize> {
        let remaining = top_count(scores, budget, |index| protected(index, self.positions[index]));
        self.positions = remaining.iter().map(|index| self.positions[*index]).collect();
        remaining
    }

    /// Selects the retained tokens and every token not seen yet.
    pub fn selection(&self, tokens: usize) -> Selection {
        let retained = runs(self.positions.iter().copied()).into_iter();
        Selection::from_spans(retained.chain([Span::new(self.seen, tokens)]))
    }

    /// Renumbers the retained tokens from 0, after the cache dropped the evicted ones.
    pub fn close_gaps(&mut self) {
        self.seen = self.positions.len();
        self.positions = (0..self.seen).collect();
    }

    /// The tokens seen, then the positions retained.
    pub fn to_numbers(&self) -> Vec<usize> {
        std::iter::once(self.seen)
            .chain(self.positions.iter().copied())
            .collect()
    }

    /// Restores from the result of `to_numbers`; `None` for invalid numbers.
    pub fn from_numbers(numbers: &[usize]) -> Option<Self> {
        let (seen, positions) = numbers.split_first()?;
        let sound = positions.is_sorted_by(|a, b| a < b) && positions.last().is_none_or(|last| last < seen);
        sound.then(|| Self {
            positions: positions.to_vec(),
            seen: *seen,
        })
    }

    /// Removes tokens at and after `tokens`; returns the number of remaining positions.
    pub fn truncate(&mut self, tokens: usize) -> usize {
        self.seen = self.seen.min(tokens);
        self.positions
            .truncate(self.positions.partition_point(|position| *position < tokens));
        self.positions.len()
    }
}

/// The tokens that a policy never evicts: the first ones, the latest ones, and named ranges.
#[derive(Clone)]
pub(crate) struct ProtectedTokens {
    pub(crate) sinks: usize,
    pub(crate) recent: usize,
    pub(crate) ranges: Vec<Span>,
}

impl ProtectedTokens {
    /// True if the position is protected in a sequence of `tokens`.
    pub(crate) fn contains(&self, position: usize, tokens: usize) -> bool {
        position < self.sinks
            || position + self.recent >= tokens
            || self.ranges.iter().any(|range| range.range().contains(&position))
    }
}
