//! Sequences that hold pages in common.

use riffle_policy::PolicyRules;

use crate::pass::device::DevicePages;
use crate::{EngineError, Sequence, SequenceOptions};

impl Sequence {
    /// A sequence that goes on from where this one is: both hold the same pages until one of them writes into a copy, and
    /// both together keep to the budgets of their pool.
    ///
    /// # Errors
    /// [`EngineError::Policy`] when a policy's state cannot be carried over.
    pub fn fork(&mut self) -> Result<Self, EngineError> {
        let mut fork = self.fork_pages(self.options.clone())?;
        fork.copy_statistics(self)?;
        for (from, to) in self.decode.iter().zip(fork.decode.iter_mut()) {
            to.restore_state(&from.save_state())?;
        }
        Ok(fork)
    }

    /// As [`Sequence::fork`], with other policies for what is generated from here on: one reading of a text serves several of them.
    ///
    /// # Errors
    /// [`EngineError::Option`] where the policies of either sequence learn from the queries of the text or evict its tokens;
    /// [`EngineError::Policy`] when a policy does not select for generated tokens.
    pub fn fork_under(&mut self, decode: PolicyRules) -> Result<Self, EngineError> {
        for rules in [&self.options.decode, &decode] {
            if !rules.follows_from_keys() {
                let problem = "it has to see the text while it is read: read the text under it";
                return Err(EngineError::option("--decode", rules, problem));
            }
        }
        let mut fork = self.fork_pages(SequenceOptions {
            decode,
            ..self.options.clone()
        })?;
        fork.copy_statistics(self)?;
        Ok(fork)
    }

    /// A sequence under `options` that goes on from the first `tokens` tokens of this one, which it read as prompt; nothing has been
    /// counted of it yet. `None` where `options` would have made other pages, or this sequence cannot go back so far.
    ///
    /// # Errors
    /// As [`Sequence::fork`].
    pub(crate) fn fork_beginning(
        &mut self,
        tokens: usize,
        options: &SequenceOptions,
    ) -> Result<Option<Self>, EngineError> {
        if !self.can_share() || !self.options.makes_the_same_pages(options) {
            return Ok(None);
        }
        let mut fork = self.fork_pages(options.clone())?;
        let again = fork.truncate(tokens)?;
        Ok((again.is_empty() && fork.tokens.len() == tokens).then_some(fork))
    }

    /// A fork whose decode policies and statistics begin anew.
    fn fork_pages(&mut self, options: SequenceOptions) -> Result<Self, EngineError> {
        let device = self.device.as_mut().map(DevicePages::fork);
        let mut fork = Self::over(&self.engine, self.cache.fork(), device, options)?;
        for (from, to) in self.prefill.iter().zip(fork.prefill.iter_mut()) {
            to.restore_state(&from.save_state())?;
        }
        fork.recurrence.copy_from(&self.recurrence)?;
        fork.placement = self.placement.clone();
        fork.tokens = self.tokens.clone();
        fork.prefilled = self.prefilled;
        fork.answer = self.answer;
        fork.logits = self.logits.clone();
        if let Some(reader) = &mut self.reader {
            fork.reader = Some(Box::new(reader.fork()?));
        }
        fork.predictor = fork.predictor.and(self.predictor.clone());
        Ok(fork)
    }

    fn copy_statistics(&mut self, from: &Self) -> Result<(), EngineError> {
        let (from, to) = (&from.statistics, &mut self.statistics);
        if let (Some(from), Some(to)) = (&from.auto, &mut to.auto) {
            to.resume(&from.state(), &mut self.prefill)?;
        }
        if let (Some(from), Some(to)) = (&from.audit, &mut to.audit) {
            to.resume(from.sums().to_vec());
        }
        to.pairs = from.pairs;
        Ok(())
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
    /// text: pages are found by the hash of all tokens up to their end. Returns how many tokens are shared now: none where tokens have
    /// been evicted.
    ///
    /// # Errors
    /// [`EngineError::PrefixPolicy`] when a policy needs to have seen the queries; [`EngineError::PrefixRecurrent`].
    pub fn share_prefix(&mut self) -> Result<usize, EngineError> {
        self.check_sharing()?;
        // Pages that tokens have left do not hold what their tokens say.
        if self.has_evicted() {
            return Ok(0);
        }
        let identity = self.options.pages_identity();
        Ok(self.cache.share(&identity, &self.tokens[..self.prefilled]))
    }

    /// Fills an empty sequence with a beginning of `tokens` that a sequence beside it shares, at most all but the last
    /// token. Returns its tokens; reading the rest gives what [`Sequence::fill_prefix`] promises.
    ///
    /// # Errors
    /// As [`Sequence::share_prefix`].
    pub fn adopt_prefix(&mut self, tokens: &[u32]) -> Result<usize, EngineError> {
        self.check_sharing()?;
        self.forget_all();
        let grid = self.prompt_grid();
        let found = self.cache.adopt(&self.options.pages_identity(), tokens);
        let kept = found.min(tokens.len().saturating_sub(1)) / grid * grid;
        self.cache.truncate(kept);
        self.tokens.extend_from_slice(&tokens[..kept]);
        self.prefilled = kept;
        Ok(kept)
    }

    /// Whether what it reads as prompt can serve others.
    pub(crate) fn can_share(&self) -> bool {
        self.options.window.is_none() && self.check_prefix().is_ok()
    }

    /// Whether it has read something that can serve others.
    pub(crate) fn serves_others(&self) -> bool {
        self.prefilled > 0 && !self.has_evicted() && self.can_share()
    }

    /// Whether tokens have left its pages.
    pub(crate) fn has_evicted(&self) -> bool {
        !self.placement.evicted.is_empty()
    }

    /// Whether it can go back to its first `tokens` tokens and read nothing again.
    pub(crate) fn goes_back_to(&self, tokens: usize) -> bool {
        self.placement.reaches(tokens) && self.windows_reach(tokens) && self.recurrence.knows(tokens)
    }

    /// The longest beginning of `tokens` that it has read as prompt and that another sequence may go on from, which leaves at least
    /// the last token to be read. None where tokens have been evicted: what is left is not what others would read.
    pub(crate) fn known_beginning(&self, tokens: &[u32]) -> usize {
        if self.has_evicted() {
            return 0;
        }
        let shared = self.shared_with(tokens).min(self.prefilled).min(tokens.len() - 1);
        let grid = self.prompt_grid();
        self.recurrence.latest_known(shared / grid * grid)
    }

    /// Whether layers of the model hold a recurrent state in place of keys and values.
    pub(crate) fn is_recurrent(&self) -> bool {
        !self.recurrence.state.is_empty()
    }

    fn check_sharing(&self) -> Result<(), EngineError> {
        if !self.recurrence.state.is_empty() {
            return Err(EngineError::PrefixRecurrent);
        }
        if self.options.window.is_some() {
            return Err(EngineError::option(
                "--window-size",
                "given",
                "pages are shared between sequences, and a window moves the tokens in its pages: leave it out",
            ));
        }
        self.check_prefix()
    }
}

impl SequenceOptions {
    /// What decides over pages beside the tokens and the engine. Sequences of one pool are of one engine.
    pub(crate) fn pages_identity(&self) -> Vec<u8> {
        format!("{:?}", self.prefill).into_bytes()
    }

    /// Whether sequences under `other` make the same pages of the same prompt.
    pub(crate) fn makes_the_same_pages(&self, other: &Self) -> bool {
        self.pages_identity() == other.pages_identity()
    }
}
