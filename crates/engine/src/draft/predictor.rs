//! Drafts by the model's own predicting layer: from a hidden state and the next token, it predicts the token after
//! that.
//!
//! It starts from the model's hidden state before the answer's latest token. For each further token it uses its own
//! result. Its rows of drafted tokens are dropped after the draft, because the verifying pass computes the true
//! states.

use riffle_model::{Batch, PredictorForward, SegmentTokens};

use super::GuessedDraft;
use super::step::DraftPart;
use crate::pass::Runner;
use crate::predictor::{PredictorRows, attend};
use crate::{EngineError, Sequence};

/// An unfinished draft.
struct Drafting {
    /// Index of the answer's part.
    place: usize,
    draft: GuessedDraft,
    /// Tokens of the sequence. During the draft, the answer's latest token and the drafted tokens follow them.
    held: usize,
    /// State after the second-to-last token.
    state: Vec<f32>,
}

/// Drafts `wanted[part]` tokens for each part, one token of all parts at a time. A part without its latest hidden
/// state gets no draft.
///
/// # Errors
/// Failures that affect all sequences; every sequence keeps its tokens.
pub(super) fn draft(
    runner: &mut Runner,
    parts: &mut [DraftPart<'_, '_>],
    wanted: &[usize],
    logits: &mut Vec<f32>,
) -> Result<(), EngineError> {
    let Some(mut forward) = runner.take_predictor() else {
        return Ok(());
    };
    let vocab_size = runner.engine().model().config().vocab_size;
    let mut drafts = Vec::new();
    let outcome = begin_all(&mut forward, parts, wanted, &mut drafts)
        .and_then(|()| draft_all(&mut forward, parts, &mut drafts, (vocab_size, logits)));
    for draft in drafts {
        let part = &mut parts[draft.place];
        draft.end(part);
    }
    runner.predictor = Some(forward);
    outcome
}

fn begin_all(
    forward: &mut PredictorForward,
    parts: &mut [DraftPart<'_, '_>],
    wanted: &[usize],
    drafts: &mut Vec<Drafting>,
) -> Result<(), EngineError> {
    for (place, part) in parts.iter_mut().enumerate().filter(|(place, _)| wanted[*place] > 0) {
        let draft = part.guess(wanted[place]);
        let (tokens, rows) = part.step.sequence.predicted();
        let Some(rows) = rows else { continue };
        let held = tokens.len();
        rows.read(forward, tokens)?;
        if let Some(state) = rows.take_last(held) {
            tokens.push(part.step.token);
            drafts.push(Drafting {
                place,
                draft,
                held,
                state,
            });
        }
    }
    Ok(())
}

/// Draws a token for every unfinished draft, until all are complete. `logits` is scratch.
fn draft_all(
    forward: &mut PredictorForward,
    parts: &mut [DraftPart<'_, '_>],
    drafts: &mut [Drafting],
    (vocab_size, logits): (usize, &mut Vec<f32>),
) -> Result<(), EngineError> {
    loop {
        let going = drafts.iter_mut().filter(|drafting| drafting.draft.goes_on());
        let going: Vec<&mut Drafting> = going.take(forward.most_rows()).collect();
        if going.is_empty() {
            return Ok(());
        }
        let places: Vec<usize> = going.iter().map(|draft| draft.place).collect();
        let mut sequences: Vec<&mut Sequence> = Vec::with_capacity(places.len());
        let mut of_places = places.iter().peekable();
        for (place, part) in parts.iter_mut().enumerate() {
            if of_places.next_if_eq(&&place).is_some() {
                sequences.push(&mut *part.step.sequence);
            }
        }
        let states: Vec<f32> = going.iter().flat_map(|draft| draft.state.iter().copied()).collect();
        let states = predict(forward, &mut sequences, &states, logits)?;
        let width = states.len() / going.len();
        let rows = states.chunks_exact(width).zip(logits.chunks_exact(vocab_size));
        for ((draft, sequence), (state, row)) in going.into_iter().zip(sequences).zip(rows) {
            draft.take(sequence, state, row);
        }
    }
}

