//! The answering thread, for programs with another protocol than HTTP.

use std::sync::Arc;
use std::time::Duration;

use riffle_engine::{AnswerForm, Engine, Request, RequestReport, TokenProbabilities};

use crate::driver::{Answer as DriverAnswer, Driver, DriverEvent, EventSink};
use crate::failure::Failure;
use crate::forms::{Form, Forms};
use crate::metrics::Metrics;
use crate::{ServerError, ServerOptions};

/// An engine that answers requests on its own thread. A [`Server`](crate::Server) adds HTTP to it.
///
/// Only options for limits, drafts and kept pages have an effect here.
pub struct Worker {
    pub(crate) driver: Driver,
    pub(crate) forms: Arc<Forms>,
    pub(crate) metrics: Arc<Metrics>,
}

/// A running answer. Dropping it cancels the request before the next piece of work; pages of its prompt stay.
#[derive(Debug)]
pub struct Answer(DriverAnswer);

/// An event of an answer.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum AnswerEvent {
    /// Probabilities of the next prompt tokens in order, from the second token on.
    PromptProbabilities(Vec<TokenProbabilities>),
    /// A token was written.
    Token {
        /// The token.
        token: u32,
        /// Probability of the token, if requested.
        probabilities: Option<TokenProbabilities>,
    },
    /// The answer is complete.
    Finished(Box<RequestReport>),
}

impl Worker {
    /// Starts the thread. If there is a `sink`, it is told the held blocks of text.
    ///
    /// # Errors
    /// [`ServerError::Engine`] for an engine that cannot serve requests, [`ServerError::Events`] for an address that KV
    /// events cannot use, [`ServerError::Thread`].
    pub fn start(engine: &Arc<Engine>, options: &ServerOptions, sink: Option<EventSink>) -> Result<Self, ServerError> {
        Self::counted(engine, options, sink, Arc::new(Metrics::new(None)))
    }

    /// Like [`start`](Self::start), with existing counters.
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

    /// Requests an answer. Returns after the scheduler has accepted the request.
    ///
    /// # Errors
    /// For a request that cannot be answered, that is one too many, or that comes during the shutdown.
    pub async fn ask(&self, request: Request) -> Result<Answer, Failure> {
        let mut answer = self.driver.ask(request)?;
        answer.accepted().await?;
        Ok(Answer(answer))
    }

    /// Prepares a form for answers; `place` is its field in the request.
    ///
    /// # Errors
    /// For a form that is too long, takes too long to prepare, or is not understood.
    pub async fn prepare_form(&self, form: Form, place: &str) -> Result<Arc<dyn AnswerForm>, Failure> {
        self.forms.prepare(form, place).await
    }

    /// All metrics, as text for Prometheus.
    pub fn metrics(&self) -> String {
        self.metrics.text()
    }

    /// True if the thread is alive. It ends by itself only if a failed engine cannot be started again.
    pub fn is_alive(&self) -> bool {
        self.driver.is_alive()
    }

    /// Ends the thread. It refuses waiting requests, lets answers continue for `grace`, and writes held beginnings to
    /// the prefix cache if there is one. Returns at the end; a second call does nothing.
    pub fn stop(&self, grace: Duration) {
        self.driver.stop(grace);
    }
}

impl Answer {
    /// The next event; none comes after [`AnswerEvent::Finished`]. Dropping the future loses no event.
    ///
    /// # Errors
    /// For a failed answer.
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
