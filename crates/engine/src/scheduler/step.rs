//! One bounded piece of work: a token of every answer, a piece of a prompt pass, or a step of the prefix cache on
//! disk.

use std::time::Instant;

use crate::EngineError;
use crate::scheduler::{Event, Running, Scheduler, Stage};

/// Receives events of requests.
pub(super) type Tell<'a> = dyn FnMut(Event<'_>) + 'a;

/// The next piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Generate one token of every answer.
    Answer,
    /// A piece of a prompt pass.
    Read,
    /// A piece of a compression.
    Compress,
    /// Pages for the prefix cache on disk.
    Keep,
    /// Pages for a store shared with other processes.
    Publish,
    /// Blocks of a beginning are loading, or there is nothing to do.
    Wait,
}

/// The facts that determine the next piece of work.
#[derive(Debug, Clone, Copy, Default)]
struct Standing {
    /// There are unfinished answers.
    answers: bool,
    /// Prompts can be read.
    reads: bool,
    /// A compression waits and takes precedence over prompts.
    compresses: bool,
    /// A beginning must be stored on disk.
    keeps: bool,
    /// A beginning must be published.
    publishes: bool,
    /// Prompts have not used up their share of the time.
    has_credit: bool,
}

impl Standing {
    /// Answers go first unless prompts have time left. Beginnings are stored and published while no prompt can be
    /// read.
    fn next(self) -> Next {
        let beside_answers = [
            (self.compresses, Next::Compress),
            (self.reads, Next::Read),
            (self.keeps, Next::Keep),
            (self.publishes, Next::Publish),
        ];
        match beside_answers.into_iter().find(|(is_due, _)| *is_due) {
            Some((_, work)) if self.has_credit || !self.answers => work,
            _ if self.answers => Next::Answer,
            _ => Next::Wait,
        }
    }
}

impl Scheduler {
    /// Does one piece of work and reports its events. Returns false if there is nothing to do: every request has
    /// ended, is parked, or waits for the room of parked ones.
    ///
    /// # Errors
    /// Failures that affect all requests, such as a lost device. Requests are then unchanged.
    pub fn step(&mut self, tell: &mut Tell<'_>) -> Result<bool, EngineError> {
        self.renew_promises()?;
        self.admit(tell)?;
        self.running.iter_mut().for_each(Running::read_turned_again);
        let standing = self.standing();
        self.tell_notices(tell);
        let began = Instant::now();
        let next = standing.next();
        match next {
            Next::Answer => self.answer(tell)?,
            Next::Read => self.read(tell)?,
            Next::Compress => self.compress_piece(tell),
            Next::Keep => self.keep_on_disk(tell),
            Next::Publish => self.publish_next(tell),
            Next::Wait => return Ok(self.wait_for_blocks()),
        }
        let works_beside = standing.reads || standing.keeps || standing.publishes;
        if !standing.answers || !works_beside {
            // Only one side has work.
            self.prompt_credit_s = 0.0;
        } else if next != Next::Answer {
            self.prompt_credit_s -= began.elapsed().as_secs_f64();
        }
        Ok(true)
    }

    fn standing(&mut self) -> Standing {
        let answers = |running: &Running| matches!(running.stage, Stage::Answering { .. });
        let can_read =
            |running: &Running| matches!(running.stage, Stage::Reading { .. }) && !running.waits_for_blocks();
        let prompts = if self.pass_waits() {
            self.running.iter().any(Running::has_blocks)
        } else {
            self.prompt_pass.is_some() || self.running.iter().any(can_read)
        };
        let reads = prompts || !self.compressing.is_empty();
        let keeps = !reads && self.has_more_to_keep();
        Standing {
            answers: self.running.iter().any(answers),
            reads,
            compresses: reads && self.compresses_next(),
            keeps,
            publishes: !reads && !keeps && self.has_more_to_publish(),
            has_credit: self.prompt_credit_s > 0.0,
        }
    }

    /// Steps until every request has ended or is parked.
    ///
    /// # Errors
    /// As [`Scheduler::step`].
    pub fn run(&mut self, tell: &mut Tell<'_>) -> Result<(), EngineError> {
        while self.step(tell)? {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_and_prompts_share_the_time_and_the_disk_waits_for_both() {
        let mut standing = Standing {
            answers: true,
            reads: true,
            compresses: true,
            keeps: true,
            publishes: true,
            has_credit: false,
        };
        assert_eq!(standing.next(), Next::Answer);
        standing.answers = false;
        assert_eq!(standing.next(), Next::Compress, "nobody waits for an answer");
        (standing.answers, standing.has_credit) = (true, true);
        assert_eq!(standing.next(), Next::Compress);
        standing.compresses = false;
        assert_eq!(standing.next(), Next::Read);
        standing.reads = false;
        assert_eq!(standing.next(), Next::Keep);
        standing.keeps = false;
        assert_eq!(standing.next(), Next::Publish);
        assert_eq!(Standing::default().next(), Next::Wait);
    }
}
