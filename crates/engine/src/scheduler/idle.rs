//! Sequences without an owner.

use std::path::Path;
use std::time::Instant;

use crate::Sequence;
use crate::scheduler::FileState;
use crate::sharing::{known_beginning, serves_others};

/// Sequences that no request uses, the most recently used last. Their pages serve requests with the same beginning,
/// and are freed when room is needed.
#[derive(Default)]
pub(super) struct Idle {
    pub(super) sequences: Vec<IdleSequence>,
}

/// Leading tokens of a sequence that were offered to caches outside its pool.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Offered {
    /// The prefix cache on disk.
    pub(super) disk: usize,
    /// The store shared with other processes.
    pub(super) shared: usize,
}

/// A sequence without an owner.
pub(super) struct IdleSequence {
    pub(super) sequence: Sequence,
    pub(super) offered: Offered,
    /// Session file of the sequence.
    file: Option<FileState>,
    /// Time of the sequence's last use.
    used: Instant,
}

impl IdleSequence {
    /// True if the sequence belongs to a session file with this property.
    fn is_of(&self, has_property: impl Fn(&Path) -> bool) -> bool {
        self.file.as_ref().is_some_and(|file| has_property(file.path()))
    }
}

impl Idle {
    /// Keeps a sequence, if others could continue from it.
    pub(super) fn keep(&mut self, sequence: Sequence, offered: Offered) {
        if serves_others(&sequence) {
            self.push(sequence, offered, None);
        }
    }

    /// Keeps the sequence of a session file, replacing an earlier one for it.
    pub(super) fn keep_session(&mut self, sequence: Sequence, file: FileState) {
        self.sequences.retain(|idle| !idle.is_of(|path| path == file.path()));
        self.push(sequence, Offered::default(), Some(file));
    }

    fn push(&mut self, mut sequence: Sequence, offered: Offered, file: Option<FileState>) {
        // Pages that cannot be parked stay in place until their room is needed.
        drop(sequence.park());
        self.sequences.push(IdleSequence {
            sequence,
            offered,
            file,
            used: Instant::now(),
        });
    }

    /// Drops the least recently used sequence whose session file no request names; returns false if there is none.
    pub(super) fn drop_oldest(&mut self, is_asked_for: impl Fn(&Path) -> bool) -> bool {
        let oldest = self.sequences.iter().position(|idle| !idle.is_of(&is_asked_for));
        oldest.map(|oldest| self.sequences.remove(oldest)).is_some()
    }

    /// The sequence of a session file.
    pub(super) fn session(&self, file: &FileState) -> Option<&Sequence> {
        let place = self.session_place(file)?;
        Some(&self.sequences[place].sequence)
    }

    /// The sequence of a session file; records the use.
    pub(super) fn session_mut(&mut self, file: &FileState) -> Option<&mut Sequence> {
        let place = self.session_place(file)?;
        Some(self.use_now(place))
    }

    /// Removes and returns the sequence of a session file.
    pub(super) fn take_session(&mut self, file: &FileState) -> Option<Sequence> {
        let place = self.session_place(file)?;
        Some(self.sequences.remove(place).sequence)
    }

    fn session_place(&self, file: &FileState) -> Option<usize> {
        self.sequences.iter().position(|idle| idle.file.as_ref() == Some(file))
    }

    fn use_now(&mut self, place: usize) -> &mut Sequence {
        let mut idle = self.sequences.remove(place);
        idle.used = Instant::now();
        self.sequences.push(idle);
        let last = self.sequences.len() - 1;
        &mut self.sequences[last].sequence
    }

    /// Drops the sequences last used before `time` whose session files no request names; returns their number.
    pub(super) fn drop_unused_since(&mut self, time: Instant, is_asked_for: impl Fn(&Path) -> bool) -> usize {
        let before = self.sequences.len();
        self.sequences
            .retain(|idle| idle.used >= time || idle.is_of(&is_asked_for));
        before - self.sequences.len()
    }

    /// Index of the idle sequence that can return to the longest beginning of `tokens`, and the beginning's length.
    pub(super) fn longest(&self, tokens: &[u32]) -> Option<(usize, usize)> {
        let known = self
            .sequences
            .iter()
            .map(|idle| known_beginning(&idle.sequence, tokens));
        known.enumerate().max_by_key(|(_, tokens)| *tokens)
    }

    /// The idle sequence that can return to the longest beginning of `tokens` that it read as a prompt, and the
    /// beginning's length.
    pub(super) fn longest_shared(&mut self, tokens: &[u32]) -> Option<(&mut Sequence, usize)> {
        let (best, tokens) = self.longest(tokens).filter(|(_, tokens)| *tokens > 0)?;
        Some((self.use_now(best), tokens))
    }
}
