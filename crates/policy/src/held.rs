//! Tokens that an evicting policy still reads.

use riffle_attention::{Selection, Span};

use crate::ranking::top_count;
use crate::spans::runs;

/// Positions that are still read, of the tokens taken in so far. What was let go never comes back.
#[derive(Default)]
pub(crate) struct Held {
    /// Ascending.
    positions: Vec<usize>,
    /// Tokens taken in: held or let go.
    known: usize,
}

impl Held {
    pub(crate) fn positions(&self) -> &[usize] {
        &self.positions
    }

    /// Holds every token up to `tokens` that is new.
    pub(crate) fn take_in(&mut self, tokens: usize) {
        self.positions.extend(self.known..tokens);
        self.known = self.known.max(tokens);
    }

    /// Lets go of all but the `budget` best by score (one for each held position) and those that are protected; returns
    /// the places, among those held before, that stay.
    pub(crate) fn keep(
        &mut self,
        scores: &[f32],
        budget: usize,
        protected: impl Fn(usize, usize) -> bool,
    ) -> Vec<usize> {
        let stay = top_count(scores, budget, |place| protected(place, self.positions[place]));
        self.positions = stay.iter().map(|place| self.positions[*place]).collect();
        stay
    }

    /// What is held, and all tokens from the first that was not taken in yet.
    pub(crate) fn selection(&self, tokens: usize) -> Selection {
        let held = runs(self.positions.iter().copied()).into_iter();
        Selection::from_spans(held.chain([Span::new(self.known, tokens)]))
    }

    /// What was let go has left: the positions held are the first ones.
    pub(crate) fn close_gaps(&mut self) {
        self.known = self.positions.len();
        self.positions = (0..self.known).collect();
    }

    /// The tokens taken in, then the positions held.
    pub(crate) fn numbers(&self) -> Vec<usize> {
        std::iter::once(self.known)
            .chain(self.positions.iter().copied())
            .collect()
    }

    /// From what `numbers` returned; `None` where it cannot have.
    pub(crate) fn from_numbers(numbers: &[usize]) -> Option<Self> {
        let (known, positions) = numbers.split_first()?;
        let sound = positions.is_sorted_by(|a, b| a < b) && positions.last().is_none_or(|last| last < known);
        sound.then(|| Self {
            positions: positions.to_vec(),
            known: *known,
        })
    }

    /// Forgets tokens at and after `tokens`; returns how many positions remain.
    pub(crate) fn truncate(&mut self, tokens: usize) -> usize {
        self.known = self.known.min(tokens);
        self.positions
            .truncate(self.positions.partition_point(|position| *position < tokens));
        self.positions.len()
    }
}

/// What an evicting policy never lets go of: first tokens, latest tokens, and ranges that were named.
#[derive(Clone)]
pub(crate) struct Protected {
    pub(crate) sinks: usize,
    pub(crate) recent: usize,
    pub(crate) ranges: Vec<Span>,
}

impl Protected {
    /// Whether the position is protected in a sequence of `tokens`.
    pub(crate) fn holds(&self, position: usize, tokens: usize) -> bool {
        position < self.sinks
            || position + self.recent >= tokens
            || self.ranges.iter().any(|range| range.range().contains(&position))
    }
}
