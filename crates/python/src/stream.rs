//! Answers piece by piece.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::answer::Answered;
use crate::engine::{Loaded, unpicklable};
use crate::failure::{Class, Failure};
use crate::process::OfProcess;
use crate::session::{Begun, Held, answer, lock, open};
use crate::watch::{ReportedProgress, Shown, Watch, guarded};

/// Interval between polls for signals.
const POLL: Duration = Duration::from_millis(50);

/// A message of the answering thread.
enum StreamMessage {
    Text(String),
    End(Box<Result<Answered, Failure>>),
}

/// An answer from another thread, wrapped by `riffle.Stream`. Dropping it stops the answer at its next token.
#[pyclass(frozen, module = "riffle._riffle", name = "Stream")]
pub(crate) struct PyStream {
    pieces: OfProcess<Mutex<Receiver<StreamMessage>>>,
    watch: Arc<Watch>,
    progress: Option<Py<PyAny>>,
    told: Mutex<Option<ReportedProgress>>,
    answered: Mutex<Option<Answered>>,
}

impl PyStream {
    /// Starts reading and answering.
    pub(crate) fn begin(
        loaded: &Arc<Loaded>,
        held: &Arc<Held>,
        begun: Begun,
        progress: Option<Py<PyAny>>,
    ) -> Result<Self, Failure> {
        let (send, receive) = channel();
        let watch = Arc::new(Watch::default());
        let (loaded, held, watched) = (Arc::clone(loaded), Arc::clone(held), Arc::clone(&watch));
        let (ready, is_ready) = channel();
        let write = move || {
            let outcome = guarded(|| {
                let guard = lock(&held);
                // The caller may use the session's other methods only when this thread holds it.
                drop(ready);
                let mut guard = guard?;
                let session = open(&mut guard)?;
                let pool = loaded.threads.pool()?;
                pool.install(|| {
                    answer(session, &begun, &watched, &mut |text| {
                        drop(send.send(StreamMessage::Text(text.to_owned())))
                    })
                })
            });
            drop(loaded);
            drop(send.send(StreamMessage::End(Box::new(outcome))));
        };
        let thread = std::thread::Builder::new()
            .name("riffle-stream".to_owned())
            .spawn(write);
        thread.map_err(|error| Failure::new(Class::Riffle, format!("cannot start a thread: {error}")))?;
        // An error means that the sending thread has ended. The wait ends too.
        let _: Result<(), _> = is_ready.recv();
        Ok(Self {
            pieces: OfProcess::new(Mutex::new(receive)),
            watch,
            progress,
            told: Mutex::default(),
            answered: Mutex::default(),
        })
    }

    /// The next piece; `None` at the end.
    fn next(&self, py: Python<'_>) -> Result<Option<String>, Failure> {
        let pieces = self.pieces.get()?;
        loop {
            let received = py.detach(|| match pieces.try_lock() {
                Ok(pieces) => Some(pieces.recv_timeout(POLL)),
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner().recv_timeout(POLL)),
                Err(TryLockError::WouldBlock) => None,
            });
            self.poll(py)?;
            match received {
                Some(Ok(StreamMessage::Text(text))) => return Ok(Some(text)),
                Some(Ok(StreamMessage::End(outcome))) => {
                    let answered = (*outcome)?;
                    *self.answered.lock().unwrap_or_else(PoisonError::into_inner) = Some(answered);
                    return Ok(None);
                }
                Some(Err(RecvTimeoutError::Timeout)) => {}
                Some(Err(RecvTimeoutError::Disconnected)) => return Ok(None),
                None => {
                    let message = "another thread waits for this stream: read it in one";
                    return Err(Failure::new(Class::Session, message));
                }
            }
        }
    }

    /// Polls for signals and reports the progress of the prompt.
    fn poll(&self, py: Python<'_>) -> PyResult<()> {
        let told = *self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let mut shown = Shown::resumed(self.progress.as_ref(), told);
        let polled = self.watch.poll(py, &mut shown).inspect_err(|_| self.watch.stop());
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = shown.told();
        polled
    }
}

#[pymethods]
impl PyStream {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> Result<Option<String>, Failure> {
        self.next(py)
    }

    /// Stops the answer at its next token.
    fn close(&self) {
        self.watch.stop();
    }

    /// The fields of `riffle.Generation`, after the answer has ended.
    fn generation<'py>(&self, py: Python<'py>) -> Result<Option<Bound<'py, PyDict>>, Failure> {
        let answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        answered.as_ref().map(|answered| answered.to_python(py)).transpose()
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(unpicklable("Stream", "collect its text"))
    }
}

impl Drop for PyStream {
    fn drop(&mut self) {
        self.watch.stop();
    }
}
