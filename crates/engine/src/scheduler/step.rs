//! One bounded piece of work: a token of every answer, or a piece of a prompt pass.

use std::ops::ControlFlow;
use std::time::Instant;

use riffle_policy::Phase;

use crate::answer::{Answer, Drawn};
use crate::pass::{Failure, Work};
use crate::scheduler::{Event, PromptPass, RequestId, RequestReport, Running, Scheduler, Stage};
use crate::{EngineError, PrefillProgress};

/// Takes what happens to requests.
type Tell<'a> = dyn FnMut(Event<'_>) + 'a;

impl Scheduler {
    /// Does one piece of work and tells what came of it. False when there is nothing to do: every request has ended or is parked.
    ///
    /// # Errors
    /// Failures that are of no single request, such as a lost device. Requests stay as they were before the piece.
    pub fn step(&mut self, tell: &mut Tell<'_>) -> Result<bool, EngineError> {
        self.admit()?;
        let answers = |running: &Running| matches!(running.stage, Stage::Answering { .. });
        let answers = self.running.iter().any(answers);
        let reads = |running: &Running| matches!(running.stage, Stage::Reading { .. });
        let reads = self.prompt_pass.is_some() || self.running.iter().any(reads);
        match (answers, reads) {
            (false, false) => return Ok(false),
            (true, true) if self.prompt_credit_s > 0.0 => self.read(tell)?,
            (false, true) => {
                self.read(tell)?;
                self.prompt_credit_s = 0.0;
            }
            (true, true) => self.answer(tell)?,
            (true, false) => {
                self.answer(tell)?;
                self.prompt_credit_s = 0.0;
            }
        }
        Ok(true)
    }

    /// Goes on until every request has ended or is parked.
    ///
    /// # Errors
    /// As [`Scheduler::step`].
    pub fn run(&mut self, tell: &mut Tell<'_>) -> Result<(), EngineError> {
        while self.step(tell)? {}
        Ok(())
    }

    /// Reads the latest token of every answer in one pass, and draws the next.
    fn answer(&mut self, tell: &mut Tell<'_>) -> Result<(), EngineError> {
        let began = Instant::now();
        let (mut places, mut tokens) = (Vec::new(), Vec::new());
        for (place, running) in self.running.iter().enumerate() {
            if let Stage::Answering { token, .. } = running.stage {
                places.push(place);
                tokens.push([token]);
            }
        }
        let answering = self
            .running
            .iter_mut()
            .filter(|running| matches!(running.stage, Stage::Answering { .. }));
        let work = answering.zip(&tokens).map(|(running, token)| Work {
            goal: running.sequence.tokens().len() + 1,
            sequence: &mut running.sequence,
            tokens: token,
            phase: Phase::Decode,
        });
        let mut work: Vec<Work<'_>> = work.collect();
        let outcomes = self.answers.pass(&mut work, &mut |_| ControlFlow::Continue(()))?;
        drop(work);
        let rows: Vec<usize> = (0..places.len()).collect();
        let mut ended = self.take_logits(false, &rows, &places, outcomes)?;
        for place in places {
            if ended.iter().any(|(failed, _)| *failed == place) {
                continue;
            }
            self.running[place].sequence.answer.pending = None;
            if let Some(end) = self.draw(place, tell) {
                ended.push((place, end));
            }
        }
        self.end(ended, tell);
        let share = self.options.prompt_share;
        self.prompt_credit_s += began.elapsed().as_secs_f64() * share / (1.0 - share);
        Ok(())
    }

    /// Does the next piece of a prompt pass, of a new one if there is none.
    fn read(&mut self, tell: &mut Tell<'_>) -> Result<(), EngineError> {
        let began = Instant::now();
        let mut under_way = match self.prompt_pass.take() {
            Some(under_way) => under_way,
            None => match self.begin_reading(tell)? {
                Some(begun) => begun,
                None => return Ok(()),
            },
        };
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
        self.prompt_credit_s -= began.elapsed().as_secs_f64();
        Ok(())
    }

