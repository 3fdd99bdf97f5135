//! Generation of one session: draw, show, stop.

use std::ops::ControlFlow;

use crate::answer::Drawn;
use crate::draft::DraftedAnswer;
use crate::{EngineError, GenerateOptions, Generation, Session, StopReason};

impl Session {
    /// Continues from the last token and passes text on as soon as it is certain: whole characters that cannot be
    /// part of a stop string.
    ///
    /// A second call continues the same answer, with the latest drawn token and the next draws of the same seed. Two
    /// calls therefore generate the same text as one.
    ///
    /// # Errors
    /// [`EngineError::EmptyPrompt`] if nothing was read before; [`EngineError::NoTokenizer`].
    pub fn generate(
        &mut self,
        options: &GenerateOptions,
        show: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Generation, EngineError> {
        if self.logits().is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        let mut drafted = DraftedAnswer::new(&self.sequence, options.clone())?;
        let answer = &mut drafted.answer;
        if let Some(token) = self.sequence.answer().drawn.pending {
            if let Some(stop) = answer.end_before(&self.sequence, token) {
                return Ok(drafted.end(stop));
            }
            self.advance(token)?;
            drafted.answer.prime_decoder(&self.sequence)?;
        }
        let mut show = |text: &str| {
            if text.is_empty() {
                ControlFlow::Continue(())
            } else {
                show(text)
            }
        };
        // A complete text is not interrupted.
        let mut show_drawn = |drawn: Drawn| match (drawn.stop, show(&drawn.text)) {
            (Some(reason @ (StopReason::EndOfText | StopReason::StopString(_))), _) => Some(reason),
            (_, ControlFlow::Break(())) => Some(StopReason::Interrupted),
            (stop, ControlFlow::Continue(())) => stop,
        };
        let mut stop = if drafted.answer.is_full() {
            Some(StopReason::MaxTokens)
        } else {
            show_drawn(drafted.answer.draw(&mut self.sequence)?)
        };
        let mut logits = Vec::new();
        let mut stop = loop {
            if let Some(stop) = stop {
                break stop;
            }
            self.go_on(&mut drafted, &mut logits, &mut |drawn| {
                stop = show_drawn(drawn);
                match stop {
                    Some(_) => ControlFlow::Break(()),
                    None => ControlFlow::Continue(()),
                }
            })?;
        };
        if stop == StopReason::Interrupted {
            return Ok(drafted.end(stop));
        }
        let tail = drafted.answer.finish()?;
        if show(&tail).is_break() {
            stop = StopReason::Interrupted;
        }
        Ok(drafted.end(stop))
    }
}
