//! Threads with a large stack that compile forms, a few at a time.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};

use super::bounds::STACK_BYTES;
use crate::failure::Failure;

/// Maximum number of forms compiled at a time. A compilation beyond its time keeps its place until it ends.
const COMPILED_AT_ONCE: usize = 4;

/// Runs compilations.
pub(super) struct Compilers {
    places: Arc<Semaphore>,
}

impl Compilers {
    pub(super) fn new() -> Self {
        Self {
            places: Arc::new(Semaphore::new(COMPILED_AT_ONCE)),
        }
    }

    /// Runs a compilation of the form in field `place`. Waits at most `time` for a free place and for its end.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        place: &str,
        time: Duration,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let until = Instant::now() + time;
        let Ok(taken) = timeout_at(until, Arc::clone(&self.places).acquire_owned()).await else {
            return Err(Failure::busy(format!(
                "{place}: the server has prepared other schemas, patterns and grammars for {} s: try again later",
                time.as_secs()
            )));
        };
        let (done, compiled) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("riffle-compile".to_owned())
            .stack_size(STACK_BYTES);
        let started = thread.spawn(move || {
            let _taken = taken;
            // The receiver is dropped after the time limit.
            drop(done.send(work()));
        });
        if let Err(error) = started {
            let problem = format!("{place}: no thread could be started to prepare it: {error}");
            return Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, problem));
        }
        match timeout_at(until, compiled).await {
            Ok(Ok(compiled)) => compiled,
            Ok(Err(_)) => Err(Failure::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the server failed on this request: please report it",
            )),
            Err(_) => Err(Failure::field(
                place,
                format!("it could not be prepared within {} s: make it simpler", time.as_secs()),
            )),
        }
    }
}