    /// Begins a pass with the next logical batch of the prompt that was admitted first, and with those of others that fit in beside
    /// it. A prompt is cut where it would be cut alone.
    fn begin_reading(&mut self, tell: &mut Tell<'_>) -> Result<Option<PromptPass>, EngineError> {
        let most = self.engine.options().batch_tokens;
        let (mut parts, mut rows, mut refused) = (Vec::new(), 0, Vec::new());
        for (place, running) in self.running.iter_mut().enumerate() {
            let Stage::Reading { reused_tokens } = running.stage else {
                continue;
            };
            let (sequence, prompt) = (&mut running.sequence, &running.request.tokens);
            let known = sequence.tokens().len();
            let count = sequence.batch_tokens().min(prompt.len() - known);
            if rows > 0 && rows + count > most {
                continue;
            }
            if known == reused_tokens
                && let Err(error) = sequence.begin_prompt(&prompt[known..])
            {
                refused.push((place, End::Failed(error)));
                continue;
            }
            parts.push((running.id, prompt[known..known + count].to_vec()));
            rows += count;
        }
        self.end(refused, tell);
        if parts.is_empty() {
            return Ok(None);
        }
        let pass = self.prompts.begin(&mut work_of(&mut self.running, &parts))?;
        Ok(Some(PromptPass { pass, parts }))
    }

