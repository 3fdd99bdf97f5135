//! Several prompts with a common beginning: read once, answered together.

use std::ops::ControlFlow;
use std::sync::Arc;

use riffle_model::ModelInfo;

use crate::run::{Finished, SHARING_TIME, prompt_tokens, run};
use crate::{
    Engine, EngineError, EngineOptions, Event, GenerateOptions, MemoryPlan, PrefillProgress, Request, RequestId,
    RequestReport, RunEvent, RunReport, RunRequest, Scheduler, SchedulerOptions, Sequence, SharedReport, StopReason,
    plan,
};

/// Maximum number of questions answered at a time: beyond it, a pass costs nearly as much more as it answers more.
const MOST_AT_ONCE: usize = 8;

/// The result of `build` for the largest accepted number of questions at a time, if there are more than in the
/// options.
fn widest<T>(
    options: &EngineOptions,
    context_tokens: usize,
    questions: usize,
    mut build: impl FnMut(EngineOptions) -> Option<T>,
) -> Option<T> {
    let at_once = options.machine.sequences.max(2) + 1..=questions.min(MOST_AT_ONCE);
    at_once.rev().find_map(|sequences| {
        build(
            options
                .clone()
                .with_sequences(sequences)
                .with_context_tokens(Some(context_tokens)),
        )
    })
}

/// The plan of a run that answers `questions` questions about one text, as many at a time as memory allows.
///
/// # Errors
/// As [`MemoryPlan::new`].
pub fn plan_questions(info: &ModelInfo, options: &EngineOptions, questions: usize) -> Result<MemoryPlan, EngineError> {
    let least = plan(info, options)?;
    let wider = widest(options, least.context_tokens, questions, |options| {
        plan(info, &options).ok().filter(MemoryPlan::fits)
    });
    Ok(wider.unwrap_or(least))
}

