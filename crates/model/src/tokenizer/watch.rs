//! Regularly asks the caller whether to continue with a text.

use std::ops::ControlFlow;

/// Steps of work between two polls, about one per byte of text: some milliseconds.
const STEPS: usize = 1 << 15;

/// Receives the number of tokens certain so far, and decides whether to continue.
pub(crate) type Poll<'p> = dyn FnMut(usize) -> ControlFlow<()> + 'p;

/// Work that the caller may stop.
pub(crate) struct Watch<'p> {
    poll: &'p mut Poll<'p>,
    /// Steps until the next question.
    left: usize,
}

impl<'p> Watch<'p> {
    pub(crate) fn new(poll: &'p mut Poll<'p>) -> Self {
        Self { poll, left: STEPS }
    }

    /// Counts `steps` steps; `tokens` are certain.
    ///
    /// # Errors
    /// `true` if the caller stopped the work.
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
