//! Scores that were made while the text was read. Parts without scores are read again, apart.

use std::collections::VecDeque;
use std::ops::Range;

use crate::attention::AttentionState;
use crate::compress::{HeadScores, check_room_beside, head_scores, whole_since};
use crate::sequence::fork::beside_to_measure;
use crate::{EngineError, Sequence, SequenceOptions};

/// The scores of a sequence, and the parts of its text still to be read for them.
pub(super) struct Echo {
    heads: Vec<HeadScores>,
    /// Position of the first token with a score.
    since: usize,
    /// Counted from the first token with a score.
    ahead: VecDeque<Range<usize>>,
    reading: Range<usize>,
}

impl Echo {
    pub(super) fn begin(sequence: &Sequence, part_tokens: usize) -> Result<Self, EngineError> {
        let (held, since) = (sequence.tokens().len(), whole_since(sequence));
        let known = &sequence.attention().pair_scores;
        let heads = head_scores(sequence, |[layer, kv_head], before, tokens| {
            let known = known.get([layer, kv_head, 0]).map(|scores| scores.by_slot());
            let mut scores = known
                .and_then(|scores| scores.get(before..))
                .unwrap_or_default()
                .to_vec();
            scores.resize(tokens, f32::NAN);
            scores
        });
        let ahead = unscored(&heads, held - since, part_tokens);
        let echo = Self {
            heads,
            since,
            ahead,
            reading: 0..0,
        };
        check_room_beside(
            sequence,
            "the text with what is read again of it",
            echo.longest_tokens(),
        )?;
        Ok(echo)
    }

    /// Number of tokens to read.
    pub(super) fn tokens(&self) -> usize {
        self.ahead.iter().map(Range::len).sum()
    }

    /// Tokens of the longest part to read.
    pub(super) fn longest_tokens(&self) -> usize {
        self.ahead.iter().map(Range::len).max().unwrap_or(0)
    }

    /// An empty sequence and the part that it must read; `None` if all pairs have scores.
    pub(super) fn next_reading(&mut self, sequence: &Sequence) -> Result<Option<(Sequence, Vec<u32>)>, EngineError> {
        let Some(part) = self.ahead.pop_front() else {
            return Ok(None);
        };
        let options = SequenceOptions {
            score_pairs: true,
            ..SequenceOptions::default()
        };
        let scratch = beside_to_measure(sequence, options)?;
        let tokens = sequence.tokens()[self.since + part.start..self.since + part.end].to_vec();
        self.reading = part;
        Ok(Some((scratch, tokens)))
    }

    /// Takes the scores of the sequence that has read a part.
    pub(super) fn take_back(&mut self, attention: &AttentionState) {
        for head in &mut self.heads {
            let scores = attention.pair_scores.get([head.layer, head.kv_head, 0]);
            let known = scores.map_or(&[][..], |scores| scores.by_slot());
            let part = &mut head.scores[self.reading.clone()];
            part.iter_mut().zip(known).for_each(|(score, known)| *score = *known);
        }
    }

    pub(super) fn into_scores(self) -> Vec<HeadScores> {
        self.heads
    }
}

/// Ranges of at most `most` tokens that have no score in some head.
fn unscored(heads: &[HeadScores], tokens: usize, most: usize) -> VecDeque<Range<usize>> {
    let mut ranges: VecDeque<Range<usize>> = VecDeque::new();
    for token in (0..tokens).filter(|token| heads.iter().any(|head| head.scores[*token].is_nan())) {
        match ranges.back_mut() {
            Some(range) if range.end == token && range.len() < most => range.end += 1,
            _ => ranges.push_back(token..token + 1),
        }
    }
    ranges
}
