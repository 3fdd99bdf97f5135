//! Ctrl-C: the first asks the run to stop cleanly, the second ends the process.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::Failure;

/// Set once the user has asked to stop.
#[derive(Clone)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

/// Calls `stop` at the first Ctrl-C; the second ends the process.
pub(crate) fn on_interrupt(stop: impl Fn() + Send + 'static) -> Result<(), Failure> {
    let asked = AtomicBool::new(false);
    ctrlc::set_handler(move || match asked.swap(true, Ordering::Relaxed) {
        true => std::process::exit(130),
        false => stop(),
    })
    .map_err(|error| Failure::new(format!("cannot listen for Ctrl-C: {error}")))
}

impl Interrupt {
    pub(crate) fn install() -> Result<Self, Failure> {
        let asked = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&asked);
        on_interrupt(move || seen.store(true, Ordering::Relaxed))?;
        Ok(Self(asked))
    }

    pub(crate) fn flow(&self) -> ControlFlow<()> {
        if self.0.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}
