//! A prepared form, and answers constrained by it.

use std::fmt;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Mutex, PoisonError};

use llguidance::Matcher;
use riffle_engine::{AnswerForm, TokenConstraint};
use toktrie::SimpleVob;

use super::worker::Worker;

/// A form from which answers start.
pub(super) struct PreparedForm {
    matcher: Mutex<Matcher>,
    worker: Worker,
}

/// A running answer. Its next mask is computed concurrently with the engine's pass.
struct FormedAnswer {
    /// The matcher and the allowed tokens after the latest token.
    next: Receiver<Next>,
    /// The value received from `next`; `None` before it has arrived.
    known: Option<Next>,
    worker: Worker,
}

struct Next {
    matcher: Matcher,
    allowed: Result<SimpleVob, String>,
}

impl PreparedForm {
    pub(super) fn new(matcher: Matcher, worker: Worker) -> Self {
        Self {
            matcher: Mutex::new(matcher),
            worker,
        }
    }
}

impl fmt::Debug for PreparedForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PreparedForm")
    }
}

impl AnswerForm for PreparedForm {
    fn begin(&self) -> Result<Box<dyn TokenConstraint>, String> {
        let matcher = self.matcher.lock().unwrap_or_else(PoisonError::into_inner).deep_clone();
        Ok(Box::new(FormedAnswer {
            next: work_out(matcher, &self.worker),
            known: None,
            worker: self.worker.clone(),
        }))
    }
}

/// Computes the next mask concurrently.
fn work_out(mut matcher: Matcher, worker: &Worker) -> Receiver<Next> {
    let (done, next) = sync_channel(1);
    worker.run(move || {
        let allowed = matcher
            .compute_mask_or_eos()
            .map_err(|error| first_line(&error.to_string()));
        drop(done.send(Next { matcher, allowed }));
    });
    next
}

impl FormedAnswer {
    fn known(&mut self) -> Result<&mut Next, String> {
        if self.known.is_none() {
            self.known = self.next.recv().ok();
        }
        self.known
            .as_mut()
            .ok_or_else(|| "what may come next could not be worked out".to_owned())
    }
}

impl TokenConstraint for FormedAnswer {
    fn allowed(&mut self) -> Result<&[u32], String> {
        match &self.known()?.allowed {
            Ok(allowed) => Ok(allowed.as_slice()),
            Err(problem) => Err(problem.clone()),
        }
    }

    fn accept(&mut self, token: u32) -> Result<bool, String> {
        self.known()?;
        let Some(Next { mut matcher, .. }) = self.known.take() else {
            return Err("what may come next could not be worked out".to_owned());
        };
        matcher
            .consume_token(token)
            .map_err(|error| first_line(&error.to_string()))?;
        let is_complete = matcher.is_stopped();
        if !is_complete {
            self.next = work_out(matcher, &self.worker);
        }
        Ok(is_complete)
    }

    fn fork(&mut self) -> Option<Box<dyn TokenConstraint>> {
        let worker = self.worker.clone();
        let Next { matcher, allowed } = self.known().ok()?;
        let known = Next {
            matcher: matcher.deep_clone(),
            allowed: allowed.clone(),
        };
        // The next state is already known, so this channel stays empty.
        let (_, next) = sync_channel(1);
        Some(Box::new(Self {
            next,
            known: Some(known),
            worker,
        }))
    }
}

fn first_line(problem: &str) -> String {
    problem.lines().next().unwrap_or_default().to_owned()
}
