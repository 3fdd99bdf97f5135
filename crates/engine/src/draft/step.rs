//! One step of answers: draft tokens, verify them in one pass, draw tokens, roll back rejected drafts.

use std::ops::ControlFlow;

use riffle_policy::Phase;

use super::own::{self, OwnDraft};
use super::{Choice, Drafter, GuessedDraft, Source, model, predictor};
use crate::Failure;
use crate::answer::tokens_left;
use crate::answer::{Answer, Drawn};
use crate::draft_spec::MOST_TOKENS;
use crate::pass::{FinishedRows, Runner, Work};
use crate::sequence::Checkpoint;
use crate::{EngineError, Sequence};

/// An answer, its sequence, and its latest token.
pub(crate) struct AnswerStep<'a> {
    pub(crate) sequence: &'a mut Sequence,
    pub(crate) answer: &'a mut Answer,
    pub(crate) drafter: Option<&'a mut Drafter>,
    /// The token drawn last. The sequence has not read it yet.
    pub(crate) token: u32,
}

/// An [`AnswerStep`] with its draft, during the step.
pub(super) struct DraftPart<'s, 'a> {
    pub(super) step: &'s mut AnswerStep<'a>,
    pub(super) draft: Vec<u32>,
    pub(super) failure: Option<Failure>,
    source: Source,
    checkpoint: Option<Checkpoint>,
}

/// Receives each drawn token, with the index of its step, and may end the answer.
pub(crate) type TakeDrawn<'a> = dyn FnMut(usize, &mut Answer, Drawn) -> ControlFlow<()> + 'a;

/// Reads the latest token and the draft of every answer in one pass. Draws tokens as long as they match the draft.
/// Afterwards each sequence has all tokens of its answer except the latest. Returns the failure of each step, if any.
/// `logits` is scratch.
///
/// # Errors
/// Failures that affect all sequences; every sequence is then unchanged.
pub(crate) fn go_on(
    runner: &mut Runner,
    steps: &mut [AnswerStep<'_>],
    logits: &mut Vec<f32>,
    take: &mut TakeDrawn<'_>,
) -> Result<Vec<Option<Failure>>, EngineError> {
    let mut parts: Vec<DraftPart<'_, '_>> = steps.iter_mut().map(DraftPart::new).collect();
    draft(runner, &mut parts, logits)?;
    let tokens: Vec<Vec<u32>> = parts.iter_mut().map(DraftPart::get_ready).collect();
    parts.iter_mut().for_each(DraftPart::begin_watch);
    let outcomes = read(runner, &mut parts, &tokens);
    parts.iter_mut().for_each(DraftPart::end_watch);
    let outcomes = outcomes?;
    if !outcomes.is_empty() {
        let mut rows = logits_by_row(runner, logits)?;
        for (place, outcome) in outcomes {
            let rows: Vec<&[f32]> = rows.by_ref().take(tokens[place].len()).collect();
            let part = &mut parts[place];
            match outcome {
                // A failed pass leaves the sequence unchanged, so nothing is rolled back.
                Some(failure) => (part.failure, part.checkpoint) = (Some(failure), None),
                None => part.draw(place, &rows, take),
            }
        }
        parts.iter_mut().for_each(DraftPart::undo);
    }
    Ok(parts.into_iter().map(|part| part.failure).collect())
}

/// Reads `tokens[part]` into the sequence of each part in one pass. Returns, for each part with tokens, its index and
/// its failure, if any.
///
/// # Errors
/// Failures that affect all sequences; every sequence is then unchanged.
pub(super) fn read(
    runner: &mut Runner,
    parts: &mut [DraftPart<'_, '_>],
    tokens: &[Vec<u32>],
) -> Result<Vec<(usize, Option<Failure>)>, EngineError> {
    let (mut places, mut work) = (Vec::new(), Vec::new());
    for (place, (part, tokens)) in parts.iter_mut().zip(tokens).enumerate() {
        if !tokens.is_empty() {
            places.push(place);
            work.push(Work {
                goal: part.step.sequence.tokens().len() + tokens.len(),
                sequence: &mut *part.step.sequence,
                tokens,
                phase: Phase::Decode,
                finished_rows: FinishedRows::All,
            });
        }
    }
    if work.is_empty() {
        return Ok(Vec::new());
    }
    let outcomes = runner.pass(&mut work, &mut |_| ControlFlow::Continue(()))?;
    Ok(places.into_iter().zip(outcomes).collect())
}

/// The logits of every row of the latest pass, `[vocab]` each, stored in `logits`.
pub(super) fn logits_by_row<'l>(
    runner: &mut Runner,
    logits: &'l mut Vec<f32>,
) -> Result<std::slice::Chunks<'l, f32>, EngineError> {
    let rows: Vec<usize> = (0..runner.rows()).collect();
    runner.logits_of(&rows, logits)?;
    Ok(logits.chunks(logits.len() / rows.len()))
}

