//! Answers: one token of each per pass, until they end.

use std::ops::ControlFlow;
use std::time::Instant;

use crate::Failure;
use crate::answer::{Answer, Drawn};
use crate::draft::{AnswerStep, DraftedAnswer, go_on};
use crate::scheduler::{
    Event, OpenAnswer, RequestId, RequestReport, RequestTimes, Running, Scheduler, Stage, Tell, WrittenToken,
};
use crate::sequence::check_logits;
use crate::{EngineError, StopReason};

/// The latest token of an answer, and the reason the answer ends with it, if it does.
#[derive(Default)]
struct DrawnRow {
    token: u32,
    stop: Option<StopReason>,
}

/// The end of a request.
pub(super) enum End {
    Finished(Box<RequestReport>),
    Failed(EngineError),
    Cancelled,
}

impl Scheduler {
    /// Reads the latest token and the draft of every answer in one pass, and draws the next. On a device, answers
    /// take turns in groups small enough to keep the bits they have alone.
    pub(super) fn answer(&mut self, tell: &mut Tell<'_>) -> Result<(), EngineError> {
        let began = Instant::now();
        self.turn += 1;
        let (places, again) = self.answers_next();
        let failed = if again.is_empty() {
            Vec::new()
        } else {
            self.read_answers_again(&again)?
        };
        let mut ids = Vec::with_capacity(places.len());
        let mut steps = Vec::with_capacity(places.len());
        let answering = self.running.iter_mut().enumerate();
        for (_, running) in answering.filter(|(place, _)| places.contains(place)) {
            running.turn = self.turn;
            if let Stage::Answering(open) = &mut running.stage {
                ids.push(running.id);
                steps.push(AnswerStep {
                    sequence: &mut running.sequence,
                    answer: &mut open.answer.answer,
                    drafter: open.answer.drafter.as_mut(),
                    token: open.token,
                });
            }
        }
        let mut told: Vec<Result<DrawnRow, EngineError>> = ids.iter().map(|_| Ok(DrawnRow::default())).collect();
        let outcomes = go_on(
            &mut self.answers,
            &mut steps,
            &mut self.logits,
            &mut |step, answer, drawn| match tell_drawn(ids[step], answer, drawn, tell) {
                Ok(latest) => {
                    told[step] = Ok(latest);
                    ControlFlow::Continue(())
                }
                Err(error) => {
                    told[step] = Err(error);
                    ControlFlow::Break(())
                }
            },
        )?;
        let mut ended = failed;
        for ((place, told), outcome) in places.into_iter().zip(told).zip(outcomes) {
            let end = match (told, outcome) {
                (_, Some(Failure { error, .. })) | (Err(error), _) => Some(End::Failed(error)),
                (Ok(told), None) => self.take_drawn_row(place, told),
            };
            if let Some(end) = end {
                ended.push((place, end));
            }
        }
        self.end(ended, tell);
        let share = self.options.prompt_share;
        self.prompt_credit_s += began.elapsed().as_secs_f64() * share / (1.0 - share);
        Ok(())
    }

    /// The answers of the next pass, in the order of the running requests. Answers that must be read again come second.
    fn answers_next(&self) -> (Vec<usize>, Vec<usize>) {
        let answers = self.running.iter().enumerate();
        let answers = answers.filter(|(_, running)| matches!(running.stage, Stage::Answering { .. }));
        let mut places: Vec<usize> = answers.map(|(place, _)| place).collect();
        // A device multiplies more rows in another order, so an answer would have other bits than alone.
        let rows_alike = self.engine.compute().rows_alike();
        if places.len() > rows_alike {
            places.sort_by_key(|place| self.running[*place].turn);
            places.truncate(rows_alike);
            places.sort_unstable();
        }
        places.into_iter().partition(|place| match &self.running[*place].stage {
            Stage::Answering(open) => open.again.is_empty(),
            Stage::Reading { .. } => false,
        })
    }

    /// Distributes the logits of rows of the latest prompt pass; returns the requests that failed.
    pub(super) fn take_logits(&mut self, rows: &[usize], places: &[usize]) -> Result<Vec<(usize, End)>, EngineError> {
        self.prompts.logits_of(rows, &mut self.logits)?;
        let vocab_size = self.logits.len() / rows.len().max(1);
        let mut failed = Vec::new();
        for (place, logits) in places.iter().zip(self.logits.chunks(vocab_size.max(1))) {
            let sequence = &mut self.running[*place].sequence;
            sequence.answer_mut().set_logits(logits);
            let unsound = check_logits(logits, sequence.tokens().len()).err();
            failed.extend(unsound.map(|error| (*place, End::Failed(error))));
        }
        Ok(failed)
    }

