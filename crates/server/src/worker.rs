//! The thread that answers requests, for programs that bring them in by another protocol than HTTP.

use std::sync::Arc;
use std::time::Duration;

use riffle_engine::{AnswerForm, Engine, Request, RequestReport, TokenProbabilities};

use crate::driver::{Answer as DriverAnswer, Driver, DriverEvent, EventSink};
use crate::failure::Failure;
use crate::forms::{Form, Forms};
use crate::metrics::Metrics;
use crate::{ServerError, ServerOptions};

/// An engine that answers requests on a thread of its own. A [`Server`](crate::Server) adds HTTP to it.
///
/// Only options on limits, drafts and kept pages count here: addresses, keys and the like have no effect.
pub struct Worker {
    pub(crate) driver: Driver,
    pub(crate) forms: Arc<Forms>,
    pub(crate) metrics: Arc<Metrics>,
}

/// An answer under way. Dropping it cancels the request before the next piece of work; pages of its prompt stay.
#[derive(Debug)]
pub struct Answer(DriverAnswer);

/// An event in the life of an answer.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum AnswerEvent {
    /// How likely the next tokens of the prompt were, in their order, from its second token on.
    PromptProbabilities(Vec<TokenProbabilities>),
    /// A token was written.
    Token {
        /// The token.
        token: u32,
        /// How likely it was, where the request asks.
        probabilities: Option<TokenProbabilities>,
    },
    /// The answer is complete.
    Finished(Box<RequestReport>),
}

impl Worker {
    /// Starts the thread. `sink` is told which blocks of text are held, where it is given.
    ///
    /// # Errors
    /// [`ServerError::Engine`] for an engine that cannot serve requests, [`ServerError::Events`] for an address of KV events that
    /// cannot be listened on, [`ServerError::Thread`].
    pub fn start(engine: &Arc<Engine>, options: &ServerOptions, sink: Option<EventSink>) -> Result<Self, ServerError> {
        Self::counted(engine, options, sink, Arc::new(Metrics::new(None)))
    }

    /// As [`start`](Self::start), with counters that were there before.
    pub(crate) fn counted(
        engine: &Arc<Engine>,
        options: &ServerOptions,
        sink: Option<EventSink>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, ServerError> {
        metrics.describe(engine);
        Ok(Self {
            driver: Driver::start(engine, options, Arc::clone(&metrics), sink)?,
            forms: Arc::new(Forms::new(engine, options.limits.clone()).map_err(ServerError::Thread)?),
            metrics,
        })
    }

    /// Asks for an answer; returns once the scheduler has taken the request.
    ///
    /// # Errors
    /// For a request that cannot be answered, that is one too many, or that comes when the worker ends.
    pub async fn ask(&self, request: Request) -> Result<Answer, Failure> {
        let mut answer = self.driver.ask(request)?;
        answer.accepted().await?;
        Ok(Answer(answer))
    }

    /// Prepares a form that answers are held to; `place` is the field of the request it came from.
    ///
    /// # Errors
    /// For a form that is too long, takes too long to prepare, or is not understood.
    pub async fn prepare_form(&self, form: Form, place: &str) -> Result<Arc<dyn AnswerForm>, Failure> {
        self.forms.prepare(form, place).await
    }

    /// All counters, as the text that Prometheus reads.
    pub fn metrics(&self) -> String {
        self.metrics.text()
    }

    /// True if the thread is alive. It ends by itself only where the engine cannot begin anew after it failed.
    pub fn is_alive(&self) -> bool {
        self.driver.is_alive()
    }

    /// Ends the thread. It refuses waiting requests, lets answers go on for `grace`, and writes held beginnings to the
    /// prefix cache if there is one. Returns when all is done; a second call does nothing.
    pub fn stop(&self, grace: Duration) {
        self.driver.stop(grace);
    }
}

impl Answer {
    /// The next event; none comes after [`AnswerEvent::Finished`]. Dropping the future loses no event.
    ///
    /// # Errors
    /// For an answer that cannot go on.
    pub async fn next(&mut self) -> Result<AnswerEvent, Failure> {
        loop {
            match self.0.next().await {
                Some(DriverEvent::Token(written)) => {
                    return Ok(AnswerEvent::Token {
                        token: written.token,
                        probabilities: written.probabilities,
                    });
                }
                Some(DriverEvent::PromptProbabilities(found)) => return Ok(AnswerEvent::PromptProbabilities(found)),
                Some(DriverEvent::Finished(finished)) => return Ok(AnswerEvent::Finished(Box::new(finished.report))),
                Some(DriverEvent::Failed(failure)) => return Err(failure),
                Some(DriverEvent::Accepted | DriverEvent::Reading(_) | DriverEvent::Session(_)) => {}
                None => return Err(Failure::stopping()),
            }
        }
    }
}
