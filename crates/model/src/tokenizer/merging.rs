//! Merges neighbouring tokens of a word, best merge first.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::merges::{Merges, Rank};
use super::vocabulary::Vocabulary;
use super::watch::Watch;

/// No neighbour.
const NONE: u32 = u32::MAX;

/// A word during merging. Reused, so that a long text allocates it once.
pub(crate) struct Word<'p> {
    symbols: Vec<Symbol>,
    candidates: BinaryHeap<Candidate>,
    joined: String,
    pub(crate) watch: Watch<'p>,
}

/// A token of the word, linked to its neighbours; its token is `NONE` after its left neighbour absorbed it.
struct Symbol {
    token: u32,
    previous: u32,
    next: u32,
}

/// Two neighbouring tokens that can merge.
#[derive(PartialEq, Eq)]
struct Candidate {
    rank: Rank,
    /// Index of the left symbol.
    position: u32,
    left: u32,
    right: u32,
    merged: u32,
}

impl Ord for Candidate {
    /// The greatest pair is merged next: the best rank, then the leftmost position.
    fn cmp(&self, other: &Candidate) -> Ordering {
        other
            .rank
            .cmp(&self.rank)
            .then_with(|| other.position.cmp(&self.position))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Candidate) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<'p> Word<'p> {
    pub(crate) fn new(watch: Watch<'p>) -> Self {
        Self {
            symbols: Vec::new(),
            candidates: BinaryHeap::new(),
            joined: String::new(),
            watch,
        }
    }

    /// Appends a token.
    pub(crate) fn push(&mut self, token: u32) {
        let index = self.symbols.len() as u32;
        if let Some(last) = self.symbols.last_mut() {
            last.next = index;
        }
        self.symbols.push(Symbol {
            token,
            previous: index.checked_sub(1).unwrap_or(NONE),
            next: NONE,
        });
    }

    /// Merges the tokens as long as any merge applies, appends the result to `ids` and empties the word.
    ///
    /// # Errors
    /// `true` if the caller stopped the work; the word is then invalid.
    pub(crate) fn merge_into(
        &mut self,
        merges: &Merges,
        vocabulary: &Vocabulary,
        ids: &mut Vec<u32>,
    ) -> Result<(), String> {
        for position in 1..self.symbols.len() {
            self.watch.step(1, ids.len())?;
            self.consider(position as u32 - 1, merges, vocabulary);
        }
        while let Some(candidate) = self.candidates.pop() {
            self.watch.step(1, ids.len())?;
            let Symbol { token, next, previous } = self.symbols[candidate.position as usize];
            // One of the two has merged with another neighbour meanwhile.
            if token != candidate.left || next == NONE || self.symbols[next as usize].token != candidate.right {
                continue;
            }
            let after = self.symbols[next as usize].next;
            self.symbols[next as usize].token = NONE;
            self.symbols[candidate.position as usize] = Symbol {
                token: candidate.merged,
                previous,
                next: after,
            };
            if after != NONE {
                self.symbols[after as usize].previous = candidate.position;
            }
            if previous != NONE {
                self.consider(previous, merges, vocabulary);
            }
            if after != NONE {
                self.consider(candidate.position, merges, vocabulary);
            }
        }
        let tokens = self.symbols.drain(..).map(|symbol| symbol.token);
        ids.extend(tokens.filter(|token| *token != NONE));
        Ok(())
    }

    /// Queues the merge of a symbol with its right neighbour, if they merge.
    fn consider(&mut self, position: u32, merges: &Merges, vocabulary: &Vocabulary) {
        let left = &self.symbols[position as usize];
        let right = self.symbols[left.next as usize].token;
        let left = left.token;
        if let Some((rank, merged)) = merges.find(left, right, vocabulary, &mut self.joined) {
            self.candidates.push(Candidate {
                rank,
                position,
                left,
                right,
                merged,
            });
        }
    }
}