/// Reads the common beginning of the prompts once, and answers them together, as many at a time as memory allows.
/// `request` has everything except the prompt. `observe` receives every event with its prompt's number, and `done` each
/// report, in the order of the prompts: events of a later prompt are passed after the earlier ones are done.
///
/// Answers have the same bits as in separate runs if the prefill policy's selections do not depend on the end of the
/// prompt. Other policies see the beginning and the rest as two prompts of one session. A break of `observe` ends the
/// current answer with a report, and the others without.
///
/// Under a [`TokenSelection`](crate::TokenSelection) every prompt is read from its beginning.
///
/// # Errors
/// As [`run`](crate::run). The plan needs room for the beginning and the longest rest and answer, and for the pages
/// that each question writes: set [`MachineOptions::sequences`](crate::MachineOptions::sequences).
pub fn run_questions(
    engine: &Arc<Engine>,
    request: &RunRequest,
    prompts: &[String],
    observe: &mut dyn FnMut(usize, RunEvent<'_>) -> ControlFlow<()>,
    done: &mut dyn FnMut(RunReport) -> ControlFlow<()>,
) -> Result<(), EngineError> {
    if engine.options().model.token_selection.is_some() {
        return run_each(engine, request, prompts, observe, done);
    }
    request.generate.sampling.validate()?;
    let prompts = prompts
        .iter()
        .enumerate()
        .map(|(number, prompt)| prompt_tokens(engine, request, prompt, &mut || observe(number, RunEvent::Waiting)));
    let prompts: Vec<(Vec<u32>, bool)> = prompts.collect::<Result<_, _>>()?;
    let longest = prompts.iter().map(|(tokens, _)| tokens.len()).max();
    engine.check_context("the prompt", longest.ok_or(EngineError::EmptyPrompt)?)?;

    let engine = with_room_for(engine, prompts.len());
    let options = SchedulerOptions {
        prefix_cache: request.prefix_cache.clone(),
        shared_store: request.shared_store.clone(),
        ..SchedulerOptions::for_engine(engine.options())
    };
    let mut scheduler = Scheduler::new(&engine, options)?;
    let mut questions = Vec::with_capacity(prompts.len());
    for (tokens, chat_template_applied) in prompts {
        questions.push(Question::submit(
            &mut scheduler,
            tokens,
            chat_template_applied,
            &request.generate,
        )?);
    }
    let mut asked = AnsweredQuestions {
        scheduler,
        questions,
        lost: None,
        notices: Vec::new(),
    };
    for number in 0..asked.questions.len() {
        if asked.answer(number, observe, done)?.is_break() {
            return Ok(());
        }
    }
    asked.lost.map_or(Ok(()), Err)
}

/// Answers prompts one by one, each read from its beginning: the selected tokens of a prompt depend on its end and
/// cannot be reused.
fn run_each(
    engine: &Arc<Engine>,
    request: &RunRequest,
    prompts: &[String],
    observe: &mut dyn FnMut(usize, RunEvent<'_>) -> ControlFlow<()>,
    done: &mut dyn FnMut(RunReport) -> ControlFlow<()>,
) -> Result<(), EngineError> {
    for (number, prompt) in prompts.iter().enumerate() {
        let alone = RunRequest {
            prompt: Some(prompt.clone()),
            ..request.clone()
        };
        let report = run(engine, &alone, &mut |event| observe(number, event))?;
        let is_interrupted = report.stop == StopReason::Interrupted;
        if done(report).is_break() || is_interrupted {
            break;
        }
    }
    Ok(())
}

/// Questions being answered.
struct AnsweredQuestions {
    scheduler: Scheduler,
    questions: Vec<Question>,
    /// The reason why the prefix cache failed.
    lost: Option<EngineError>,
    /// Lines of the shared store.
    notices: Vec<String>,
}

impl AnsweredQuestions {
    /// Steps the scheduler until question `number` has its answer. Passes progress and text on the way, and the
    /// report at the end.
    fn answer(
        &mut self,
        number: usize,
        observe: &mut dyn FnMut(usize, RunEvent<'_>) -> ControlFlow<()>,
        done: &mut dyn FnMut(RunReport) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, EngineError> {
        let (id, mut told) = (self.questions[number].id, 0);
        let mut flow = ControlFlow::Continue(());
        loop {
            let question = &mut self.questions[number];
            if told < question.text.len() {
                flow = observe(number, RunEvent::Text(&question.text[told..]));
                told = question.text.len();
            }
            if let Some(outcome) = question.outcome.take() {
                let mut report = outcome?;
                if number + 1 == self.questions.len() && flow.is_continue() {
                    // Only storing remains.
                    while self.step(id)?.0 {}
                    report.prefix_cache = self.scheduler.prefix_report().cloned();
                    self.scheduler.flush_shared(SHARING_TIME);
                    report.shared_store = self.scheduler.shared_report().map(|report| SharedReport {
                        notices: std::mem::take(&mut self.notices),
                        ..report
                    });
                }
                if flow.is_break() {
                    report.stop = StopReason::Interrupted;
                }
                return Ok(match done(report) {
                    ControlFlow::Continue(()) => flow,
                    broken => broken,
                });
            }
            if flow.is_break() {
                if !self.stop(id) {
                    return Err(EngineError::Interrupted { tokens: 0, total: 0 });
                }
                continue;
            }
            if let (_, Some(progress)) = self.step(id)?
                && observe(number, RunEvent::Prefill(progress)).is_break()
            {
                return Err(EngineError::Interrupted {
                    tokens: progress.tokens_done as usize,
                    total: progress.tokens,
                });
            }
        }
    }

    /// Advances by one step. Returns true if there is more to do, and the progress of a question's prompt if one was
    /// read.
    fn step(&mut self, id: RequestId) -> Result<(bool, Option<PrefillProgress>), EngineError> {
        let mut progress = None;
        let (questions, lost, notices) = (&mut self.questions, &mut self.lost, &mut self.notices);
        let more = self.scheduler.step(&mut |event| match event {
            Event::Reading(read, reading, _) if read == id => progress = Some(reading),
            Event::PrefixCacheLost(error) => *lost = Some(error),
            Event::SharedStore(notice) => notices.push(notice),
            event => take(questions, event),
        })?;
        Ok((more, progress))
    }

    /// Ends an unfinished answer; returns false if it is not being generated.
    fn stop(&mut self, id: RequestId) -> bool {
        let questions = &mut self.questions;
        self.scheduler.stop(id, &mut |event| take(questions, event))
    }
}

/// A submitted prompt and its results so far.
struct Question {
    id: RequestId,
    chat_template_applied: bool,
    /// True if the context, not the options, limits the answer's length.
    is_cut: bool,
    text: String,
    outcome: Option<Result<RunReport, EngineError>>,
}

impl Question {
    fn submit(
        scheduler: &mut Scheduler,
        tokens: Vec<u32>,
        chat_template_applied: bool,
        generate: &GenerateOptions,
    ) -> Result<Self, EngineError> {
        // The last token of an answer is drawn and not read.
        let room = match scheduler.engine().options().sequence.window {
            Some(_) => usize::MAX,
            None => scheduler.engine().plan().context_tokens - tokens.len() + 1,
        };
        let is_cut = room < generate.max_tokens;
        let generate = GenerateOptions {
            max_tokens: generate.max_tokens.min(room),
            ..generate.clone()
        };
        let id = scheduler.submit(Request {
            tokens,
            generate,
            ..Request::default()
        })?;
        Ok(Self {
            id,
            chat_template_applied,
            is_cut,
            text: String::new(),
            outcome: None,
        })
    }

    fn report(&self, mut report: RequestReport, sequence: &Sequence) -> RunReport {
        if self.is_cut && report.generation.stop == StopReason::MaxTokens {
            report.generation.stop = StopReason::ContextFull;
        }
        let times = report.times;
        let finished = Finished {
            generation: report.generation,
            prompt_tokens: report.prompt_tokens,
            reused_tokens: report.reused_tokens,
            opened_s: times.waited_s,
            first_s: times.waited_s + times.read_s,
            decode_s: times.answered_s,
            chat_template_applied: self.chat_template_applied,
        };
        finished.report(sequence)
    }
}

/// Records an event of one of `questions`.
fn take(questions: &mut [Question], event: Event<'_>) {
    let (Event::Token(id, ..) | Event::Finished(id, ..) | Event::Failed(id, ..)) = &event else {
        return;
    };
    let Some(question) = questions.iter_mut().find(|question| question.id == *id) else {
        return;
    };
    match event {
        Event::Token(_, written) => question.text.push_str(written.text),
        Event::Finished(_, report, sequence) => question.outcome = Some(Ok(question.report(report, sequence))),
        Event::Failed(_, error) => question.outcome = Some(Err(error)),
        _ => {}
    }
}

/// The engine, planned for as many concurrent answers as fit.
fn with_room_for(engine: &Arc<Engine>, questions: usize) -> Arc<Engine> {
    let context_tokens = engine.plan().context_tokens;
    let wider = widest(engine.options(), context_tokens, questions, |options| {
        engine.with_options(options).ok()
    });
    wider.unwrap_or_else(|| Arc::clone(engine))
}
