//! Long calls: they run on Riffle's threads without the interpreter's lock, while the caller polls for signals and
//! reports progress.

use std::any::Any;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use pyo3::prelude::*;
use riffle_engine::PrefillProgress;

use crate::failure::{Class, Failure};
use crate::process::Threads;
use crate::python_policy;

/// Interval between the caller's polls for signals.
const POLL: Duration = Duration::from_millis(50);

/// State that a running call shares with its caller: progress, and the request to stop.
#[derive(Default)]
pub(crate) struct Watch {
    is_stopped: AtomicBool,
    // Bits of an f64.
    done: AtomicU64,
    total: AtomicUsize,
}

impl Watch {
    /// Asks the call to end.
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// True if the call continues.
    pub(crate) fn flow(&self) -> ControlFlow<()> {
        if self.is_stopped.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    /// Records the progress of the call. Returns true if it continues.
    pub(crate) fn note(&self, done: f64, total: usize) -> ControlFlow<()> {
        self.done.store(done.to_bits(), Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
        self.flow()
    }

    /// Like [`note`](Self::note), for a prompt that is being read.
    pub(crate) fn note_prefill(&self, progress: PrefillProgress) -> ControlFlow<()> {
        self.note(progress.tokens_done, progress.tokens)
    }

    /// Polls for signals and shows the progress, on the caller's thread.
    pub(crate) fn poll(&self, py: Python<'_>, progress: &mut Shown<'_>) -> PyResult<()> {
        py.check_signals()?;
        if let Some(error) = python_policy::take_error() {
            return Err(error);
        }
        let now = (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed));
        if let Some(callback) = progress.callback
            && now.1 > 0
            && progress.last != Some(now)
        {
            progress.last = Some(now);
            callback.call1(py, (f64::from_bits(now.0), now.1))?;
        }
        Ok(())
    }
}

/// Callback for a call's progress, and the progress reported last.
pub(crate) struct Shown<'a> {
    callback: Option<&'a Py<PyAny>>,
    last: Option<ReportedProgress>,
}

/// Last reported progress: the bits of the work done, and the total.
pub(crate) type ReportedProgress = (u64, usize);

impl<'a> Shown<'a> {
    pub(crate) fn new(callback: Option<&'a Py<PyAny>>) -> Self {
        Self::resumed(callback, None)
    }

    /// Continues after progress reported earlier.
    pub(crate) fn resumed(callback: Option<&'a Py<PyAny>>, last: Option<ReportedProgress>) -> Self {
        Self { callback, last }
    }

    pub(crate) fn told(&self) -> Option<ReportedProgress> {
        self.last
    }
}

/// Runs `work` on the threads, without the interpreter's lock. A signal, or an exception of `progress`, stops it, and
/// is raised after it has ended.
pub(crate) fn run<T: Send>(
    py: Python<'_>,
    threads: &Threads,
    progress: Option<&Py<PyAny>>,
    work: impl FnOnce(&Watch) -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    let pool = threads.pool()?;
    // Another thread may have raised the exception after its own call failed.
    drop(python_policy::take_error());
    let (watch, (send, receive)) = (Watch::default(), sync_channel::<()>(1));
    let (mut outcome, mut raised) = (None, None);
    let mut shown = Shown::new(progress);
    let (watched, found) = (&watch, &mut outcome);
    py.detach(|| {
        let receive = receive;
        pool.in_place_scope(|scope| {
            scope.spawn(move |_| {
                *found = Some(guarded(|| work(watched)));
                drop(send);
            });
            while let Err(RecvTimeoutError::Timeout) = receive.recv_timeout(POLL) {
                if raised.is_none()
                    && let Err(error) = Python::attach(|py| watched.poll(py, &mut shown))
                {
                    raised = Some(error);
                    watched.stop();
                }
            }
        });
    });
    if raised.is_none() {
        watch.poll(py, &mut shown)?;
    }
    match (raised, outcome) {
        (Some(error), _) => Err(error.into()),
        (None, Some(outcome)) => outcome,
        (None, None) => Err(Failure::new(Class::Internal, "the call ended without a result")),
    }
}

/// Runs short work on the threads, without the interpreter's lock.
pub(crate) fn run_short<T: Send>(
    py: Python<'_>,
    threads: &Threads,
    work: impl FnOnce() -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    let pool = threads.pool()?;
    drop(python_policy::take_error());
    let outcome = py.detach(|| pool.install(|| guarded(work)));
    match python_policy::take_error() {
        Some(error) => Err(error.into()),
        None => outcome,
    }
}

/// Makes a panic of Riffle an exception like others.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(internal(&*panic)))
}

fn internal(panic: &(dyn Any + Send)) -> Failure {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("a panic");
    Failure::new(Class::Internal, format!("a fault in Riffle: {text}; please report it"))
}
