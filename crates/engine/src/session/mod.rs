//! A session: one sequence with its own runner.

mod generate;

use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;

use riffle_policy::{Phase, PolicyRules};

use crate::Failure;
use crate::answer::Drawn;
use crate::compress::compress_sequence;
use crate::draft::{AnswerStep, DraftedAnswer, go_on};
use crate::pass::{FinishedRows, PassProgress, PrefillProgress, Runner, Work};
use crate::sequence::{check_logits, check_room, common_prefix};
use crate::{CompressOptions, Compressed, Engine, EngineError, Sequence};

/// One [`Sequence`] and the [`Runner`] that reads tokens into it: the engine's interface for one text at a time.
pub struct Session {
    sequence: Sequence,
    runner: Runner,
}

/// Receives the position of the first row and logits `[positions, vocab]`; may stop the reading.
type TakeLogits<'a> = dyn FnMut(usize, &[f32]) -> ControlFlow<()> + 'a;

impl Session {
    /// An empty session. Pages are allocated on demand, never beyond the plan.
    ///
    /// # Errors
    /// [`EngineError::Policy`] if a policy does not support its phase.
    pub fn new(engine: &Arc<Engine>) -> Result<Self, EngineError> {
        let options = engine.options().sequence.clone();
        Ok(Self::over(Sequence::new(engine, &engine.page_pool()?, options)?))
    }

    /// The session's sequence.
    pub fn sequence(&self) -> &Sequence {
        &self.sequence
    }

    /// The session's sequence, for calls that read no tokens. The session does not read tokens again that these calls
    /// remove.
    pub fn sequence_mut(&mut self) -> &mut Sequence {
        &mut self.sequence
    }

    /// Tokens read and written so far.
    pub fn tokens(&self) -> &[u32] {
        self.sequence.tokens()
    }

    /// Logits `[vocab]` after the last token; empty before the first.
    pub fn logits(&self) -> &[f32] {
        self.sequence.logits()
    }

    /// The engine of the session.
    pub fn engine(&self) -> &Arc<Engine> {
        self.sequence.engine()
    }

    /// A session of a sequence.
    pub(crate) fn over(sequence: Sequence) -> Self {
        Self {
            runner: Runner::new(sequence.engine()),
            sequence,
        }
    }

    /// Restores a session that [`Sequence::save`] wrote, of the same model and options.
    ///
    /// # Errors
    /// As [`Sequence::restore`].
    pub fn restore(engine: &Arc<Engine>, path: impl AsRef<Path>) -> Result<Self, EngineError> {
        Ok(Self::over(Sequence::restore(engine, &engine.page_pool()?, path)?))
    }

    /// A session that continues from this one: both share their pages until one of them writes to a page, which
    /// copies it. Both use the plan's budgets.
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
    /// As [`Sequence::fork`].
    pub fn fork(&mut self) -> Result<Self, EngineError> {
        let fork = self.sequence.fork()?;
        Ok(self.hand_scratch_to(fork))
    }

    /// As [`Session::fork`], with other policies for tokens generated from here on, so that one reading of a text
    /// serves several policies.
    ///
    /// # Errors
    /// As [`Sequence::fork_under`].
    pub fn fork_under(&mut self, decode: PolicyRules) -> Result<Self, EngineError> {
        let fork = self.sequence.fork_under(decode)?;
        Ok(self.hand_scratch_to(fork))
    }

    /// Moves the scratch to a new session. The plan has one scratch, which belongs to the session that reads next,
    /// usually the fork.
    fn hand_scratch_to(&mut self, sequence: Sequence) -> Self {
        let mut session = Self::over(sequence);
        session.take_scratch(self);
        session
    }

    /// Takes the scratch of a pass from a session that does not read next: the plan has one for all sessions of an
    /// engine.
    pub fn take_scratch(&mut self, from: &mut Self) {
        std::mem::swap(&mut self.runner, &mut from.runner);
    }

    /// An empty session that may [adopt](crate::adopt_prefix) this one's shared pages. Both use the plan's budgets.
    ///
    /// # Errors
    /// As [`Session::new`].
    pub fn beside(&self) -> Result<Self, EngineError> {
        Ok(Self::over(self.sequence.beside()?))
    }

    /// Reads `tokens` after the present ones, layer by layer over each logical batch. An unfinished answer ends: a
    /// drawn but unread token is dropped, and the next answer's draws begin with its seed.
    ///
    /// # Errors
    /// Nothing is read if the tokens do not fit. After [`EngineError::Interrupted`] or any failure, the session has
    /// the completed logical batches.
    pub fn prefill(
        &mut self,
        tokens: &[u32],
        observe: &mut dyn FnMut(PrefillProgress) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        self.read_prompt(tokens, observe, &[], None)
    }

    /// Reads `tokens` as [`Session::prefill`] does and passes the logits of every position:
    /// `take(first_position, logits [positions, vocab])`, in order.
    ///
    /// # Errors
    /// As [`Session::prefill`].
    pub fn prefill_with_logits(&mut self, tokens: &[u32], take: &mut TakeLogits<'_>) -> Result<(), EngineError> {
        let everything = self.tokens().len()..self.tokens().len() + tokens.len();
        self.read_prompt(tokens, &mut |_| ControlFlow::Continue(()), &[everything], Some(take))
    }

