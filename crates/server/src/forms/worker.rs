//! The thread that computes the next masks of answers.

use std::sync::mpsc::{Sender, channel};

use super::bounds::STACK_BYTES;

type Job = Box<dyn FnOnce() + Send>;

/// Sends work to the thread, which ends when all handles are dropped.
#[derive(Debug, Clone)]
pub(super) struct Worker(Sender<Job>);

impl Worker {
    pub(super) fn start() -> std::io::Result<Self> {
        let (jobs, received) = channel::<Job>();
        std::thread::Builder::new()
            .name("riffle-forms".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                for job in received {
                    // A job that panics drops its sender, so the receiver learns of it.
                    drop(std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)));
                }
            })?;
        Ok(Self(jobs))
    }

    pub(super) fn run(&self, job: impl FnOnce() + Send + 'static) {
        // The worker thread drops jobs after its end, and the job's receiver notices.
        drop(self.0.send(Box::new(job)));
    }
}
