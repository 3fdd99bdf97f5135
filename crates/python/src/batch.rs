//! Answers several prompts at a time, with the scheduler.

use std::collections::HashMap;
use std::sync::Arc;

use riffle_engine::{
    Engine, Event, GenerateOptions, Request, RequestId, RequestReport, Scheduler, SchedulerOptions, TokenProbabilities,
};

use crate::answer::Answered;
use crate::failure::{Class, Failure};
use crate::watch::Watch;

/// Prompts and the options of their answers.
pub(crate) struct Batch {
    pub(crate) prompts: Vec<Vec<u32>>,
    pub(crate) generate: GenerateOptions,
}

/// Answers all prompts, in their order. The first that fails ends the others.
pub(crate) fn answer_all(engine: &Arc<Engine>, batch: Batch, watch: &Watch) -> Result<Vec<Answered>, Failure> {
    let mut scheduler = Scheduler::new(engine, SchedulerOptions::for_engine(engine.options()))?;
    let count = batch.prompts.len();
    let mut under_way = UnderWay::default();
    for (place, tokens) in batch.prompts.into_iter().enumerate() {
        let mut request = Request::default();
        request.tokens = tokens;
        request.generate = batch.generate.clone();
        under_way.places.insert(scheduler.submit(request)?, place);
        under_way.probabilities.push(Vec::new());
        under_way.reports.push(None);
    }
    loop {
        let goes_on = scheduler.step(&mut |event| under_way.take(event))?;
        if let Some(failure) = under_way.failure.take() {
            return Err(failure);
        }
        let done = under_way.reports.iter().flatten().count();
        if watch.note(done as f64 + under_way.share_read(), count).is_break() {
            return Err(Failure::new(
                Class::Interrupted,
                format!("interrupted after {done} of {count} answers"),
            ));
        }
        if !goes_on {
            break;
        }
    }
    under_way.answers()
}

/// Results of the prompts so far, by the prompt's number.
#[derive(Default)]
struct UnderWay {
    places: HashMap<RequestId, usize>,
    probabilities: Vec<Vec<TokenProbabilities>>,
    reports: Vec<Option<RequestReport>>,
    /// Finished share of each prompt that is being read.
    reading: HashMap<RequestId, f64>,
    failure: Option<Failure>,
}

impl UnderWay {
    fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Reading(id, progress, _) => {
                self.reading
                    .insert(id, progress.tokens_done / progress.tokens.max(1) as f64);
            }
            Event::Token(id, written) => {
                if let (Some(place), Some(found)) = (self.places.get(&id), written.probabilities) {
                    self.probabilities[*place].push(found);
                }
            }
            Event::Finished(id, report, _) => {
                self.reading.remove(&id);
                if let Some(place) = self.places.get(&id) {
                    self.reports[*place] = Some(report);
                }
            }
            Event::Failed(_, error) | Event::PrefixCacheLost(error) => {
                self.failure.get_or_insert(error.into());
            }
            _ => {}
        }
    }

    /// Progress of the prompts; reading counts as half of an answer.
    fn share_read(&self) -> f64 {
        self.reading.values().map(|share| share / 2.0).sum()
    }

    fn answers(self) -> Result<Vec<Answered>, Failure> {
        let answers = self
            .reports
            .into_iter()
            .zip(self.probabilities)
            .map(|(report, probabilities)| {
                let report = report.ok_or_else(|| Failure::new(Class::Internal, "a prompt was not answered"))?;
                Ok(Answered {
                    prompt_tokens: report.prompt_tokens,
                    reused_tokens: report.reused_tokens,
                    read_s: report.times.read_s,
                    answered_s: report.times.answered_s,
                    generation: report.generation,
                    probabilities,
                })
            });
        answers.collect()
    }
}
