//! Sequences whose owners have gone.

use std::time::Instant;

use crate::Sequence;

/// Sequences that nobody reads or writes, the one used last at the end. Their pages serve whoever asks for the same beginning,
/// and go when their room is needed.
#[derive(Default)]
pub(super) struct Idle {
    sequences: Vec<IdleSequence>,
}

/// A sequence without an owner.
pub(super) struct IdleSequence {
    pub(super) sequence: Sequence,
    /// Leading tokens that the prefix cache on disk has been given.
    pub(super) stored_tokens: usize,
    /// When it was last asked for.
    used: Instant,
}

impl Idle {
    pub(super) fn len(&self) -> usize {
        self.sequences.len()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut IdleSequence> {
        self.sequences.iter_mut()
    }

    /// Keeps a sequence, if others could go on from what it has read.
    pub(super) fn keep(&mut self, mut sequence: Sequence, stored_tokens: usize) {
        if !sequence.serves_others() {
            return;
        }
        // Pages that cannot be parked stay where they are until their room is needed.
        drop(sequence.park());
        self.sequences.push(IdleSequence {
            sequence,
            stored_tokens,
            used: Instant::now(),
        });
    }

    /// Drops the sequence that was used longest ago; false where there is none.
    pub(super) fn drop_oldest(&mut self) -> bool {
        let any = !self.sequences.is_empty();
        if any {
            self.sequences.remove(0);
        }
        any
    }

    /// Drops the sequences that were last used before `time`; returns how many.
    pub(super) fn drop_unused_since(&mut self, time: Instant) -> usize {
        let before = self.sequences.len();
        self.sequences.retain(|idle| idle.used >= time);
        before - self.sequences.len()
    }

    /// The place of the idle sequence that can go back to the longest beginning of `tokens`, and that beginning's length.
    pub(super) fn longest(&self, tokens: &[u32]) -> Option<(usize, usize)> {
        let known = |idle: &IdleSequence| idle.sequence.known_beginning(tokens);
        self.sequences
            .iter()
            .map(known)
            .enumerate()
            .max_by_key(|(_, tokens)| *tokens)
    }

    /// The idle sequence that can go back to the longest beginning of `tokens` that it has read as prompt, and that beginning's
    /// length.
    pub(super) fn longest_shared(&mut self, tokens: &[u32]) -> Option<(&mut Sequence, usize)> {
        let (best, tokens) = self.longest(tokens).filter(|(_, tokens)| *tokens > 0)?;
        let mut idle = self.sequences.remove(best);
        idle.used = Instant::now();
        self.sequences.push(idle);
        self.sequences.last_mut().map(|idle| (&mut idle.sequence, tokens))
    }
}
