//! Runs third-party parsers so that neither a panic nor an endless loop affects this process.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Once, mpsc};
use std::thread;
use std::time::{Duration, Instant};

thread_local! {
    /// Deadline of the parser on this thread.
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Ends a parser's thread after the deadline, by a panic. The caller no longer waits then.
pub(crate) fn check() {
    if DEADLINE.get().is_some_and(|deadline| Instant::now() > deadline) {
        resume_unwind(Box::new("late"));
    }
}

/// The name of parser threads, which identifies their panics.
const THREAD: &str = "riffle-document";

/// Parsers recurse into nested content. Stack pages are allocated on use.
const STACK_BYTES: usize = 256 << 20;

/// The reason why a parser has no result.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The parser panicked.
    Panicked,
    /// The parser exceeded its time. Its thread ends at its next [`check`].
    TimedOut,
    /// No thread could be started.
    NoThread(String),
}

/// Runs `parse` on a separate thread, for at most `time`.
pub(crate) fn run<T: Send + 'static>(time: Duration, parse: impl FnOnce() -> T + Send + 'static) -> Result<T, Fault> {
    quiet_panics();
    let (send, receive) = mpsc::channel();
    let thread = thread::Builder::new().name(THREAD.to_owned()).stack_size(STACK_BYTES);
    let started = thread.spawn(move || {
        DEADLINE.set(Some(Instant::now() + time));
        // The caller may have stopped waiting.
        let _ = send.send(catch_unwind(AssertUnwindSafe(parse)));
    });
    let handle = started.map_err(|error| Fault::NoThread(error.to_string()))?;
    match receive.recv_timeout(time) {
        Ok(result) => {
            let _ = handle.join();
            result.map_err(|_| Fault::Panicked)
        }
        Err(mpsc::RecvTimeoutError::Timeout) => Err(Fault::TimedOut),
        Err(mpsc::RecvTimeoutError::Disconnected) => Err(Fault::Panicked),
    }
}

/// Suppresses panic messages of parser threads, whose panics become errors. Other threads' panics print as before.
fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if thread::current().name() != Some(THREAD) {
                before(panic);
            }
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_and_endless_loops_become_faults() {
        let time = Duration::from_secs(60);
        assert_eq!(run(time, || 3), Ok(3));
        assert_eq!(run(time, || -> i32 { panic!("a fault") }), Err(Fault::Panicked));
        let endless = || thread::sleep(Duration::from_secs(3600));
        assert_eq!(run(Duration::from_millis(20), endless), Err(Fault::TimedOut));
    }
}
