//! Compressions of sessions, which alternate with prompts.

use std::ops::ControlFlow;

use riffle_policy::Phase;

use crate::compress::{CompressStep, Compression};
use crate::pass::{FinishedRows, Pass, Work};
use crate::scheduler::{Amount, Event, LoanedSequence, RequestId, Room, Scheduler, Stage, Tell};
use crate::{CompressOptions, EngineError, Sequence};

/// A requested compression.
pub(super) struct Compressing {
    pub(super) id: RequestId,
    session: LoanedSequence,
    compression: Compression,
    reading: Option<ScratchReading>,
    /// Room for the additional reading.
    _room: Room,
}

/// A text that is read to score the pairs.
struct ScratchReading {
    scratch: Sequence,
    tokens: Vec<u32>,
    read: usize,
    /// The current pass, with the tokens from `read` on.
    pass: Option<Pass>,
}

/// The result of a piece of a compression.
enum Outcome {
    GoesOn,
    Reads(f64),
    Done(crate::Compressed),
}

impl Scheduler {
    /// Compresses a sequence beside other work, alternating with prompts: [`Event::Reading`] reports progress,
    /// [`Event::Compressed`] returns the sequence, and [`Event::Failed`] loses it. [`cancel`](Self::cancel) ends it.
    ///
    /// # Errors
    /// [`EngineError::NoRoom`] if there is no room for the additional reading, and as
    /// [`compress_sequence`](crate::compress_sequence); the sequence is then lost.
    pub fn compress(
        &mut self,
        mut session: LoanedSequence,
        options: &CompressOptions,
    ) -> Result<RequestId, EngineError> {
        let compression = Compression::begin(&session.sequence, options)?;
        // Shared pages are copied when pairs are evicted from them.
        let copied = session.sequence.usage().bytes_by_tier.total();
        let wanted = Amount {
            sequences: 1,
            bytes: self.bytes_of(compression.longest_tokens).saturating_add(copied),
        };
        if !self.make_room(wanted) {
            return Err(EngineError::NoRoom("what is read to compress the session"));
        }
        // The compressed sequence differs from the file.
        session.file = None;
        let id = self.next_id();
        self.compressing.push_back(Compressing {
            id,
            session,
            compression,
            reading: None,
            _room: self.promised.take(wanted),
        });
        Ok(id)
    }

    /// True if the next piece belongs to a compression: prompts and compressions alternate, one logical batch each.
    pub(super) fn compresses_next(&self) -> bool {
        let Some(first) = self.compressing.front() else {
            return false;
        };
        let is_under_way = first.reading.as_ref().is_some_and(|reading| reading.pass.is_some());
        let reads = |running: &super::Running| matches!(running.stage, Stage::Reading { .. });
        is_under_way || self.prompt_pass.is_none() && (self.is_compressions_turn || !self.running.iter().any(reads))
    }

    /// Does a piece of the first compression.
    pub(super) fn compress_piece(&mut self, tell: &mut Tell<'_>) {
        let Some(mut first) = self.compressing.pop_front() else {
            return;
        };
        self.is_compressions_turn = false;
        match self.piece_of(&mut first) {
            Ok(Outcome::Done(compressed)) => {
                self.is_blocked = false;
                tell(Event::Compressed(first.id, compressed, Box::new(first.session)));
            }
            Ok(Outcome::Reads(read)) => {
                tell(Event::Reading(first.id, first.compression.progress(read), 0));
                self.compressing.push_front(first);
            }
            Ok(Outcome::GoesOn) => self.compressing.push_front(first),
            Err(error) => {
                self.is_blocked = false;
                tell(Event::Failed(first.id, error));
            }
        }
    }

    fn piece_of(&mut self, first: &mut Compressing) -> Result<Outcome, EngineError> {
        let Some(reading) = &mut first.reading else {
            return Ok(match first.compression.advance(&mut first.session.sequence)? {
                CompressStep::Read(mut scratch, tokens) => {
                    let again = scratch.begin_prompt(&tokens, 0)?;
                    debug_assert!(again.is_empty(), "what is measured turns as its text");
                    first.reading = Some(ScratchReading {
                        scratch: *scratch,
                        tokens,
                        read: 0,
                        pass: None,
                    });
                    Outcome::GoesOn
                }
                CompressStep::Worked => Outcome::GoesOn,
                CompressStep::Done(compressed) => Outcome::Done(compressed),
            });
        };
        let (goal, end) = reading.batch();
        let mut work = [Work {
            goal,
            sequence: &mut reading.scratch,
            tokens: &reading.tokens[reading.read..end],
            phase: Phase::Prefill,
            finished_rows: FinishedRows::Last,
        }];
        let mut pass = match reading.pass.take() {
            Some(pass) => pass,
            None => self.prompts.begin(&mut work)?,
        };
        match self.prompts.advance(&mut pass, &mut work) {
            Ok(ControlFlow::Continue(())) => {
                let read = reading.read as f64 + pass.share_done() * (end - reading.read) as f64;
                reading.pass = Some(pass);
                return Ok(Outcome::Reads(read));
            }
            Ok(ControlFlow::Break(())) => {
                if let Some(Some(failure)) = self.prompts.complete(pass, &mut work).pop() {
                    return Err(failure.error);
                }
            }
            // The scratch sequence is dropped with the compression.
            Err(error) => return Err(error),
        }
        reading.read = end;
        if end == reading.tokens.len()
            && let Some(reading) = first.reading.take()
        {
            first.compression.take_back(reading.scratch, end);
            return Ok(Outcome::Reads(0.0));
        }
        Ok(Outcome::Reads(end as f64))
    }

    /// Ends a compression; returns false if none has this number.
    pub(super) fn cancel_compression(&mut self, id: RequestId) -> bool {
        let place = self.compressing.iter().position(|compressing| compressing.id == id);
        // A running pass ends with its scratch sequence.
        let is_ended = place.and_then(|place| self.compressing.remove(place)).is_some();
        self.is_blocked &= !is_ended;
        is_ended
    }
}

impl ScratchReading {
    /// The scratch sequence's final number of tokens, and the end of the next logical batch among them.
    fn batch(&self) -> (usize, usize) {
        let rest = self.tokens.len() - self.read;
        let end = self.read + rest.min(self.scratch.batch_tokens());
        let held = self.scratch.tokens().len();
        (held + rest, end)
    }
}