    /// Draws and reports the first token of an answer after its prompt; the answer continues, or ends.
    pub(super) fn begin_answer(&mut self, place: usize, tell: &mut Tell<'_>) -> Result<Option<End>, EngineError> {
        let running = &mut self.running[place];
        let Stage::Reading { reused_tokens, .. } = running.stage else {
            return Ok(None);
        };
        let mut answer = DraftedAnswer::new(&running.sequence, running.request.generate.clone())?;
        running.clock.begun = Instant::now();
        if answer.answer.is_full() {
            let report = running.report(reused_tokens, answer, StopReason::MaxTokens);
            return Ok(Some(End::Finished(report)));
        }
        let drawn = answer.answer.draw(&mut running.sequence)?;
        let told = tell_drawn(running.id, &mut answer.answer, drawn, tell)?;
        running.stage = Stage::Answering(Box::new(OpenAnswer {
            reused_tokens,
            answer,
            token: told.token,
            again: Vec::new(),
        }));
        Ok(self.take_drawn_row(place, told))
    }

    /// Continues with the latest token, or ends.
    fn take_drawn_row(&mut self, place: usize, told: DrawnRow) -> Option<End> {
        let running = &mut self.running[place];
        match told.stop {
            Some(stop) => {
                let open = running.take_answer()?;
                Some(End::Finished(running.report(open.reused_tokens, open.answer, stop)))
            }
            None => {
                if let Stage::Answering(open) = &mut running.stage {
                    open.token = told.token;
                }
                None
            }
        }
    }

    /// Removes ended requests; their sequences serve others.
    pub(super) fn end(&mut self, mut ended: Vec<(usize, End)>, tell: &mut Tell<'_>) {
        ended.sort_by_key(|(place, _)| *place);
        self.is_blocked &= ended.is_empty();
        for (place, end) in &mut ended {
            let Running { id, sequence, .. } = &mut self.running[*place];
            match std::mem::replace(end, End::Cancelled) {
                End::Finished(report) => tell(Event::Finished(*id, *report, sequence)),
                End::Failed(error) => tell(Event::Failed(*id, error)),
                End::Cancelled => {}
            }
        }
        for (place, _) in ended.into_iter().rev() {
            self.retire(place);
        }
    }
}

/// Reports a drawn token, with held-back text if the answer ends.
fn tell_drawn(id: RequestId, answer: &mut Answer, drawn: Drawn, tell: &mut Tell<'_>) -> Result<DrawnRow, EngineError> {
    let Drawn {
        token,
        mut text,
        probabilities,
        stop,
    } = drawn;
    if stop.is_some() {
        text.push_str(&answer.finish()?);
    }
    let written = WrittenToken {
        token,
        text: &text,
        probabilities,
    };
    tell(Event::Token(id, written));
    Ok(DrawnRow { token, stop })
}

impl Running {
    /// Reads the text of an answer again after it reached the length at which its model's rotation changes: as a
    /// prompt, in pieces beside other answers.
    pub(super) fn read_turned_again(&mut self) {
        let length = self.sequence.tokens().len() + 1;
        if !self.sequence.turn().is_other(self.sequence.engine(), length) {
            return;
        }
        let Some(open) = self.take_answer() else {
            return;
        };
        self.stage = Stage::from_the_start(Some(open));
        let text = self.sequence.turn_for(length);
        let answered = text.len() - self.request.tokens.len();
        self.resumed_tokens += answered;
        // The request's largest number of tokens stays the same.
        self.request.generate.max_tokens = self.request.generate.max_tokens.saturating_sub(answered);
        self.request.prompt_probabilities = None;
        self.request.tokens = text;
    }

    /// Continues an answer whose text has been read again; returns false if a prompt was read.
    pub(super) fn resume(&mut self) -> bool {
        let resumed = self.take_resumed();
        let is_resumed = resumed.is_some();
        if let Some(open) = resumed {
            self.stage = Stage::Answering(open);
        }
        is_resumed
    }

    /// Takes the answer whose text is read again, if there is one.
    pub(super) fn take_resumed(&mut self) -> Option<Box<OpenAnswer>> {
        match &mut self.stage {
            Stage::Reading { resumed, .. } => resumed.take(),
            Stage::Answering(_) => None,
        }
    }

    /// Takes the answer, if there is one; the request must then end or get it back.
    pub(super) fn take_answer(&mut self) -> Option<Box<OpenAnswer>> {
        match std::mem::replace(&mut self.stage, Stage::from_the_start(None)) {
            Stage::Answering(open) => Some(open),
            reading => {
                self.stage = reading;
                None
            }
        }
    }

    pub(super) fn report(&self, reused_tokens: usize, answer: DraftedAnswer, stop: StopReason) -> Box<RequestReport> {
        let clock = self.clock;
        Box::new(RequestReport {
            generation: answer.end(stop),
            prompt_tokens: self.request.tokens.len() - self.resumed_tokens,
            reused_tokens,
            turned_tokens: self.sequence.counts().turned_tokens,
            times: RequestTimes {
                waited_s: (clock.admitted - clock.submitted).as_secs_f64(),
                read_s: (clock.begun - clock.admitted).as_secs_f64(),
                answered_s: clock.begun.elapsed().as_secs_f64(),
            },
        })
    }
}
