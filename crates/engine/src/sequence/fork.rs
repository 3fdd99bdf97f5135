//! Sessions that hold pages in common.

use crate::pass::device::DevicePages;
use crate::sequence::prefix::grid;
use crate::{EngineError, Session};

impl Session {
    /// A session that goes on from where this one is: both hold the same pages until one of them writes into a copy, and
    /// both together keep to the plan's budgets.
    ///
    /// ```no_run
    /// # use riffle_engine::{Engine, EngineOptions, Session};
    /// # use std::ops::ControlFlow;
    /// # let engine = Engine::load("model", EngineOptions::default())?;
    /// # let (book, questions): (Vec<u32>, Vec<Vec<u32>>) = Default::default();
    /// let mut reader = Session::new(&engine)?;
    /// reader.prefill(&book, &mut |_| ControlFlow::Continue(()))?;
    /// for question in questions {
    ///     let mut answer = reader.fork()?;
    ///     answer.prefill(&question, &mut |_| ControlFlow::Continue(()))?;
    /// }
    /// # Ok::<(), riffle_engine::EngineError>(())
    /// ```
    ///
    /// # Errors
    /// [`EngineError::Policy`] when a policy's state cannot be carried over.
    pub fn fork(&mut self) -> Result<Self, EngineError> {
        let pages = self.pages.as_mut().map(DevicePages::fork);
        let mut fork = Self::over(&self.engine, self.cache.fork(), pages)?;
        // Memory of a batch is the plan's once: it goes to the session that reads next, as a rule the fork.
        fork.forward = self.forward.take();
        fork.partials = std::mem::take(&mut self.partials);
        if let (Some(from), Some(to)) = (&self.auto, &mut fork.auto) {
            to.resume(&from.state(), &mut fork.prefill)?;
        }
        if let (Some(from), Some(to)) = (&self.audit, &mut fork.audit) {
            to.resume(from.sums().to_vec());
        }
        let pairs = [(&self.prefill, &mut fork.prefill), (&self.decode, &mut fork.decode)];
        for (from, to) in pairs {
            for (from, to) in from.iter().zip(to.iter_mut()) {
                to.restore_state(&from.save_state())?;
            }
        }
        fork.recurrence.copy_from(&self.recurrence)?;
        fork.rolling = self.rolling.clone();
        fork.evicted = self.evicted.clone();
        fork.tokens = self.tokens.clone();
        fork.prefilled = self.prefilled;
        fork.pending = self.pending;
        fork.sampler = self.sampler;
        fork.logits = self.logits.clone();
        fork.pairs = self.pairs;
        Ok(fork)
    }

    /// An empty session that may [adopt](Self::adopt_prefix) what this one shares; both together keep to the plan's
    /// budgets.
    ///
    /// # Errors
    /// As [`Session::new`].
    pub fn beside(&self) -> Result<Self, EngineError> {
        let pages = self.pages.as_ref().map(DevicePages::beside);
        Self::over(&self.engine, self.cache.pool().cache(), pages)
    }

    /// Shares the whole pages of what was read as prompt with sessions [beside](Self::beside) this one that read the same
    /// text: pages are found by the hash of all tokens up to their end. Returns how many tokens are shared now.
    ///
    /// # Errors
    /// [`EngineError::PrefixPolicy`] when a policy needs to have seen the queries; [`EngineError::PrefixRecurrent`].
    pub fn share_prefix(&mut self) -> Result<usize, EngineError> {
        self.check_sharing()?;
        // Sessions of one pool are of one engine, so their pages are of one origin.
        Ok(self.cache.share(&[], &self.tokens[..self.prefilled]))
    }

    /// Fills an empty session with a beginning of `tokens` that a session beside it shares, at most all but the last
    /// token. Returns its tokens; reading the rest gives what [`Session::fill_prefix`] promises.
    ///
    /// # Errors
    /// As [`Session::share_prefix`].
    pub fn adopt_prefix(&mut self, tokens: &[u32]) -> Result<usize, EngineError> {
        self.check_sharing()?;
        self.truncate(0)?;
        let grid = grid(self.engine.options());
        let found = self.cache.adopt(&[], tokens);
        let kept = found.min(tokens.len().saturating_sub(1)) / grid * grid;
        self.cache.truncate(kept);
        self.tokens.extend_from_slice(&tokens[..kept]);
        self.prefilled = kept;
        Ok(kept)
    }

    fn check_sharing(&self) -> Result<(), EngineError> {
        if !self.recurrence.state.is_empty() {
            return Err(EngineError::PrefixRecurrent);
        }
        if self.engine.options().window.is_some() {
            return Err(EngineError::option(
                "--window-size",
                "given",
                "a window moves its pages, which others that share them would not: leave it out",
            ));
        }
        self.check_prefix()
    }
}
