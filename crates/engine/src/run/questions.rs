//! Several prompts that begin alike, answered one after the other.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use crate::run::{Finished, prompt_tokens};
use crate::sequence::prefix::grid;
use crate::{Engine, EngineError, RunEvent, RunReport, RunRequest, Session};

/// Reads once what all prompts begin with alike, and answers each in a session of its own that shares these pages.
/// `request` says everything but the prompt; `observe` is told the number of the prompt with every event, and `done` each
/// report.
///
/// Answers are those of runs on their own to the bit where the prefill policy's choices do not depend on where a prompt
/// ends; other policies see the beginning and the rest as two prompts of one session.
///
/// # Errors
/// As [`run`](crate::run). Room in the plan is needed for the beginning and the longest rest and answer, and for the pages that
/// each question writes: [`EngineOptions::sequences`](crate::EngineOptions::sequences) plans for it.
pub fn run_questions(
    engine: &Arc<Engine>,
    request: &RunRequest,
    prompts: &[String],
    observe: &mut dyn FnMut(usize, RunEvent<'_>) -> ControlFlow<()>,
    done: &mut dyn FnMut(RunReport) -> ControlFlow<()>,
) -> Result<(), EngineError> {
    request.generate.sampling.validate()?;
    let prompts = prompts
        .iter()
        .enumerate()
        .map(|(number, prompt)| prompt_tokens(engine, request, prompt, &mut || observe(number, RunEvent::Waiting)));
    let prompts: Vec<(Vec<u32>, bool)> = prompts.collect::<Result<_, _>>()?;
    let Some((first, _)) = prompts.first() else {
        return Err(EngineError::EmptyPrompt);
    };
    let longest = prompts.iter().map(|(tokens, _)| tokens.len()).max().unwrap_or(0);
    engine.check_context("the prompt", longest)?;
    // At least one token of each prompt is left to be read, and what is read on is cut into the same chunks.
    let alike = |tokens: &[u32]| {
        first
            .iter()
            .zip(&tokens[..tokens.len() - 1])
            .take_while(|(a, b)| a == b)
            .count()
    };
    let common = prompts.iter().map(|(tokens, _)| alike(tokens)).min().unwrap_or(0);
    let common = common / grid(engine.options()) * grid(engine.options());

    let mut start = Instant::now();
    let mut reader = Session::new(engine)?;
    if common > 0 {
        reader.prefill(&first[..common], &mut |progress| {
            observe(0, RunEvent::Prefill(progress))
        })?;
    }
    for (number, (tokens, chat_template_applied)) in prompts.into_iter().enumerate() {
        let opened_s = if number == 0 {
            0.0
        } else {
            start.elapsed().as_secs_f64()
        };
        let mut session = reader.fork()?;
        session.prefill(&tokens[common..], &mut |progress| {
            observe(number, RunEvent::Prefill(progress))
        })?;
        let first_s = start.elapsed().as_secs_f64();
        let generation = session.generate(&request.generate, &mut |text| observe(number, RunEvent::Text(text)))?;
        let finished = Finished {
            generation,
            prompt_tokens: tokens.len(),
            reused_tokens: if number == 0 { 0 } else { common },
            opened_s,
            first_s,
            decode_s: start.elapsed().as_secs_f64() - first_s,
            chat_template_applied,
        };
        if done(finished.report(&session)).is_break() {
            break;
        }
        start = Instant::now();
    }
    Ok(())
}
