//! The demonstration of `riffle-demo`, with this command's bar of progress and its Ctrl-C.

use std::sync::Arc;

use riffle_demo::{Advice, Host, demonstrate};
use riffle_engine::{Engine, EngineError, RunEvent, RunReport, RunRequest};

use super::print;
use crate::console;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::progress::PrefillDisplay;

/// With `dense`, full attention reads the book too, for comparison.
pub(crate) fn demo(dense: bool) -> Result<(), Failure> {
    let program = std::env::args().next().unwrap_or_else(|| "riffle".to_owned());
    let advice = Advice {
        compare: format!("{program} --dense"),
        program,
        first: String::new(),
    };
    demonstrate(dense, &advice, &mut Terminal(Interrupt::install()?))
}

struct Terminal(Interrupt);

impl Host for Terminal {
    type Error = Failure;

    fn print(&mut self, text: &str) -> Result<(), Failure> {
        print(text)
    }

    fn note(&mut self, text: &str) {
        console::note(text);
    }

    fn run(&mut self, engine: &Arc<Engine>, request: &RunRequest) -> Result<RunReport, EngineError> {
        let mut display = PrefillDisplay::new(engine);
        let report = riffle_engine::run(engine, request, &mut |event| {
            if let RunEvent::Prefill(progress) = event {
                display.update(progress);
            }
            self.0.flow()
        });
        display.finish();
        report
    }
}
