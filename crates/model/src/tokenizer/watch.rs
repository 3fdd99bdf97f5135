//! Asks the caller now and then whether to go on with a text.

use std::ops::ControlFlow;

/// Steps of work between two questions, each about a byte of text: some milliseconds.
const STEPS: usize = 1 << 15;

/// Is given the tokens that are certain so far, and says whether to go on.
pub(crate) type Poll<'p> = dyn FnMut(usize) -> ControlFlow<()> + 'p;

/// Work that its caller may stop.
pub(crate) struct Watch<'p> {
    poll: &'p mut Poll<'p>,
    /// Steps until the next question.
    left: usize,
}

impl<'p> Watch<'p> {
    pub(crate) fn new(poll: &'p mut Poll<'p>) -> Self {
        Self { poll, left: STEPS }
    }

    /// Takes so many steps; `tokens` are certain.
    ///
    /// # Errors
    /// True once the caller wants no more.
    #[inline]
    pub(crate) fn step(&mut self, steps: usize, tokens: usize) -> Result<(), String> {
        match self.left.checked_sub(steps) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => self.ask(tokens),
        }
    }

    #[cold]
    fn ask(&mut self, tokens: usize) -> Result<(), String> {
        self.left = STEPS;
        match (self.poll)(tokens) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err("the caller wants no more".to_owned()),
        }
    }
}
