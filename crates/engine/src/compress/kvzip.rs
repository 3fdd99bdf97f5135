//! Scores by reconstruction: the tokens that a model attends to while it repeats its text are those it will need for
//! questions.

use std::collections::VecDeque;
use std::ops::Range;

use crate::attention::Observers;
use crate::compress::reconstruction::Reconstruction;
use crate::compress::{HeadScores, RepeatPrompt, check_room_beside, head_scores, whole_since};
use crate::sequence::fork::fork_to_measure;
use crate::{EngineError, Sequence};

/// The chunks of a text still to be repeated. For each pair, the largest attention weight that it received while the
/// model repeated its chunk.
pub(super) struct Repeats {
    /// A chunk, counted from the first token with a score, and the prompt for it.
    ahead: VecDeque<(Range<usize>, Vec<u32>)>,
    /// The scratch sequence, while a chunk is repeated.
    reconstruction: Option<Reconstruction>,
}

impl Repeats {
    pub(super) fn begin(
        sequence: &Sequence,
        chunk_tokens: usize,
        sink_tokens: usize,
        prompt: &RepeatPrompt,
    ) -> Result<Self, EngineError> {
        let (text, start) = (sequence.tokens(), whole_since(sequence));
        let chunks = (start..text.len())
            .step_by(chunk_tokens)
            .map(|first| first..(first + chunk_tokens).min(text.len()));
        let ahead = chunks.map(|chunk| (chunk.start - start..chunk.end - start, prompt.tokens(text, chunk)));
        let heads = head_scores(sequence, |_, _, tokens| vec![0.0; tokens]);
        let repeats = Self {
            ahead: ahead.collect(),
            reconstruction: Some(Reconstruction::new(heads, sink_tokens)),
        };
        check_room_beside(
            sequence,
            "the text with what is repeated of it",
            repeats.longest_tokens(),
        )?;
        Ok(repeats)
    }

    /// Number of tokens to read.
    pub(super) fn tokens(&self) -> usize {
        self.ahead.iter().map(|(_, prompt)| prompt.len()).sum()
    }

    /// Tokens of the longest prompt.
    pub(super) fn longest_tokens(&self) -> usize {
        self.ahead.iter().map(|(_, prompt)| prompt.len()).max().unwrap_or(0)
    }

    /// A fork of the sequence and the prompt that it must read; `None` after every chunk has been repeated.
    pub(super) fn next_reading(
        &mut self,
        sequence: &mut Sequence,
    ) -> Result<Option<(Sequence, Vec<u32>)>, EngineError> {
        let Some((chunk, prompt)) = self.ahead.pop_front() else {
            return Ok(None);
        };
        let Some(mut reconstruction) = self.reconstruction.take() else {
            return Ok(None);
        };
        reconstruction.chunk = chunk;
        let mut scratch = fork_to_measure(sequence)?;
        scratch.attention_mut().observers.add(reconstruction);
        Ok(Some((scratch, prompt)))
    }

    /// Takes the observer back from a fork that has read its prompt.
    pub(super) fn take_back(&mut self, observers: &mut Observers) {
        self.reconstruction = observers.take();
    }

    pub(super) fn into_scores(self) -> Vec<HeadScores> {
        self.reconstruction
            .map_or(Vec::new(), |reconstruction| reconstruction.heads)
    }
}
