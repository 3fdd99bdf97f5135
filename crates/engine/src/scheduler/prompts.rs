//! Prompts, read in separate passes that can wait between two pieces.

use std::ops::{ControlFlow, Range};

use riffle_policy::Phase;

use crate::Failure;
use crate::pass::{FinishedRows, Work};
use crate::scheduler::{
    End, Event, Lookup, OpenAnswer, PromptPart, PromptPass, Request, Running, Scheduler, Stage, Tell, Waiting,
};
use crate::sequence::common_prefix;
use crate::sharing::{can_share, prefix_cuts, share_prefix, state_step};
use crate::{EngineError, PrefillProgress, Sequence, TokenProbabilities};

/// Tokens of a prompt read at a time if their probabilities are requested: the logits of all are computed in one
/// piece, and answers wait for it.
const PROBABILITY_ROWS: usize = 128;

/// Maximum number of rows of logits held at a time.
const LOGIT_ROWS: usize = 8;

impl Scheduler {
    /// Does the next piece of the prompt pass, or of a new one.
    pub(super) fn read(&mut self, tell: &mut Tell<'_>) -> Result<(), EngineError> {
        if self.fetch(tell)? {
            return Ok(());
        }
        let mut under_way = match self.prompt_pass.take() {
            Some(under_way) => under_way,
            None if self.look_up_on_disk(tell)? => return Ok(()),
            None => match self.begin_reading(tell)? {
                Some(begun) => begun,
                None => return Ok(()),
            },
        };
        match self.has_next_layer(&under_way) {
            Some(true) => {}
            Some(false) => {
                self.prompt_pass = Some(under_way);
                self.is_compressions_turn = true;
                return Ok(());
            }
            None => {
                self.give_up_pass(under_way);
                return Ok(());
            }
        }
        let mut work = work_of(&mut self.running, &under_way.parts);
        match self.prompts.advance(&mut under_way.pass, &mut work) {
            Ok(ControlFlow::Break(())) => {
                let outcomes = self.prompts.complete(under_way.pass, &mut work);
                drop(work);
                self.end_reading(under_way.parts, outcomes, tell)?;
            }
            Ok(ControlFlow::Continue(())) => {
                drop(work);
                self.tell_progress(&under_way, tell);
                self.prompt_pass = Some(under_way);
            }
            Err(error) => {
                self.prompts.abandon(under_way.pass, &mut work);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Begins a pass with the next logical batch of the first admitted prompt, and with batches of others that fit. A
    /// prompt is split as it would be alone.
    fn begin_reading(&mut self, tell: &mut Tell<'_>) -> Result<Option<PromptPass>, EngineError> {
        let most = self.engine.options().machine.batch_tokens;
        let (mut parts, mut rows, mut refused) = (Vec::new(), 0, Vec::new());
        for (place, running) in self.running.iter_mut().enumerate() {
            let Stage::Reading { reused_tokens, .. } = running.stage else {
                continue;
            };
            if !matches!(running.lookup, Lookup::Done | Lookup::Arriving(_)) {
                continue;
            }
            let (sequence, prompt) = (&mut running.sequence, &running.request.tokens);
            let known = sequence.tokens().len();
            let cut = next_cut(sequence, prompt, &self.waiting);
            let end = cut.unwrap_or(prompt.len());
            let most_rows = match running.request.prompt_probabilities {
                Some(_) => PROBABILITY_ROWS,
                None => usize::MAX,
            };
            let count = sequence.batch_tokens().min(end - known).min(most_rows);
            if rows > 0 && rows + count > most {
                continue;
            }
            if known == reused_tokens {
                let more = running.stage.text_length(&running.request) - prompt.len();
                match sequence.begin_prompt(&prompt[known..], more) {
                    // The rotation is already set for the complete prompt.
                    Ok(again) => debug_assert!(again.is_empty()),
                    Err(error) => {
                        refused.push((place, End::Failed(error)));
                        continue;
                    }
                }
            }
            parts.push(PromptPart {
                id: running.id,
                tokens: prompt[known..known + count].to_vec(),
                keeps_state: cut == Some(known + count),
            });
            rows += count;
        }
        self.end(refused, tell);
        if parts.is_empty() {
            return Ok(None);
        }
        let pass = self.prompts.begin(&mut work_of(&mut self.running, &parts))?;
        Ok(Some(PromptPass { pass, parts }))
    }

    /// Handles the end of a prompt pass; completely read prompts continue with their answers.
    fn end_reading(
        &mut self,
        parts: Vec<PromptPart>,
        outcomes: Vec<Option<Failure>>,
        tell: &mut Tell<'_>,
    ) -> Result<(), EngineError> {
        self.is_blocked = false;
        self.is_compressions_turn = true;
        let (mut places, mut rows) = (Vec::new(), Vec::new());
        let (mut ended, mut row) = (Vec::new(), 0);
        for (part, outcome) in parts.into_iter().zip(outcomes) {
            row += part.tokens.len();
            let Some(place) = self.running.iter().position(|running| running.id == part.id) else {
                continue;
            };
            if outcome.is_none() && !self.running[place].is_cancelled {
                self.tell_probabilities(place, row - part.tokens.len()..row, tell)?;
            }
            self.end_arriving(place, outcome.is_none());
            self.publish_read(place, tell);
            let running = &mut self.running[place];
            // Others may continue from here; a policy that does not allow this shares nothing.
            drop(share_prefix(&mut running.sequence));
            let is_read = running.sequence.tokens().len() == running.request.tokens.len();
            match outcome {
                _ if running.is_cancelled => ended.push((place, End::Cancelled)),
                Some(failure) => ended.push((place, End::Failed(failure.error))),
                None if is_read && running.resume() => {}
                None if is_read => {
                    places.push(place);
                    rows.push(row - 1);
                }
                None if part.keeps_state => self.keep_state(place)?,
                None => {}
            }
        }
        if !rows.is_empty() {
            ended.extend(self.take_logits(&rows, &places)?);
        }
        for place in places {
            if ended.iter().any(|(other, _)| *other == place) {
                continue;
            }
            let end = self.begin_answer(place, tell);
            let end = end.unwrap_or_else(|error| Some(End::Failed(error)));
            ended.extend(end.map(|end| (place, end)));
        }
        self.end(ended, tell);
        Ok(())
    }

    /// Reports the probabilities of the tokens after `rows` of the pass, if the request wants them.
    fn tell_probabilities(&mut self, place: usize, rows: Range<usize>, tell: &mut Tell<'_>) -> Result<(), EngineError> {
        let running = &self.running[place];
        let Some(most) = running.request.prompt_probabilities else {
            return Ok(());
        };
        let vocab_size = self.engine.model().config().vocab_size;
        let first = running.sequence.tokens().len() - rows.len();
        let prompt = &running.request.tokens;
        // The last token of the prompt has no next token.
        let next_tokens = &prompt[first + 1..prompt.len().min(first + 1 + rows.len())];
        let mut probabilities = Vec::with_capacity(rows.len());
        let mut logits = Vec::new();
        for (start, tokens) in rows.step_by(LOGIT_ROWS).zip(next_tokens.chunks(LOGIT_ROWS)) {
            self.prompts.logits(start..start + tokens.len(), &mut logits)?;
            let rows = logits.chunks_exact(vocab_size).zip(tokens);
            probabilities.extend(rows.map(|(logits, token)| TokenProbabilities::from_logits(logits, *token, most)));
        }
        if !probabilities.is_empty() {
            tell(Event::PromptProbabilities(running.id, probabilities));
        }
        Ok(())
    }

    /// Removes a request from its prompt pass.
    pub(super) fn leave_pass(&mut self, place: usize) {
        let Some(mut under_way) = self.prompt_pass.take() else {
            return;
        };
        let id = self.running[place].id;
        if under_way.parts.len() == 1 {
            let mut work = work_of(&mut self.running, &under_way.parts);
            self.prompts.abandon(under_way.pass, &mut work);
            drop(work);
            self.retire(place);
            return;
        }
        // Rows of a cancelled request continue without attention.
        self.running[place].is_cancelled = true;
        if let Some(part) = under_way.parts.iter().position(|part| part.id == id) {
            under_way
                .pass
                .give_up(part, EngineError::Interrupted { tokens: 0, total: 0 });
        }
        self.prompt_pass = Some(under_way);
    }

    fn tell_progress(&self, under_way: &PromptPass, tell: &mut Tell<'_>) {
        let at = under_way.pass.progress();
        for PromptPart { id, tokens, .. } in &under_way.parts {
            let mut running = self.running.iter();
            let Some(running) = running.find(|running| running.id == *id && !running.is_cancelled) else {
                continue;
            };
            let first = running.sequence.tokens().len();
            let progress = PrefillProgress {
                tokens_done: first as f64 + at.share * tokens.len() as f64,
                tokens: running.request.tokens.len(),
                batch: Some(at.of_batch(first, tokens.len())),
            };
            let reused_tokens = match &running.stage {
                // An answer is unfinished.
                Stage::Reading { resumed: Some(_), .. } => continue,
                Stage::Reading { reused_tokens, .. } => *reused_tokens,
                Stage::Answering { .. } => 0,
            };
            tell(Event::Reading(*id, progress, reused_tokens));
        }
    }
}

impl Stage {
    /// Reads the text from its first token on, and then continues an answer.
    pub(super) fn from_the_start(resumed: Option<Box<OpenAnswer>>) -> Self {
        Self::Reading {
            reused_tokens: 0,
            resumed,
        }
    }

    /// The length that determines the rotation while a prompt is read. The latest token of an answer that continues
    /// counts too.
    pub(super) fn text_length(&self, request: &Request) -> usize {
        let resumes = matches!(self, Self::Reading { resumed: Some(_), .. });
        request.tokens.len() + usize::from(resumes)
    }
}

/// The next split of a prompt in a model with recurrent layers. The state at a split is stored, so that other prompts
/// can start from it. Splits are at the ends of beginnings shared with waiting prompts, shortly before the end, and
/// at intervals between.
fn next_cut(sequence: &Sequence, prompt: &[u32], waiting: &[Waiting]) -> Option<usize> {
    if !sequence.recurrence().is_recurrent() || !can_share(sequence) {
        return None;
    }
    let (known, step) = (sequence.tokens().len(), state_step(sequence));
    let shared = waiting
        .iter()
        .filter(|waiting| waiting.parked.is_none())
        .map(|waiting| {
            let other = &waiting.request.tokens;
            common_prefix(prompt, other).min(other.len() - 1) / step * step
        });
    let cuts = shared.chain(prefix_cuts(sequence, prompt.len()));
    cuts.filter(|cut| *cut > known && *cut < prompt.len()).min()
}

/// The work of requests in a prompt pass, in the order of its parts.
pub(super) fn work_of<'a>(running: &'a mut [Running], parts: &'a [PromptPart]) -> Vec<Work<'a>> {
    let work = running.iter_mut().filter_map(|running| {
        let part = parts.iter().find(|part| part.id == running.id)?;
        Some(Work {
            goal: running.request.tokens.len(),
            finished_rows: match running.request.prompt_probabilities {
                Some(_) => FinishedRows::All,
                None => FinishedRows::Last,
            },
            sequence: &mut running.sequence,
            tokens: &part.tokens,
            phase: Phase::Prefill,
        })
    });
    work.collect()
}
