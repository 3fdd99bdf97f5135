//! A compression in bounded pieces. The caller runs the readings, and can do other work between pieces.

use std::collections::VecDeque;

use crate::attention::lacks_room;
use crate::compress::echo::Echo;
use crate::compress::expected::Sample;
use crate::compress::kvzip::Repeats;
use crate::compress::{
    CompressMethod, CompressOptions, Compressed, HeadScores, RepeatPrompt, budget, check_compressible, whole_pairs,
};
use crate::{EngineError, PrefillProgress, Sequence};

/// A compression of one sequence. The sequence changes only after all scores are known.
pub(crate) struct Compression {
    options: CompressOptions,
    state: State,
    /// Tokens to read to score the pairs.
    tokens: usize,
    /// Tokens read so far.
    read_tokens: usize,
    /// Length of the longest text read beside the sequence at a time.
    pub(crate) longest_tokens: usize,
    pairs_before: usize,
    bytes_before: u64,
}

enum State {
    Echo(Echo),
    KvZip(Repeats),
    Expected(Sample),
    /// Pairs are evicted, one head at a time.
    Moving(VecDeque<KeptHead>),
    Done,
}

/// The scores of a head's pairs, and the kept ones of them.
pub(super) type KeptHead = (HeadScores, Vec<usize>);

/// The result of a piece of a compression.
pub(crate) enum CompressStep {
    /// The caller must read these tokens as a prompt into this scratch sequence, and then call
    /// [`Compression::take_back`].
    Read(Box<Sequence>, Vec<u32>),
    /// A piece of work is done, and more remains.
    Worked,
    /// The sequence is compressed.
    Done(Compressed),
}

impl Compression {
    /// A new compression of a sequence.
    pub(crate) fn begin(sequence: &Sequence, options: &CompressOptions) -> Result<Self, EngineError> {
        options.check()?;
        check_compressible(sequence, options)?;
        let (state, tokens, longest_tokens) = match &options.method {
            _ if options.keep >= 1.0 => (State::Done, 0, 0),
            CompressMethod::Echo { part_tokens } => {
                let echo = Echo::begin(sequence, *part_tokens)?;
                let (tokens, longest) = (echo.tokens(), echo.longest_tokens());
                (State::Echo(echo), tokens, longest)
            }
            CompressMethod::KvZip { chunk_tokens, prompt } => {
                let prompt = match prompt {
                    Some(prompt) => prompt.clone(),
                    None => RepeatPrompt::for_engine(sequence.engine())?,
                };
                let repeats = Repeats::begin(sequence, *chunk_tokens, options.sink_tokens, &prompt)?;
                let (tokens, longest) = (repeats.tokens(), repeats.longest_tokens());
                (State::KvZip(repeats), tokens, longest)
            }
            CompressMethod::Expected {
                sample_tokens,
                future_tokens,
            } => {
                let sample = Sample::begin(sequence, *sample_tokens, *future_tokens, options.sink_tokens)?;
                let tokens = sample.tokens();
                (State::Expected(sample), tokens, tokens)
            }
        };
        Ok(Self {
            options: options.clone(),
            state,
            tokens,
            read_tokens: 0,
            longest_tokens,
            pairs_before: whole_pairs(sequence),
            bytes_before: sequence.usage().bytes_by_tier.total(),
        })
    }

    /// Progress of the reading, after the current text was read up to `read` tokens.
    pub(crate) fn progress(&self, read: f64) -> PrefillProgress {
        PrefillProgress {
            tokens_done: self.read_tokens as f64 + read,
            tokens: self.tokens,
            batch: None,
        }
    }

    /// Does the next piece. A requested text must be read before the next call.
    pub(crate) fn advance(&mut self, sequence: &mut Sequence) -> Result<CompressStep, EngineError> {
        let next = match &mut self.state {
            State::Echo(echo) => echo.next_reading(sequence)?,
            State::KvZip(repeats) => repeats.next_reading(sequence)?,
            State::Expected(sample) => sample.next_reading(sequence)?,
            State::Moving(heads) => {
                // Evict pairs of the next head, and free its empty pages.
                match heads.pop_front() {
                    Some((head, kept)) => retain(sequence, &head, &kept, self.options.recent_tokens)?,
                    None => self.state = State::Done,
                }
                return Ok(CompressStep::Worked);
            }
            State::Done => return Ok(CompressStep::Done(self.compressed(sequence))),
        };
        if let Some((scratch, tokens)) = next {
            return Ok(CompressStep::Read(Box::new(scratch), tokens));
        }
        let mut scores = match std::mem::replace(&mut self.state, State::Done) {
            State::Echo(echo) => echo.into_scores(),
            State::KvZip(repeats) => repeats.into_scores(),
            State::Expected(sample) => sample.into_scores(sequence)?,
            State::Moving(_) | State::Done => Vec::new(),
        };
        budget::protect(&mut scores, &self.options);
        let kept = budget::kept(&scores, &self.options);
        self.state = State::Moving(scores.into_iter().zip(kept).collect());
        Ok(CompressStep::Worked)
    }

    /// Takes back the scratch sequence after it has read its text.
    pub(crate) fn take_back(&mut self, mut scratch: Sequence, read_tokens: usize) {
        self.read_tokens += read_tokens;
        let attention = scratch.attention_mut();
        match &mut self.state {
            State::Echo(echo) => echo.take_back(attention),
            State::KvZip(repeats) => repeats.take_back(&mut attention.observers),
            State::Expected(sample) => sample.take_back(&mut attention.observers),
            State::Moving(_) | State::Done => {}
        }
    }

    fn compressed(&self, sequence: &Sequence) -> Compressed {
        Compressed {
            tokens: sequence.tokens().len(),
            pairs_before: self.pairs_before,
            pairs: whole_pairs(sequence),
            bytes_before: self.bytes_before,
            bytes: sequence.usage().bytes_by_tier.total(),
        }
    }

    /// The scores of every pair, when all are known.
    #[cfg(test)]
    pub(super) fn into_scores(self) -> Option<Vec<HeadScores>> {
        match self.state {
            State::Moving(heads) => Some(heads.into_iter().map(|(head, _)| head).collect()),
            _ => None,
        }
    }
}

/// Keeps the pairs of a head without a score and those at `kept`, which include the latest `recent` tokens. Without
/// room for copies of shared pages the head is unchanged; after any other failure the sequence is empty.
fn retain(sequence: &mut Sequence, head: &HeadScores, kept: &[usize], recent: usize) -> Result<(), EngineError> {
    let (layer, kv_head) = (head.layer, head.kv_head);
    let held = head.before + head.scores.len();
    let since = sequence.tokens().len().saturating_sub(recent);
    if kept.len() == head.scores.len() {
        return Ok(());
    }
    let kept: Vec<usize> = (0..head.before)
        .chain(kept.iter().map(|slot| head.before + slot))
        .collect();
    let attention = sequence.attention_mut();
    if let Err(error) = attention.retain([layer, kv_head], &kept, since) {
        if !lacks_room(&error) || attention.cache.head_tokens(layer, kv_head) != held {
            sequence.forget_all();
        }
        return Err(error.into());
    }
    attention.policies.decode.layer_mut(layer)[kv_head].reset();
    Ok(())
}
