//! Ctrl-C. In a run, the first stops it cleanly and the second ends the process ([`Interrupt`]). In a conversation,
//! it stops the current answer; without one it ends the program ([`StopAnswer`]).

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::SIGINT;
use signal_hook::flag;

use crate::failure::Failure;

/// True once the user has pressed Ctrl-C.
#[derive(Clone)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

/// Ctrl-C in a conversation: it stops the current answer; without one it ends the program.
#[derive(Clone)]
pub(crate) struct StopAnswer {
    asked: Arc<AtomicBool>,
    /// True if Ctrl-C ends the program.
    ends: Arc<AtomicBool>,
}

/// Calls `stop` at the first Ctrl-C; the second ends the process.
pub(crate) fn on_interrupt(stop: impl Fn() + Send + 'static) -> Result<(), Failure> {
    let asked = AtomicBool::new(false);
    ctrlc::set_handler(move || {
        if asked.swap(true, Ordering::Relaxed) {
            std::process::exit(130)
        } else {
            stop()
        }
    })
    .map_err(|error| Failure::new(format!("cannot listen for Ctrl-C: {error}")))
}

/// Makes a write beyond the file size limit (`ulimit -f`) fail like any other write, so that no partial file stays.
/// Without a handler the signal ends the process.
pub(crate) fn outlive_file_size_limit() -> Result<(), Failure> {
    riffle_system::signals::outlive_file_size_limit()
        .map_err(|error| Failure::new(format!("cannot handle the limit on file sizes: {error}")))
}

impl Interrupt {
    pub(crate) fn install() -> Result<Self, Failure> {
        let asked = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&asked);
        on_interrupt(move || seen.store(true, Ordering::Relaxed))?;
        Ok(Self(asked))
    }

    pub(crate) fn flow(&self) -> ControlFlow<()> {
        flow(&self.0)
    }
}

impl StopAnswer {
    pub(crate) fn install() -> Result<Self, Failure> {
        let (asked, ends) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
        flag::register_conditional_shutdown(SIGINT, Failure::INTERRUPTED.into(), Arc::clone(&ends))
            .and_then(|_| flag::register(SIGINT, Arc::clone(&asked)))
            .map_err(|error| Failure::new(format!("cannot listen for Ctrl-C: {error}")))?;
        Ok(Self { asked, ends })
    }

    /// Runs work that Ctrl-C stops without ending the program.
    pub(crate) fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        self.asked.store(false, Ordering::Relaxed);
        self.ends.store(false, Ordering::Relaxed);
        let result = work();
        self.ends.store(true, Ordering::Relaxed);
        result
    }

    pub(crate) fn flow(&self) -> ControlFlow<()> {
        flow(&self.asked)
    }
}

fn flow(asked: &AtomicBool) -> ControlFlow<()> {
    if asked.load(Ordering::Relaxed) {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}
