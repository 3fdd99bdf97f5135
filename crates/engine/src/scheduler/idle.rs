//! Sequences whose owners have gone.

use crate::Sequence;

/// Sequences that nobody reads or writes, the one used last at the end. Their pages serve whoever asks for the same beginning,
/// and go when their room is needed.
pub(super) struct Idle {
    sequences: Vec<Sequence>,
    most: usize,
}

impl Idle {
    pub(super) fn new(most: usize) -> Self {
        Self {
            sequences: Vec::new(),
            most,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.sequences.len()
    }

    /// Keeps a sequence, if others could go on from what it has read.
    pub(super) fn keep(&mut self, mut sequence: Sequence) {
        if self.most == 0 || !sequence.serves_others() {
            return;
        }
        // Pages that cannot be parked stay where they are until their room is needed.
        drop(sequence.park());
        if self.sequences.len() == self.most {
            self.sequences.remove(0);
        }
        self.sequences.push(sequence);
    }

    /// Drops the sequence that was used longest ago; false where there is none.
    pub(super) fn drop_oldest(&mut self) -> bool {
        let any = !self.sequences.is_empty();
        if any {
            self.sequences.remove(0);
        }
        any
    }

    /// The idle sequence that goes on longest as `tokens` do, counting what was read as prompt alone.
    pub(super) fn longest_shared(&mut self, tokens: &[u32]) -> Option<&mut Sequence> {
        let shared = |sequence: &Sequence| sequence.shared_prompt(tokens);
        let best = (0..self.sequences.len()).max_by_key(|place| shared(&self.sequences[*place]))?;
        if shared(&self.sequences[best]) == 0 {
            return None;
        }
        let sequence = self.sequences.remove(best);
        self.sequences.push(sequence);
        self.sequences.last_mut()
    }
}