/// Reads the last token of each sequence as a separate row, joined with the hidden state before it,
/// `[sequences, hidden_size]`. Returns the next states, and writes the logits after them to `logits`,
/// `[sequences, vocab_size]`.
pub(super) fn predict<'f>(
    forward: &'f mut PredictorForward,
    sequences: &mut [&mut Sequence],
    states: &[f32],
    logits: &mut Vec<f32>,
) -> Result<&'f [f32], EngineError> {
    let last = sequences.iter().map(|sequence| {
        let tokens = sequence.tokens();
        SegmentTokens::generated(&tokens[tokens.len() - 1..], tokens.len() - 2)
    });
    let batch = Batch::new(last)?;
    let mut projected = forward.project(&batch, states)?;
    let width = projected.keys.len() / sequences.len();
    let both = projected
        .keys
        .chunks_exact(width)
        .zip(projected.values.chunks_exact(width));
    for (sequence, (keys, values)) in sequences.iter_mut().zip(both) {
        let (tokens, rows) = sequence.predicted();
        let position = tokens.len() - 2;
        if let Some(rows) = rows {
            rows.append(position, 1, keys, values)?;
        }
    }
    let rows: Vec<&PredictorRows> = sequences
        .iter()
        .filter_map(|sequence| sequence.answer().drafts.predictor.as_ref())
        .collect();
    attend(&rows, &mut projected)?;
    forward.finish()?;
    let vocab_size = sequences
        .first()
        .map_or(0, |sequence| sequence.engine().model().config().vocab_size);
    logits.resize(sequences.len() * vocab_size, 0.0);
    forward.logits(logits)?;
    Ok(forward.hidden())
}

impl Drafting {
    /// Draws the next token of the draft from these logits, `[vocab]`.
    fn take(&mut self, sequence: &mut Sequence, state: &[f32], row: &[f32]) {
        let is_sound = row.iter().all(|logit| logit.is_finite());
        let token = self.draft.draw(sequence.tokens(), is_sound.then_some(row));
        sequence.predicted().0.extend(token);
        self.state.clear();
        self.state.extend_from_slice(state);
    }

    /// Removes the draft from the sequence, except the row of the answer's latest token, which has a true state and
    /// token.
    fn end(self, part: &mut DraftPart<'_, '_>) {
        let sequence = &mut *part.step.sequence;
        let (tokens, rows) = sequence.predicted();
        tokens.truncate(self.held);
        if let Some(rows) = rows {
            rows.cut(self.held + 1);
        }
        part.draft = self.draft.tokens;
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::path::Path;
    use std::sync::Arc;

    use riffle_policy::Phase;
    use safetensors::SafeTensors;

    use super::*;
    use crate::pass::{FinishedRows, Work};
    use crate::{Engine, EngineOptions};

    /// Largest difference of logits, whose deviation is 1.3; rows are stored in f16.
    const TOLERANCE: f32 = 2e-3;

    /// The results of `transformers` (`make_predictor_vectors.py` of the model's crate).
    struct Expected {
        tokens: Vec<u32>,
        drafted: Vec<u32>,
        logits: Vec<f32>,
    }

    fn vectors() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/vectors/predictor")
    }

