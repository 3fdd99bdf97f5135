//! Drafts by a small model, which reads the same text as the large one and draws the next tokens.
//!
//! Each sequence with drafts has a corresponding sequence of the small model over the same text, which is kept between
//! answers. The small model reads one chunk of new text per step of all answers, so no answer waits for it. Drafts
//! begin when it has caught up.

use std::ops::ControlFlow;
use std::sync::Arc;

use riffle_policy::Phase;

use super::step::DraftPart;
use super::{GuessedDraft, Source};
use crate::answer::tokens_left;
use crate::draft_spec::MOST_TOKENS;
use crate::engine::draft_model::{CHUNK_TOKENS, DraftModel};
use crate::pass::{FinishedRows, Runner, Work};
use crate::sequence::common_prefix;
use crate::{EngineError, Sequence};

/// An unfinished draft.
struct Drafting<'a> {
    /// Index of the answer's part.
    place: usize,
    reader: &'a mut Sequence,
    /// The tokens to read next.
    tokens: Vec<u32>,
    draft: GuessedDraft,
}

/// Drafts `wanted[part]` tokens for each part, one token of all parts per pass. A part whose text the small model
/// cannot read gets no drafts, now or later. If the whole pass fails, no part gets a draft, since answers do not need
/// the small model.
pub(super) fn draft(runner: &mut Runner, parts: &mut [DraftPart<'_, '_>], wanted: &[usize], logits: &mut Vec<f32>) {
    let Some(model) = runner.engine().draft_model.clone() else {
        return;
    };
    let mut readers: Vec<(usize, Sequence)> = Vec::new();
    for (place, part) in parts.iter_mut().enumerate().filter(|(place, _)| wanted[*place] > 0) {
        match part.take_reader(&model) {
            Ok(reader) => readers.push((place, reader)),
            Err(_) => part.give_up_model(),
        }
    }
    let vocab_size = runner.engine().model().config().vocab_size;
    let mut small = runner.take_small(&model.engine);
    let outcome = read_and_draft(&mut small, parts, &mut readers, (wanted, vocab_size), logits);
    runner.small = Some(small);
    for (place, reader) in readers {
        parts[place].step.sequence.answer_mut().drafts.reader = Some(Box::new(reader));
    }
    if outcome.is_err() {
        let drafted = parts.iter_mut().zip(wanted).filter(|(_, wanted)| **wanted > 0);
        drafted.for_each(|(part, _)| part.give_up_model());
    }
}

/// Advances the first lagging reader by one chunk, and drafts with the others. `vocab_size` is the large model's.
fn read_and_draft(
    small: &mut Runner,
    parts: &mut [DraftPart<'_, '_>],
    readers: &mut [(usize, Sequence)],
    (wanted, vocab_size): (&[usize], usize),
    logits: &mut Vec<f32>,
) -> Result<(), EngineError> {
    let (mut drafts, mut has_read) = (Vec::new(), false);
    for (place, reader) in readers {
        let part = &mut parts[*place];
        let tokens = part.unread(reader);
        let room = tokens_left(reader).saturating_sub(tokens.len());
        if room == 0 {
            continue;
        }
        if tokens.len() > MOST_TOKENS {
            if !has_read && read_chunk(small, reader, &tokens).is_err() {
                part.give_up_model();
            }
            has_read = true;
            continue;
        }
        drafts.push(Drafting {
            place: *place,
            reader,
            tokens,
            draft: part.guess(wanted[*place].min(room)),
        });
    }
    while drafts.iter().any(|drafting| drafting.draft.goes_on()) {
        for place in read(small, &mut drafts, vocab_size, logits)? {
            parts[place].give_up_model();
        }
    }
    for Drafting { place, draft, .. } in drafts {
        parts[place].draft = draft.tokens;
    }
    Ok(())
}

/// Reads the start of `tokens` as a prompt.
fn read_chunk(small: &mut Runner, reader: &mut Sequence, tokens: &[u32]) -> Result<(), EngineError> {
    let goal = reader.tokens().len() + tokens.len();
    let tokens = &tokens[..tokens.len().min(CHUNK_TOKENS)];
    let again = reader.begin_prompt(tokens, 0)?;
    debug_assert!(again.is_empty(), "it turns as the whole text needs");
    let mut work = [Work {
        sequence: reader,
        tokens,
        phase: Phase::Prefill,
        goal,
        finished_rows: FinishedRows::Last,
    }];
    let mut outcomes = small.pass(&mut work, &mut |_| ControlFlow::Continue(()))?;
    let failure = outcomes.pop().flatten();
    failure.map_or(Ok(()), |failure| Err(failure.error))
}

/// Reads the next tokens of every unfinished draft, and draws one after them. Returns the parts that failed.
fn read(
    small: &mut Runner,
    drafts: &mut [Drafting<'_>],
    vocab_size: usize,
    logits: &mut Vec<f32>,
) -> Result<Vec<usize>, EngineError> {
    let reading = drafts.iter_mut().filter(|drafting| drafting.draft.goes_on());
    let mut reading: Vec<&mut Drafting<'_>> = reading.collect();
    let (mut last_rows, mut work, mut rows) = (Vec::new(), Vec::new(), 0);
    for draft in &mut reading {
        let Drafting { reader, tokens, .. } = &mut **draft;
        rows += tokens.len();
        last_rows.push(rows - 1);
        work.push(Work {
            goal: reader.tokens().len() + tokens.len(),
            sequence: reader,
            tokens,
            phase: Phase::Decode,
            finished_rows: FinishedRows::All,
        });
    }
    let outcomes = small.pass(&mut work, &mut |_| ControlFlow::Continue(()))?;
    drop(work);
    small.logits_of(&last_rows, logits)?;
    let width = logits.len() / last_rows.len();
    let mut failed = Vec::new();
    for ((drafting, outcome), row) in reading.into_iter().zip(outcomes).zip(logits.chunks(width)) {
        let row = outcome.is_none().then_some(&row[..width.min(vocab_size)]);
        let token = drafting.draft.draw(drafting.reader.tokens(), row);
        drafting.tokens = token.into_iter().collect();
        failed.extend(outcome.map(|_| drafting.place));
    }
    Ok(failed)
}

impl DraftPart<'_, '_> {
    /// The small model's sequence for the answer's sequence.
    fn take_reader(&mut self, model: &DraftModel) -> Result<Sequence, EngineError> {
        match self.step.sequence.answer_mut().drafts.reader.take() {
            Some(reader) if Arc::ptr_eq(reader.engine(), &model.engine) => Ok(*reader),
            _ => {
                let options = model.engine.options().sequence.clone();
                Sequence::new(&model.engine, &model.pool, options)
            }
        }
    }

    /// Truncates a reader to the tokens that it shares with the answer's sequence. Returns the tokens it must read:
    /// the rest of the sequence, and the latest token of the answer.
    fn unread(&self, reader: &mut Sequence) -> Vec<u32> {
        let held = self.step.sequence.tokens();
        reader.turn_for(held.len() + 1);
        let common = common_prefix(reader.tokens(), held);
        // If recurrent layers drop more tokens, these are read again with the others.
        if reader.truncate(common).is_err() {
            drop(reader.forget_all());
        }
        let mut tokens = held[reader.tokens().len()..].to_vec();
        tokens.push(self.step.token);
        tokens
    }

    /// Stops drafts by the small model for this answer.
    fn give_up_model(&mut self) {
        if let Some(drafter) = &mut self.step.drafter {
            drafter.drop_source(Source::Model);
        }
    }
}