    /// Reads `tokens` as one prompt and passes the logits at the `wanted` positions of the sequence, which are
    /// ascending and disjoint: `take(first_position, logits [positions, vocab])`.
    ///
    /// # Errors
    /// As [`Session::prefill`].
    pub fn prefill_with_logits_at(
        &mut self,
        tokens: &[u32],
        wanted: &[Range<usize>],
        observe: &mut dyn FnMut(PrefillProgress) -> ControlFlow<()>,
        take: &mut TakeLogits<'_>,
    ) -> Result<(), EngineError> {
        self.read_prompt(tokens, observe, wanted, Some(take))
    }

    /// Reads one generated token.
    ///
    /// # Errors
    /// [`EngineError::ContextExceeded`] if the context is full.
    pub fn advance(&mut self, token: u32) -> Result<(), EngineError> {
        self.read_generated("the answer", &[token])?;
        self.take_last_logits()
    }

    /// Reads the latest drawn token and its draft. `take` receives the next drawn tokens, one or several, and may end
    /// the answer with any of them.
    pub(crate) fn go_on(
        &mut self,
        answer: &mut DraftedAnswer,
        logits: &mut Vec<f32>,
        take: &mut dyn FnMut(Drawn) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        check_room(&self.sequence, "the answer", 1)?;
        let Some(token) = self.sequence.answer().drawn.pending else {
            return Ok(());
        };
        self.turn_for(self.tokens().len() + 1)?;
        let step = AnswerStep {
            sequence: &mut self.sequence,
            answer: &mut answer.answer,
            drafter: answer.drafter.as_mut(),
            token,
        };
        let outcomes = go_on(&mut self.runner, &mut [step], logits, &mut |_, _, drawn| take(drawn))?;
        self.outcome(outcomes)
    }

    /// Reads drafted tokens as generated ones and returns the logits after each, `[tokens, vocab]`, with the same
    /// bits as one by one. Call [`Sequence::checkpoint`] before and [`Session::roll_back`] after to undo rejected
    /// tokens.
    ///
    /// # Errors
    /// [`EngineError::EmptyPrompt`] without tokens, [`EngineError::ContextExceeded`] if they do not fit the context.
    pub fn verify(&mut self, tokens: &[u32], logits: &mut Vec<f32>) -> Result<(), EngineError> {
        if tokens.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        self.read_generated("the draft", tokens)?;
        self.runner.logits(0..tokens.len(), logits)?;
        let last = logits.len() - logits.len() / tokens.len();
        self.sequence.answer_mut().set_logits(&logits[last..]);
        check_logits(self.logits(), self.tokens().len())
    }

    /// [`Sequence::roll_back`], which also reads kept tokens again if necessary, and computes the logits after them.
    ///
    /// # Errors
    /// As [`Sequence::roll_back`], and of reading.
    pub fn roll_back(&mut self, checkpoint: &crate::Checkpoint, kept: usize) -> Result<(), EngineError> {
        let again = self.sequence.roll_back(checkpoint, kept)?;
        if again.is_empty() {
            return Ok(());
        }
        self.verify(&again, &mut Vec::new())
    }

    /// Removes everything after the first `tokens` tokens. Tokens that [`Sequence::truncate`] removes beyond that are
    /// read again.
    ///
    /// # Errors
    /// Errors of reading again; the session then ends before the failed batch. None for models whose layers all see
    /// the whole sequence.
    pub fn truncate(&mut self, tokens: usize) -> Result<(), EngineError> {
        let again = self.sequence.truncate(tokens)?;
        self.read_again(&again)
    }

    /// Keeps the common beginning with `tokens` and removes the rest, so that reading `tokens[kept..]` gives a
    /// session of exactly `tokens`. Returns `kept`; if it is all of `tokens`, nothing remains to be read.
    ///
    /// # Errors
    /// As [`Session::truncate`].
    pub fn keep_shared(&mut self, tokens: &[u32]) -> Result<usize, EngineError> {
        let shared = common_prefix(self.tokens(), tokens);
        if shared == self.tokens().len() && !self.logits().is_empty() {
            self.sequence.answer_mut().end();
            return Ok(shared);
        }
        // Logits belong to the last token read, so one token is read again if all are known.
        let kept = shared.min(tokens.len().saturating_sub(1));
        // The caller reads tokens again and reports progress.
        let is_there = self.sequence.attention().windows_reach(kept);
        self.truncate(if is_there { kept } else { 0 })?;
        Ok(self.tokens().len())
    }

    /// [`compress_sequence`], with the session's own scratch. `observe` receives the progress of the additional
    /// reading.
    ///
    /// # Errors
    /// As [`compress_sequence`].
    pub fn compress(
        &mut self,
        options: &CompressOptions,
        observe: &mut dyn FnMut(PrefillProgress) -> ControlFlow<()>,
    ) -> Result<Compressed, EngineError> {
        compress_sequence(&mut self.sequence, &mut self.runner, options, observe)
    }

