//! Generation of one session: draw, show, stop.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use serde::Serialize;

use crate::answer::{Answer, Drawn};
use crate::{AnswerForm, DraftCount, DraftSpec, EngineError, SamplingOptions, Session};

/// What to generate and when to stop.
#[derive(Debug, Clone)]
pub struct GenerateOptions {
    /// Tokens to generate at most.
    pub max_tokens: usize,
    /// How tokens are drawn.
    pub sampling: SamplingOptions,
    /// Texts that end the answer; they are not part of it.
    pub stops: Vec<String>,
    /// Further tokens that end the answer. The tokens that the model ends a text with always do.
    pub stop_tokens: Vec<u32>,
    /// Tokens before which nothing ends the answer but its length.
    pub min_tokens: usize,
    /// Go on after the model's end of a text.
    pub ignores_end: bool,
    /// Tell how likely each token was, with so many of the likeliest tokens in its place.
    pub probabilities: Option<usize>,
    /// The form that the answer has to have.
    pub form: Option<Arc<dyn AnswerForm>>,
    /// What guesses tokens, so that several are read in one pass. The answer is the same to the byte.
    pub draft: DraftSpec,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self {
            max_tokens: 256,
            sampling: SamplingOptions::default(),
            stops: Vec::new(),
            stop_tokens: Vec::new(),
            min_tokens: 0,
            ignores_end: false,
            probabilities: None,
            form: None,
            draft: DraftSpec::NONE,
        }
    }
}

/// Why generation ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "reason", content = "stop")]
pub enum StopReason {
    /// The model wrote its end-of-text token.
    EndOfText,
    /// A stop string appeared.
    StopString(String),
    /// The asked number of tokens was written.
    MaxTokens,
    /// The context is full: there was no room for another token.
    ContextFull,
    /// The caller asked to stop.
    Interrupted,
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EndOfText => write!(f, "end of text"),
            Self::StopString(stop) => write!(f, "stop string {stop:?}"),
            Self::MaxTokens => write!(f, "token limit (-n)"),
            Self::ContextFull => write!(f, "context full (--ctx)"),
            Self::Interrupted => write!(f, "interrupted"),
        }
    }
}

/// What was generated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generation {
    /// The text, without stop strings and special tokens.
    pub text: String,
    /// The sampled tokens, the end-of-text token included.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub stop: StopReason,
    /// What was drafted of it.
    pub drafts: DraftCount,
}

impl Session {
    /// Continues from the last token, handing over text as soon as it is certain: whole characters that cannot be
    /// part of a stop string any more.
    ///
    /// A second call goes on with the same answer: with the token drawn last, and with the next draws of the same
    /// seed, so that two calls write what one would have written.
    ///
    /// # Errors
    /// [`EngineError::EmptyPrompt`] when nothing was read before; [`EngineError::NoTokenizer`].
    pub fn generate(
        &mut self,
        options: &GenerateOptions,
        show: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Generation, EngineError> {
        if self.logits().is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        let mut answer = Answer::new(self, options.clone())?;
        if let Some(token) = self.pending() {
            if let Some(stop) = answer.end_before(self, token) {
                return Ok(answer.end(stop));
            }
            self.advance(token)?;
            answer.go_on_after(self)?;
        }
        let mut show = |text: &str| match text.is_empty() {
            true => ControlFlow::Continue(()),
            false => show(text),
        };
        // A text that is complete is not interrupted.
        let mut show_drawn = |drawn: Drawn| match (drawn.stop, show(&drawn.text)) {
            (Some(reason @ (StopReason::EndOfText | StopReason::StopString(_))), _) => Some(reason),
            (_, ControlFlow::Break(())) => Some(StopReason::Interrupted),
            (stop, ControlFlow::Continue(())) => stop,
        };
        let mut stop = match answer.is_full() {
            true => Some(StopReason::MaxTokens),
            false => show_drawn(answer.draw(self)?),
        };
        let mut logits = Vec::new();
        let mut stop = loop {
            if let Some(stop) = stop {
                break stop;
            }
            self.go_on(&mut answer, &mut logits, &mut |drawn| {
                stop = show_drawn(drawn);
                match stop {
                    Some(_) => ControlFlow::Break(()),
                    None => ControlFlow::Continue(()),
                }
            })?;
        };
        if stop == StopReason::Interrupted {
            return Ok(answer.end(stop));
        }
        let tail = answer.finish()?;
        if show(&tail).is_break() {
            stop = StopReason::Interrupted;
        }
        Ok(answer.end(stop))
    }
}
