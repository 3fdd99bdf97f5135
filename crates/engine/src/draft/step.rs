//! One step of answers: tokens are drafted, verified in one pass, drawn, and what was not drawn is undone.

use std::ops::ControlFlow;

use riffle_policy::Phase;

use super::{MOST_TOKENS, Source, own};
use crate::answer::{Answer, Drawn};
use crate::pass::{Failure, Runner, Work};
use crate::sequence::Checkpoint;
use crate::{EngineError, Sequence};

/// An answer that goes on.
pub(crate) struct AnswerStep<'a> {
    pub(crate) sequence: &'a mut Sequence,
    pub(crate) answer: &'a mut Answer,
    /// The token that was drawn last, which is read now.
    pub(crate) token: u32,
}

/// What is done of a step.
pub(super) struct Part<'s, 'a> {
    pub(super) step: &'s mut AnswerStep<'a>,
    pub(super) draft: Vec<u32>,
    pub(super) failure: Option<Failure>,
    source: Source,
    checkpoint: Option<Checkpoint>,
}

/// Takes each token that is drawn, of the step of this place, and may end the answer with it.
pub(crate) type TakeDrawn<'a> = dyn FnMut(usize, &mut Answer, Drawn) -> ControlFlow<()> + 'a;

/// Reads the latest token of every answer and what is drafted behind it in one pass, and draws tokens as long as they are what was drafted.
/// Afterwards each sequence holds all tokens of its answer but the one drawn last. Returns for each step why it failed, if it did.
/// `logits` is scratch.
///
/// # Errors
/// Failures that are of no single sequence; every sequence stands where it stood.
pub(crate) fn go_on(
    runner: &mut Runner,
    steps: &mut [AnswerStep<'_>],
    logits: &mut Vec<f32>,
    take: &mut TakeDrawn<'_>,
) -> Result<Vec<Option<Failure>>, EngineError> {
    let mut parts: Vec<Part<'_, '_>> = steps.iter_mut().map(Part::new).collect();
    draft(runner, &mut parts, logits)?;
    let tokens: Vec<Vec<u32>> = parts.iter_mut().map(Part::get_ready).collect();
    let ready = parts.iter_mut().zip(&tokens).filter(|(_, tokens)| !tokens.is_empty());
    let mut work: Vec<Work<'_>> = ready
        .map(|(part, tokens)| Work {
            goal: part.step.sequence.tokens().len() + tokens.len(),
            sequence: &mut *part.step.sequence,
            tokens,
            phase: Phase::Decode,
        })
        .collect();
    if !work.is_empty() {
        let outcomes = runner.pass(&mut work, &mut |_| ControlFlow::Continue(()))?;
        drop(work);
        let rows: Vec<usize> = (0..runner.rows()).collect();
        runner.logits_of(&rows, logits)?;
        let vocab_size = logits.len() / rows.len();
        let mut rows = logits.chunks(vocab_size);
        let ready = parts
            .iter_mut()
            .enumerate()
            .zip(&tokens)
            .filter(|(_, tokens)| !tokens.is_empty());
        for (((place, part), tokens), outcome) in ready.zip(outcomes) {
            let rows: Vec<&[f32]> = rows.by_ref().take(tokens.len()).collect();
            match outcome {
                // It stands where it stood.
                Some(failure) => (part.failure, part.checkpoint) = (Some(failure), None),
                None => part.draw(place, &rows, take),
            }
        }
        read_again(runner, &mut parts)?;
    }
    Ok(parts.into_iter().map(|part| part.failure).collect())
}

/// Drafts behind the latest token of each part.
fn draft(runner: &mut Runner, parts: &mut [Part<'_, '_>], logits: &mut Vec<f32>) -> Result<(), EngineError> {
    let (mut own, together) = (Vec::new(), parts.len());
    for (place, part) in parts.iter_mut().enumerate() {
        let tokens = part.draft_from_text(together);
        if tokens > 0 {
            own.push((place, tokens));
        }
    }
    match own.is_empty() {
        true => Ok(()),
        false => own::draft(runner, parts, &own, logits),
    }
}

/// Reads again what recurrent layers forgot with the tokens that were not drawn.
fn read_again(runner: &mut Runner, parts: &mut [Part<'_, '_>]) -> Result<(), EngineError> {
    let mut again: Vec<Vec<u32>> = Vec::with_capacity(parts.len());
    for part in parts.iter_mut() {
        again.push(part.undo());
    }
    let reading = parts.iter_mut().zip(&again).filter(|(_, tokens)| !tokens.is_empty());
    let mut work: Vec<Work<'_>> = reading
        .map(|(part, tokens)| Work {
            goal: part.step.sequence.tokens().len() + tokens.len(),
            sequence: &mut *part.step.sequence,
            tokens,
            phase: Phase::Decode,
        })
        .collect();
    if work.is_empty() {
        return Ok(());
    }
    let outcomes = runner.pass(&mut work, &mut |_| ControlFlow::Continue(()))?;
    drop(work);
    let reading = parts.iter_mut().zip(&again).filter(|(_, tokens)| !tokens.is_empty());
    for ((part, _), outcome) in reading.zip(outcomes) {
        part.failure = part.failure.take().or(outcome);
    }
    Ok(())
}

impl<'s, 'a> Part<'s, 'a> {
    fn new(step: &'s mut AnswerStep<'a>) -> Self {
        Self {
            step,
            draft: Vec::new(),
            failure: None,
            source: Source::Own,
            checkpoint: None,
        }
    }

    pub(super) fn fail(&mut self, error: EngineError) {
        self.draft.clear();
        self.failure = Some(Failure {
            error,
            again: Vec::new(),
        });
    }

    /// The token that a draft goes on behind.
    pub(super) fn last_token(&self) -> u32 {
        self.draft.last().copied().unwrap_or(self.step.token)
    }

    /// Gives the sequence the policies of its drafts, or those of its answer back.
    pub(super) fn swap_policies(&mut self) {
        if let Some(own) = self
            .step
            .answer
            .drafter
            .as_mut()
            .and_then(|drafter| drafter.own.as_mut())
        {
            own.0.swap(self.step.sequence);
        }
    }

    /// Drafts from the text; returns how many tokens the model is to draft itself in place of that.
    fn draft_from_text(&mut self, together: usize) -> usize {
        let AnswerStep {
            sequence,
            answer,
            token,
        } = &mut *self.step;
        let most = answer
            .tokens_left()
            .min(sequence.tokens_left())
            .saturating_sub(1)
            .min(MOST_TOKENS);
        let Some(drafter) = answer.drafter.as_mut().filter(|_| most > 0) else {
            return 0;
        };
        match drafter.of_text(sequence, *token, together, most) {
            Some((source, draft)) => {
                (self.source, self.draft) = (source, draft);
                0
            }
            None => drafter.own_length(sequence, together, most),
        }
    }

    /// The tokens that are read in the pass; none of a part that has failed.
    fn get_ready(&mut self) -> Vec<u32> {
        if self.failure.is_none() && !self.draft.is_empty() {
            match self.step.sequence.checkpoint() {
                Ok(checkpoint) => self.checkpoint = Some(checkpoint),
                Err(error) => self.fail(error),
            }
        }
        match self.failure {
            Some(_) => Vec::new(),
            None => [&[self.step.token], self.draft.as_slice()].concat(),
        }
    }

    /// Draws a token from each row, as long as the next row is behind it.
    fn draw(&mut self, place: usize, rows: &[&[f32]], take: &mut TakeDrawn<'_>) {
        let AnswerStep { sequence, answer, .. } = &mut *self.step;
        let first = sequence.tokens().len() - self.draft.len();
        let (mut kept, mut failure) = (rows.len(), None);
        sequence.answer.pending = None;
        for (row, logits) in rows.iter().enumerate() {
            let drawn = match answer.draw_behind(sequence, first + row, logits) {
                Ok(drawn) => drawn,
                Err(error) => {
                    (kept, failure) = (row + 1, Some(error));
                    break;
                }
            };
            let (token, ends) = (drawn.token, drawn.stop.is_some());
            let goes_on = take(place, answer, drawn).is_continue() && !ends;
            if !goes_on || self.draft.get(row) != Some(&token) {
                kept = row + 1;
                break;
            }
        }
        sequence.logits.clear();
        sequence.logits.extend_from_slice(rows[kept - 1]);
        if let (Some(drafter), false) = (&mut answer.drafter, self.draft.is_empty()) {
            drafter.count.passes += 1;
            drafter.learn(self.source, self.draft.len(), kept - 1);
        }
        self.draft.truncate(kept - 1);
        self.failure = failure.map(|error| Failure {
            error,
            again: Vec::new(),
        });
    }

    /// Rolls back what was read behind the last drawn token; returns what has to be read again.
    fn undo(&mut self) -> Vec<u32> {
        let sequence = &mut *self.step.sequence;
        let kept = self.draft.len() + 1;
        let Some(checkpoint) = self.checkpoint.take() else {
            return Vec::new();
        };
        if sequence.tokens().len() == checkpoint.tokens() + kept {
            return Vec::new();
        }
        let (answer, logits) = (sequence.answer, std::mem::take(&mut sequence.logits));
        let again = sequence.roll_back(&checkpoint, kept);
        sequence.answer = answer;
        sequence.logits = logits;
        match again {
            Ok(again) => again,
            Err(error) => {
                self.fail(error);
                Vec::new()
            }
        }
    }
}