    fn read_prompt(
        &mut self,
        tokens: &[u32],
        observe: &mut dyn FnMut(PrefillProgress) -> ControlFlow<()>,
        wanted: &[Range<usize>],
        mut take: Option<&mut TakeLogits<'_>>,
    ) -> Result<(), EngineError> {
        let mut again = self.sequence.begin_prompt(tokens, 0)?;
        if !again.is_empty() {
            again.extend_from_slice(tokens);
            return self.read_prompt(&again, observe, wanted, take);
        }
        let selection = self.engine().options().model.token_selection;
        if let Some(selection) = selection.filter(|_| self.tokens().is_empty()) {
            if take.is_some() {
                return Err(selection.refuse("upper layers have no logits of tokens that they do not read"));
            }
            self.runner
                .read_selected(&mut self.sequence, tokens, &selection, observe)?;
            return self.take_last_logits();
        }
        let goal = self.tokens().len() + tokens.len();
        let finished_rows = if take.is_some() {
            FinishedRows::All
        } else {
            FinishedRows::Last
        };
        let mut done = 0;
        for batch in tokens.chunks(self.sequence.batch_tokens()) {
            let first = self.tokens().len();
            let mut after_piece = |at: PassProgress| {
                observe(PrefillProgress {
                    tokens_done: done as f64 + at.share * batch.len() as f64,
                    tokens: tokens.len(),
                    batch: Some(at.of_batch(first, batch.len())),
                })
            };
            self.read_batch(batch, (Phase::Prefill, finished_rows), goal, &mut after_piece)?;
            done += batch.len();
            if let Some(take) = take.as_deref_mut() {
                self.hand_over_logits(batch.len(), wanted, take)?;
            }
        }
        self.take_last_logits()
    }

    /// Reads generated or drafted tokens.
    fn read_generated(&mut self, what: &'static str, tokens: &[u32]) -> Result<(), EngineError> {
        check_room(&self.sequence, what, tokens.len())?;
        self.turn_for(self.tokens().len() + tokens.len())?;
        let goal = self.tokens().len() + tokens.len();
        self.read_batch(tokens, (Phase::Decode, FinishedRows::All), goal, &mut |_| {
            ControlFlow::Continue(())
        })?;
        self.sequence.answer_mut().drawn.pending = None;
        Ok(())
    }

    /// Runs a logical batch through every layer; after a failure the session is unchanged.
    fn read_batch(
        &mut self,
        tokens: &[u32],
        (phase, finished_rows): (Phase, FinishedRows),
        goal: usize,
        after_piece: &mut dyn FnMut(PassProgress) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        let work = Work {
            sequence: &mut self.sequence,
            tokens,
            phase,
            goal,
            finished_rows,
        };
        let outcomes = self.runner.pass(&mut [work], after_piece)?;
        self.outcome(outcomes)
    }

    /// The outcome of a pass; after a failure the session reads its earlier tokens again.
    fn outcome(&mut self, mut outcomes: Vec<Option<Failure>>) -> Result<(), EngineError> {
        let Some(failure) = outcomes.pop().flatten() else {
            return Ok(());
        };
        // Returns the first failure. A failure of the recovery only leaves the session with fewer tokens; each is
        // complete.
        drop(self.read_again(&failure.again));
        Err(failure.error)
    }

    /// Reads everything again if the model's rotation changes for a sequence of `length` tokens.
    fn turn_for(&mut self, length: usize) -> Result<(), EngineError> {
        let again = self.sequence.turn_for(length);
        self.read_again(&again)
    }

    fn read_again(&mut self, tokens: &[u32]) -> Result<(), EngineError> {
        let runner = &mut self.runner;
        runner.read(&mut self.sequence, tokens, &mut |_| ControlFlow::Continue(()))
    }

    /// Logits after the last token of the latest batch.
    fn take_last_logits(&mut self) -> Result<(), EngineError> {
        let rows = self.runner.rows();
        let logits = &mut self.sequence.answer_mut().logits;
        self.runner.logits(rows - 1..rows, logits)?;
        check_logits(self.logits(), self.tokens().len())
    }

    /// Passes the logits of the wanted ones of the last `tokens` tokens, a bounded number of rows at a time.
    fn hand_over_logits(
        &mut self,
        tokens: usize,
        wanted: &[Range<usize>],
        take: &mut TakeLogits<'_>,
    ) -> Result<(), EngineError> {
        const ROWS: usize = 64;
        let end = self.tokens().len();
        let first = end - tokens;
        for range in wanted {
            let range = range.start.max(first)..range.end.min(end);
            for start in range.clone().step_by(ROWS) {
                let rows = ROWS.min(range.end - start);
                let logits = &mut self.sequence.answer_mut().logits;
                self.runner.logits(start - first..start - first + rows, logits)?;
                if take(start, logits).is_break() {
                    return Err(EngineError::Interrupted {
                        tokens: end,
                        total: end,
                    });
                }
            }
        }
        Ok(())
    }
}