    /// Takes in what came of a prompt pass; prompts that were read to the end go on with their answers.
    fn end_reading(
        &mut self,
        parts: Vec<(RequestId, Vec<u32>)>,
        outcomes: Vec<Option<Failure>>,
        tell: &mut Tell<'_>,
    ) -> Result<(), EngineError> {
        self.is_blocked = false;
        let (mut places, mut rows, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        let (mut ended, mut row) = (Vec::new(), 0);
        for ((id, tokens), outcome) in parts.into_iter().zip(outcomes) {
            row += tokens.len();
            let Some(place) = self.running.iter().position(|running| running.id == id) else {
                continue;
            };
            let running = &mut self.running[place];
            // Others may go on from here; a policy that does not allow it shares nothing.
            drop(running.sequence.share_prefix());
            let is_read = running.sequence.tokens().len() == running.request.tokens.len();
            match outcome {
                _ if running.is_cancelled => ended.push((place, End::Cancelled)),
                Some(failure) => ended.push((place, End::Failed(failure.error))),
                None if is_read => {
                    places.push(place);
                    rows.push(row - 1);
                    kept.push(None);
                }
                None => {}
            }
        }
        if !rows.is_empty() {
            ended.extend(self.take_logits(true, &rows, &places, kept)?);
        }
        for place in places {
            if ended.iter().any(|(other, _)| *other == place) {
                continue;
            }
            if let Some(end) = self.begin_answer(place, tell) {
                ended.push((place, end));
            }
        }
        self.end(ended, tell);
        Ok(())
    }

    /// Hands out the logits of rows of the latest pass of prompts or of answers; returns the requests that failed.
    fn take_logits(
        &mut self,
        of_prompts: bool,
        rows: &[usize],
        places: &[usize],
        outcomes: Vec<Option<Failure>>,
    ) -> Result<Vec<(usize, End)>, EngineError> {
        let runner = if of_prompts {
            &mut self.prompts
        } else {
            &mut self.answers
        };
        runner.logits_of(rows, &mut self.logits)?;
        let vocab_size = self.logits.len() / rows.len().max(1);
        let mut failed = Vec::new();
        for ((place, outcome), logits) in places.iter().zip(outcomes).zip(self.logits.chunks(vocab_size.max(1))) {
            let sequence = &mut self.running[*place].sequence;
            sequence.logits.clear();
            sequence.logits.extend_from_slice(logits);
            let outcome = outcome.map(|failure| failure.error);
            if let Some(error) = outcome.or_else(|| sequence.check_logits().err()) {
                failed.push((*place, End::Failed(error)));
            }
        }
        Ok(failed)
    }

    /// Draws the first token of an answer.
    fn begin_answer(&mut self, place: usize, tell: &mut Tell<'_>) -> Option<End> {
        let running = &mut self.running[place];
        let Stage::Reading { reused_tokens } = running.stage else {
            return None;
        };
        let mut answer = match Answer::new(&running.sequence, running.request.generate.clone()) {
            Ok(answer) => Box::new(answer),
            Err(error) => return Some(End::Failed(error)),
        };
        if answer.is_full() {
            return Some(End::Finished(running.report(
                reused_tokens,
                *answer,
                crate::StopReason::MaxTokens,
            )));
        }
        let (id, drawn) = (running.id, answer.draw(&mut running.sequence));
        self.take_drawn(place, id, (reused_tokens, answer), drawn, tell)
    }

    /// Draws the next token of an answer.
    fn draw(&mut self, place: usize, tell: &mut Tell<'_>) -> Option<End> {
        let running = &mut self.running[place];
        let reading = Stage::Reading { reused_tokens: 0 };
        let Stage::Answering {
            reused_tokens,
            mut answer,
            ..
        } = std::mem::replace(&mut running.stage, reading)
        else {
            unreachable!("only answers are drawn from")
        };
        let (id, drawn) = (running.id, answer.draw(&mut running.sequence));
        self.take_drawn(place, id, (reused_tokens, answer), drawn, tell)
    }

    /// Tells a drawn token; the answer goes on with it, or ends.
    fn take_drawn(
        &mut self,
        place: usize,
        id: RequestId,
        (reused_tokens, mut answer): (usize, Box<Answer>),
        drawn: Result<Drawn, EngineError>,
        tell: &mut Tell<'_>,
    ) -> Option<End> {
        let running = &mut self.running[place];
        let Drawn { token, mut text, stop } = match drawn {
            Ok(drawn) => drawn,
            Err(error) => return Some(End::Failed(error)),
        };
        if stop.is_some() {
            match answer.finish() {
                Ok(tail) => text.push_str(&tail),
                Err(error) => return Some(End::Failed(error)),
            }
        }
        tell(Event::Token(id, token, &text));
        match stop {
            Some(stop) => Some(End::Finished(running.report(reused_tokens, *answer, stop))),
            None => {
                running.stage = Stage::Answering {
                    reused_tokens,
                    answer,
                    token,
                };
                None
            }
        }
    }

    /// Removes requests that have ended; their sequences serve others.
    fn end(&mut self, mut ended: Vec<(usize, End)>, tell: &mut Tell<'_>) {
        ended.sort_by_key(|(place, _)| std::cmp::Reverse(*place));
        self.is_blocked &= ended.is_empty();
        let mut events = Vec::new();
        for (place, end) in ended {
            let Running { id, sequence, .. } = self.running.remove(place);
            self.idle.keep(sequence);
            match end {
                End::Finished(report) => events.push(Event::Finished(id, report)),
                End::Failed(error) => events.push(Event::Failed(id, error)),
                End::Cancelled => {}
            }
        }
        events.into_iter().rev().for_each(tell);
    }

    /// Takes a request out of the prompt pass it is part of.
    pub(super) fn leave_pass(&mut self, place: usize) {
        let Some(mut under_way) = self.prompt_pass.take() else {
            return;
        };
        self.is_blocked = false;
        let id = self.running[place].id;
        if under_way.parts.len() == 1 {
            let mut work = work_of(&mut self.running, &under_way.parts);
            self.prompts.abandon(under_way.pass, &mut work);
            drop(work);
            let Running { sequence, .. } = self.running.remove(place);
            self.idle.keep(sequence);
            return;
        }
        // Its rows go on without attention.
        self.running[place].is_cancelled = true;
        if let Some(part) = under_way.parts.iter().position(|(part, _)| *part == id) {
            under_way
                .pass
                .give_up(part, EngineError::Interrupted { tokens: 0, total: 0 });
        }
        self.prompt_pass = Some(under_way);
    }

    fn tell_progress(&self, under_way: &PromptPass, tell: &mut Tell<'_>) {
        let share = under_way.pass.share_done();
        for (id, tokens) in &under_way.parts {
            let Some(running) = self
                .running
                .iter()
                .find(|running| running.id == *id && !running.is_cancelled)
            else {
                continue;
            };
            let progress = PrefillProgress {
                tokens_done: running.sequence.tokens().len() as f64 + share * tokens.len() as f64,
                tokens: running.request.tokens.len(),
            };
            tell(Event::Reading(*id, progress));
        }
    }
}

/// How a request ends.
enum End {
    Finished(RequestReport),
    Failed(EngineError),
    Cancelled,
}

impl Running {
    fn report(&self, reused_tokens: usize, answer: Answer, stop: crate::StopReason) -> RequestReport {
        RequestReport {
            generation: answer.end(stop),
            prompt_tokens: self.request.tokens.len(),
            reused_tokens,
        }
    }
}

/// The work of requests in a prompt pass, in the order of its parts.
fn work_of<'a>(running: &'a mut [Running], parts: &'a [(RequestId, Vec<u32>)]) -> Vec<Work<'a>> {
    let work = running.iter_mut().filter_map(|running| {
        let (_, tokens) = parts.iter().find(|(id, _)| *id == running.id)?;
        Some(Work {
            goal: running.request.tokens.len(),
            sequence: &mut running.sequence,
            tokens,
            phase: Phase::Prefill,
        })
    });
    work.collect()
}
