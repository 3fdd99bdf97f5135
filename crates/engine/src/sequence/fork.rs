//! Sequences that hold pages in common.

use crate::pass::device::DevicePages;
use crate::sequence::prefix::grid;
use crate::{EngineError, Sequence};

impl Sequence {
    /// A sequence that goes on from where this one is: both hold the same pages until one of them writes into a copy, and
    /// both together keep to the budgets of their pool.
    ///
    /// # Errors
    /// [`EngineError::Policy`] when a policy's state cannot be carried over.
    pub fn fork(&mut self) -> Result<Self, EngineError> {
        let device = self.device.as_mut().map(DevicePages::fork);
        let mut fork = Self::over(&self.engine, self.cache.fork(), device, self.options.clone())?;
        let (from, to) = (&self.statistics, &mut fork.statistics);
        if let (Some(from), Some(to)) = (&from.auto, &mut to.auto) {
            to.resume(&from.state(), &mut fork.prefill)?;
        }
        if let (Some(from), Some(to)) = (&from.audit, &mut to.audit) {
            to.resume(from.sums().to_vec());
        }
        to.pairs = from.pairs;
        let pairs = [(&self.prefill, &mut fork.prefill), (&self.decode, &mut fork.decode)];
        for (from, to) in pairs {
            for (from, to) in from.iter().zip(to.iter_mut()) {
                to.restore_state(&from.save_state())?;
            }
        }
        fork.recurrence.copy_from(&self.recurrence)?;
        fork.placement = self.placement.clone();
        fork.tokens = self.tokens.clone();
        fork.prefilled = self.prefilled;
        fork.answer = self.answer;
        fork.logits = self.logits.clone();
        Ok(fork)
    }

    /// An empty sequence of the same options that may [adopt](Self::adopt_prefix) what this one shares; both together keep to
    /// the budgets of their pool.
    ///
    /// # Errors
    /// As [`Sequence::new`].
    pub fn beside(&self) -> Result<Self, EngineError> {
        let device = self.device.as_ref().map(DevicePages::beside);
        Self::over(&self.engine, self.cache.pool().cache(), device, self.options.clone())
    }

    /// Shares the whole pages of what was read as prompt with sequences [beside](Self::beside) this one that read the same
    /// text: pages are found by the hash of all tokens up to their end. Returns how many tokens are shared now.
    ///
    /// # Errors
    /// [`EngineError::PrefixPolicy`] when a policy needs to have seen the queries; [`EngineError::PrefixRecurrent`].
    pub fn share_prefix(&mut self) -> Result<usize, EngineError> {
        self.check_sharing()?;
        // Sequences of one pool are of one engine, so their pages are of one origin.
        Ok(self.cache.share(&[], &self.tokens[..self.prefilled]))
    }

    /// Fills an empty sequence with a beginning of `tokens` that a sequence beside it shares, at most all but the last
    /// token. Returns its tokens; reading the rest gives what [`Sequence::fill_prefix`] promises.
    ///
    /// # Errors
    /// As [`Sequence::share_prefix`].
    pub fn adopt_prefix(&mut self, tokens: &[u32]) -> Result<usize, EngineError> {
        self.check_sharing()?;
        self.forget_all();
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
        if self.options.window.is_some() {
            return Err(EngineError::option(
                "--window-size",
                "given",
                "a window moves its pages, which others that share them would not: leave it out",
            ));
        }
        self.check_prefix()
    }
}
