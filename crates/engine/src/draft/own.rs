//! The model drafts for itself: its attention reads what a cheap policy names.
//!
//! For a draft the policies of the sequence give place to those of the draft. Tokens are read like generated ones, and the sequence is
//! rolled back behind the last: pages hold nothing of a draft when it is verified. What the policies of the draft know follows from keys,
//! so it stays true from draft to draft.

use std::ops::ControlFlow;

use riffle_policy::{Phase, PolicyRules, PolicySet};

use crate::answer::Guess;
use crate::draft::step::Part;
use crate::pass::{Failure, Runner, Work};
use crate::sequence::Checkpoint;
use crate::{EngineError, Sequence};

/// The policies of an answer's drafts.
pub(super) struct OwnDraft {
    rules: PolicyRules,
    policies: PolicySet,
}

/// A draft under way.
struct Drafting {
    /// Which part drafts.
    part: usize,
    checkpoint: Checkpoint,
    /// Draws as the answer would.
    guess: Guess,
    tokens: usize,
    failure: Option<Failure>,
}

impl OwnDraft {
    pub(super) fn new(rules: &PolicyRules, sequence: &Sequence) -> Result<Self, EngineError> {
        let (engine, shape) = (&sequence.engine, sequence.engine.resolved().policy);
        rules.check_places(&shape)?;
        Ok(Self {
            rules: rules.clone(),
            policies: PolicySet::new(rules, Phase::Decode, &shape, &engine.options().cost)?,
        })
    }

    pub(super) fn rules(&self) -> &PolicyRules {
        &self.rules
    }

    /// Gives the sequence these policies and takes its own, or the reverse.
    pub(super) fn swap(&mut self, sequence: &mut Sequence) {
        std::mem::swap(&mut self.policies, &mut sequence.decode);
    }
}

/// Drafts `tokens` tokens of each part that is named with them, a token of all in one pass. A part that fails is told its failure and
/// drafts nothing.
///
/// # Errors
/// Failures that are of no single sequence; every sequence stands where it stood.
pub(super) fn draft(
    runner: &mut Runner,
    parts: &mut [Part<'_, '_>],
    wanted: &[(usize, usize)],
    logits: &mut Vec<f32>,
) -> Result<(), EngineError> {
    let mut drafts = Vec::with_capacity(wanted.len());
    for (part, tokens) in wanted {
        let step = &mut *parts[*part].step;
        match step.sequence.checkpoint() {
            Ok(checkpoint) => drafts.push(Drafting {
                part: *part,
                checkpoint,
                guess: step.answer.guess(),
                tokens: *tokens,
                failure: None,
            }),
            Err(error) => parts[*part].fail(error),
        }
    }
    drafts.iter().for_each(|draft| parts[draft.part].swap_policies());
    let outcome = read_drafts(runner, parts, &mut drafts, logits);
    for draft in drafts {
        let part = &mut parts[draft.part];
        let rolled_back = part.step.sequence.roll_back(&draft.checkpoint, 0);
        part.swap_policies();
        match (draft.failure, rolled_back) {
            (Some(failure), _) => {
                part.draft.clear();
                part.failure = Some(failure);
            }
            (None, Err(error)) => part.fail(error),
            (None, Ok(_)) => {}
        }
    }
    outcome
}

/// Reads the latest token of every draft, and draws the next, until all drafts are as long as they are to be.
fn read_drafts(
    runner: &mut Runner,
    parts: &mut [Part<'_, '_>],
    drafts: &mut [Drafting],
    logits: &mut Vec<f32>,
) -> Result<(), EngineError> {
    loop {
        let goes_on = |draft: &Drafting, parts: &[Part<'_, '_>]| {
            let drafted = parts[draft.part].draft.len();
            draft.failure.is_none() && drafted < draft.tokens && !draft.guess.is_complete()
        };
        let mut reading: Vec<&mut Drafting> = Vec::new();
        for draft in drafts.iter_mut() {
            if goes_on(draft, parts) {
                reading.push(draft);
            }
        }
        if reading.is_empty() {
            return Ok(());
        }
        let tokens: Vec<[u32; 1]> = reading.iter().map(|draft| [parts[draft.part].last_token()]).collect();
        let places: Vec<usize> = reading.iter().map(|draft| draft.part).collect();
        let drafting = parts.iter_mut().enumerate().filter(|(place, _)| places.contains(place));
        let mut work: Vec<Work<'_>> = drafting
            .zip(&tokens)
            .map(|((_, part), token)| Work {
                goal: part.step.sequence.tokens().len() + 1,
                sequence: &mut *part.step.sequence,
                tokens: token,
                phase: Phase::Decode,
            })
            .collect();
        let outcomes = runner.pass(&mut work, &mut |_| ControlFlow::Continue(()))?;
        drop(work);
        let rows: Vec<usize> = (0..reading.len()).collect();
        runner.logits_of(&rows, logits)?;
        let vocab_size = logits.len() / rows.len();
        for ((draft, outcome), logits) in reading.into_iter().zip(outcomes).zip(logits.chunks(vocab_size)) {
            let part = &mut parts[draft.part];
            draft.failure = outcome;
            if draft.failure.is_none() {
                let token = draft.guess.draw(part.step.sequence.tokens(), logits);
                // What cannot be guessed ends the draft.
                match token {
                    Some(token) => part.draft.push(token),
                    None => draft.tokens = 0,
                }
            }
        }
    }
}