    fn expected() -> Expected {
        let file = std::fs::read(vectors().join("expected.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&file).unwrap();
        let words = |name: &str| file.tensor(name).unwrap().data().as_chunks::<4>().0.to_vec();
        let tokens = |name| words(name).into_iter().map(u32::from_le_bytes).collect();
        Expected {
            tokens: tokens("tokens"),
            drafted: tokens("drafted"),
            logits: words("draft_logits").into_iter().map(f32::from_le_bytes).collect(),
        }
    }

    fn engine(context_tokens: usize) -> Arc<Engine> {
        let options = EngineOptions::default()
            .with_context_tokens(Some(context_tokens))
            .with_draft_predictor(true);
        Engine::load(vectors(), options).unwrap()
    }

    fn sequence(engine: &Arc<Engine>) -> Sequence {
        let options = engine.options().sequence.clone();
        Sequence::new(engine, &engine.page_pool().unwrap(), options).unwrap()
    }

    fn read(runner: &mut Runner, sequence: &mut Sequence, tokens: &[u32], phase: Phase) {
        let goal = sequence.tokens().len() + tokens.len();
        let mut work = [Work {
            sequence,
            tokens,
            phase,
            goal,
            finished_rows: FinishedRows::All,
        }];
        let outcomes = runner.pass(&mut work, &mut |_| ControlFlow::Continue(())).unwrap();
        assert!(outcomes.iter().all(Option::is_none), "{outcomes:?}");
    }

    /// Reads the drafted tokens of the vectors one by one; returns the logits after each, `[drafted, vocab]`.
    fn predicted(runner: &mut Runner, sequence: &mut Sequence, expected: &Expected) -> Vec<f32> {
        let mut forward = runner.take_predictor().unwrap();
        let held = sequence.tokens().len();
        let (tokens, rows) = sequence.predicted();
        let rows = rows.unwrap();
        rows.read(&mut forward, tokens).unwrap();
        let mut state = rows.take_last(held).unwrap();
        let (mut all, mut logits) = (Vec::new(), Vec::new());
        for token in &expected.drafted[..expected.drafted.len() - 1] {
            sequence.predicted().0.push(*token);
            state = predict(&mut forward, &mut [sequence], &state, &mut logits)
                .unwrap()
                .to_vec();
            all.extend_from_slice(&logits);
        }
        let (tokens, rows) = sequence.predicted();
        tokens.truncate(held);
        rows.unwrap().cut(held);
        runner.predictor = Some(forward);
        all
    }

    fn largest_difference(found: &[f32], expected: &[f32]) -> f32 {
        assert_eq!(found.len(), expected.len());
        let differences = found
            .iter()
            .zip(expected)
            .map(|(found, expected)| (found - expected).abs());
        differences.fold(0.0, f32::max)
    }

    #[test]
    fn logits_of_a_draft_equal_the_reference_however_the_text_was_read() {
        let (engine, expected) = (engine(256), expected());
        let mut runner = Runner::new(&engine);
        let prompt = Phase::Prefill;
        let ways: [&[(usize, Phase)]; 4] = [
            &[(64, prompt)],
            &[(40, prompt), (1, prompt), (23, prompt)],
            &[
                (20, prompt),
                (1, Phase::Decode),
                (1, Phase::Decode),
                (42, Phase::Decode),
            ],
            &[(1, prompt), (63, Phase::Decode)],
        ];
        for way in ways {
            let mut sequence = sequence(&engine);
            let mut rest = &expected.tokens[..];
            for (count, phase) in way {
                let (now, then) = rest.split_at(*count);
                read(&mut runner, &mut sequence, now, *phase);
                rest = then;
            }
            let found = predicted(&mut runner, &mut sequence, &expected);
            let difference = largest_difference(&found, &expected.logits);
            println!("{way:?}: {difference:e}");
            assert!(difference <= TOLERANCE, "{way:?}: {difference:e}");
        }
    }

    #[test]
    fn tokens_that_were_taken_back_leave_no_trace_in_a_sequence_or_its_fork() {
        let (engine, expected) = (engine(512), expected());
        let mut runner = Runner::new(&engine);
        let mut whole = sequence(&engine);
        let (prompt, answer) = expected.tokens.split_at(60);
        read(&mut runner, &mut whole, prompt, Phase::Prefill);
        let checkpoint = whole.checkpoint().unwrap();
        read(&mut runner, &mut whole, &[answer[0], 3, 4, 5], Phase::Decode);
        assert!(whole.roll_back(&checkpoint, 1).unwrap().is_empty());
        let mut fork = whole.fork().unwrap();
        // Tokens of one sequence must not affect the other.
        read(&mut runner, &mut whole, &[9; 40], Phase::Decode);
        read(&mut runner, &mut whole, &[9; 40], Phase::Decode);
        read(&mut runner, &mut fork, &answer[1..], Phase::Decode);
        let found = predicted(&mut runner, &mut fork, &expected);
        let difference = largest_difference(&found, &expected.logits);
        assert!(difference <= TOLERANCE, "{difference:e}");
    }

    #[test]
    fn a_sequence_whose_beginning_was_not_shown_drafts_from_where_it_is_known_on() {
        let (engine, expected) = (engine(256), expected());
        let mut runner = Runner::new(&engine);
        let mut late = sequence(&engine);
        let (before, behind) = expected.tokens.split_at(40);
        read(&mut runner, &mut late, before, Phase::Prefill);
        let rows = late.predicted().1.unwrap();
        assert_eq!(rows.rows(), 39);
        rows.forget();
        assert_eq!(rows.take_last(40), None);
        read(&mut runner, &mut late, behind, Phase::Prefill);
        assert_eq!(late.answer().drafts.predictor.as_ref().unwrap().rows(), 23);
        let found = predicted(&mut runner, &mut late, &expected);
        assert!(found.iter().all(|logit| logit.is_finite()));
        assert!(
            largest_difference(&found, &expected.logits) > TOLERANCE,
            "it has not seen all"
        );
    }

    #[test]
    fn rows_keep_to_their_room_and_begin_anew_where_it_is_full() {
        let (engine, expected) = (engine(256), expected());
        let mut runner = Runner::new(&engine);
        let mut sequences: Vec<Sequence> = (0..5).map(|_| sequence(&engine)).collect();
        // There is room for four blocks: two for a context of 256 tokens, and two more for the one sequence.
        for sequence in &mut sequences {
            read(&mut runner, sequence, &expected.tokens, Phase::Prefill);
        }
        let rows = |sequence: &Sequence| sequence.answer().drafts.predictor.as_ref().unwrap().rows();
        assert_eq!(sequences.iter().map(rows).collect::<Vec<_>>(), [63, 63, 63, 63, 0]);
        drop(sequences.remove(0));
        let last = &mut sequences[3];
        read(&mut runner, last, &expected.tokens, Phase::Prefill);
        assert_eq!(rows(last), 63);
    }
}