/// Drafts after the latest token of each part.
fn draft(runner: &mut Runner, parts: &mut [DraftPart<'_, '_>], logits: &mut Vec<f32>) -> Result<(), EngineError> {
    let together = parts.len();
    let wanted: Vec<(Source, usize)> = parts.iter_mut().map(|part| part.draft_from_text(together)).collect();
    let of = |source: Source| -> Vec<usize> {
        let tokens = wanted
            .iter()
            .map(|(from, tokens)| if *from == source { *tokens } else { 0 });
        tokens.collect()
    };
    let (own, small, predicted) = (of(Source::Own), of(Source::Model), of(Source::Predictor));
    if own.iter().any(|tokens| *tokens > 0) {
        own::draft(runner, parts, &own, logits)?;
    }
    if small.iter().any(|tokens| *tokens > 0) {
        model::draft(runner, parts, &small, logits);
    }
    if predicted.iter().any(|tokens| *tokens > 0) {
        predictor::draft(runner, parts, &predicted, logits)?;
    }
    Ok(())
}

impl<'s, 'a> DraftPart<'s, 'a> {
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
        self.failure = Some(error.into());
    }

    /// An empty draft of `wanted` tokens.
    pub(super) fn guess(&mut self, wanted: usize) -> GuessedDraft {
        GuessedDraft {
            guess: self.step.answer.guess(),
            tokens: Vec::new(),
            wanted,
        }
    }

    /// Switches the sequence between its own policies and the draft's.
    pub(super) fn swap_policies(&mut self) {
        self.with_own(OwnDraft::swap);
    }

    /// Lets draft policies observe the verification.
    fn begin_watch(&mut self) {
        if self.checkpoint.is_some() {
            self.with_own(OwnDraft::watch);
        }
    }

    fn end_watch(&mut self) {
        self.with_own(OwnDraft::end_watch);
    }

    fn with_own(&mut self, act: impl Fn(&mut OwnDraft, &mut Sequence)) {
        let AnswerStep { sequence, drafter, .. } = &mut *self.step;
        let drafter = drafter.as_deref_mut();
        if let Some(own) = drafter.and_then(|drafter| drafter.own.as_deref_mut()) {
            act(own, sequence);
        }
    }

    /// Drafts from the text, or returns how many tokens another source should draft.
    fn draft_from_text(&mut self, together: usize) -> (Source, usize) {
        let AnswerStep {
            sequence,
            answer,
            drafter,
            token,
        } = &mut *self.step;
        let most = answer
            .tokens_left()
            .min(tokens_left(sequence))
            .saturating_sub(1)
            .min(MOST_TOKENS);
        // Drafted rows must use the same rotation as the row before them.
        let most = (0..=most)
            .rev()
            .find(|drafted| {
                !sequence
                    .turn()
                    .is_other(sequence.engine(), sequence.tokens().len() + 1 + drafted)
            })
            .unwrap_or(0);
        let Some(drafter) = drafter.as_deref_mut().filter(|_| most > 0) else {
            return (Source::Own, 0);
        };
        match drafter.choose(sequence, *token, together, most) {
            Choice::Nothing => (Source::Own, 0),
            Choice::Draft(source, tokens) => {
                self.source = source;
                (source, tokens)
            }
            Choice::Text(source, draft) => {
                (self.source, self.draft) = (source, draft);
                (source, 0)
            }
        }
    }

    /// The tokens that this part reads in the pass; empty if it has failed.
    fn get_ready(&mut self) -> Vec<u32> {
        if self.failure.is_none() && !self.draft.is_empty() {
            // Evict before the checkpoint, which would not survive an eviction.
            match self.step.sequence.evict() {
                Ok(()) => match self.step.sequence.checkpoint() {
                    Ok(checkpoint) => self.checkpoint = Some(checkpoint),
                    Err(error) => self.fail(error),
                },
                Err(failure) => self.failure = Some(*failure),
            }
        }
        match self.failure {
            Some(_) => Vec::new(),
            None => [&[self.step.token], self.draft.as_slice()].concat(),
        }
    }

    /// Keeps `kept` tokens after the checkpoint, and counts the pairs of the others.
    pub(super) fn roll_back(&mut self, checkpoint: &Checkpoint, kept: usize) -> Result<Vec<u32>, EngineError> {
        let AnswerStep { sequence, drafter, .. } = &mut *self.step;
        let read = sequence.counts().pairs.read;
        let again = sequence.roll_back(checkpoint, kept)?;
        if let Some(drafter) = drafter {
            drafter.count.undone_pairs += read - sequence.counts().pairs.read;
        }
        Ok(again)
    }

    /// Draws a token from each row until a token differs from the draft, or later rows would differ from single
    /// tokens.
    fn draw(&mut self, place: usize, rows: &[&[f32]], take: &mut TakeDrawn<'_>) {
        let AnswerStep {
            sequence,
            answer,
            drafter,
            ..
        } = &mut *self.step;
        let first = sequence.tokens().len() - self.draft.len();
        let sound = sequence.attention().learned_rows.sound_rows();
        let rows = &rows[..sound.unwrap_or(rows.len())];
        self.draft.truncate(rows.len() - 1);
        let (mut kept, mut failure) = (rows.len(), None);
        sequence.answer_mut().drawn.pending = None;
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
        sequence.answer_mut().set_logits(rows[kept - 1]);
        if let (Some(drafter), false) = (drafter, self.draft.is_empty()) {
            drafter.count.passes += 1;
            drafter.learn(self.source, self.draft.len(), kept - 1);
        }
        self.draft.truncate(kept - 1);
        self.failure = failure.map(Failure::from);
    }

    /// Rolls back the tokens after the last drawn one.
    fn undo(&mut self) {
        let sequence = &mut *self.step.sequence;
        let kept = self.draft.len() + 1;
        let Some(checkpoint) = self.checkpoint.take() else {
            return;
        };
        if sequence.tokens().len() == checkpoint.tokens() + kept {
            return;
        }
        let answer = sequence.answer_mut();
        let (drawn, logits) = (answer.drawn, std::mem::take(&mut answer.logits));
        let again = self.roll_back(&checkpoint, kept);
        let sequence = &mut *self.step.sequence;
        let answer = sequence.answer_mut();
        (answer.drawn, answer.logits) = (drawn, logits);
        match again {
            Ok(again) if again.is_empty() => {}
            Ok(again) => {
                let (tokens, held) = (checkpoint.tokens(), sequence.tokens().len());
                self.failure = Some(Failure {
                    error: EngineError::StaleCheckpoint { tokens, held },
                    again,
                });
            }
            Err(error) => self.fail(error),
        }
    }
}
