//! One bounded piece of work: a token of every answer, a piece of a prompt pass, or a step of the prefix cache on disk.

use std::time::Instant;

use crate::EngineError;
use crate::scheduler::{Event, Running, Scheduler, Stage};

/// Takes what happens to requests.
pub(super) type Tell<'a> = dyn FnMut(Event<'_>) + 'a;

impl Scheduler {
    /// Does one piece of work and tells what came of it. False when there is nothing to do: every request has ended, is parked, or
    /// waits for the room of those that are.
    ///
    /// # Errors
    /// Failures that are of no single request, such as a lost device. Requests stay as they were before the piece.
    pub fn step(&mut self, tell: &mut Tell<'_>) -> Result<bool, EngineError> {
        self.admit(tell)?;
        let answers = |running: &Running| matches!(running.stage, Stage::Answering { .. });
        let answers = self.running.iter().any(answers);
        let reads = |running: &Running| matches!(running.stage, Stage::Reading { .. }) && !running.waits_for_blocks();
        let reads = match self.pass_waits() {
            true => !self.compressing.is_empty() || self.running.iter().any(Running::has_blocks),
            false => self.prompt_pass.is_some() || !self.compressing.is_empty() || self.running.iter().any(reads),
        };
        self.tell_notices(tell);
        match (answers, reads || self.has_more_to_keep() || self.has_more_to_publish()) {
            (false, false) => return Ok(self.wait_for_blocks()),
            (true, true) if self.prompt_credit_s <= 0.0 => self.answer(tell)?,
            (true, false) => {
                self.answer(tell)?;
                self.prompt_credit_s = 0.0;
            }
            (_, true) => {
                let began = Instant::now();
                match reads {
                    true if self.compresses_next() => self.compress_piece(tell),
                    true => self.read(tell)?,
                    false if self.has_more_to_keep() => self.keep_on_disk(tell),
                    false => self.publish_next(tell),
                }
                self.prompt_credit_s -= began.elapsed().as_secs_f64();
                if !answers {
                    self.prompt_credit_s = 0.0;
                }
            }
        }
        Ok(true)
    }

    /// Goes on until every request has ended or is parked.
    ///
    /// # Errors
    /// As [`Scheduler::step`].
    pub fn run(&mut self, tell: &mut Tell<'_>) -> Result<(), EngineError> {
        while self.step(tell)? {}
        Ok(())
    }
}
