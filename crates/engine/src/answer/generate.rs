//! Generation: sample, show, stop.

use std::fmt;
use std::ops::ControlFlow;

use serde::Serialize;

use crate::{EngineError, Sampler, SamplingOptions, Session, StopMatcher};

/// Tokens of the text before that a continued answer's text depends on: a character is at most four bytes.
const CONTEXT_TOKENS: usize = 8;

/// What to generate and when to stop.
#[derive(Debug, Clone)]
pub struct GenerateOptions {
    /// Tokens to generate at most.
    pub max_tokens: usize,
    /// How tokens are drawn.
    pub sampling: SamplingOptions,
    /// Texts that end the answer; they are not part of it.
    pub stops: Vec<String>,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self {
            max_tokens: 256,
            sampling: SamplingOptions::default(),
            stops: Vec::new(),
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
        let engine = std::sync::Arc::clone(self.engine());
        let tokenizer = engine.tokenizer()?;
        let end_tokens = &engine.generation_defaults().eos;
        let mut decoder = tokenizer.stream();
        let mut sampler = match &self.answer.sampler {
            Some(state) => Sampler::resume(options.sampling.clone(), state)?,
            None => Sampler::new(options.sampling.clone())?,
        };
        let mut matcher = StopMatcher::new(options.stops.iter().cloned());
        let mut generation = Generation {
            text: String::new(),
            tokens: Vec::new(),
            stop: StopReason::MaxTokens,
        };
        if let Some(token) = self.pending() {
            if let Some(stop) = self.end_before(token) {
                generation.stop = stop;
                return Ok(generation);
            }
            self.advance(token)?;
            // The text before decides how the first new token reads.
            for token in &self.tokens()[self.tokens().len().saturating_sub(CONTEXT_TOKENS)..] {
                decoder.push(*token)?;
            }
        }
        let mut emit = |text: &str, whole: &mut String| {
            whole.push_str(text);
            if text.is_empty() {
                ControlFlow::Continue(())
            } else {
                show(text)
            }
        };
        while generation.tokens.len() < options.max_tokens {
            let token = sampler.sample(self.logits(), self.tokens());
            generation.tokens.push(token);
            self.answer.pending = Some(token);
            self.answer.sampler = Some(sampler.state());
            if end_tokens.contains(&token) {
                generation.stop = StopReason::EndOfText;
                break;
            }
            let piece = decoder.push(token)?;
            let flow = emit(&matcher.push(&piece), &mut generation.text);
            if let Some(stop) = matcher.matched() {
                generation.stop = StopReason::StopString(stop.to_owned());
                break;
            }
            if flow.is_break() {
                generation.stop = StopReason::Interrupted;
                return Ok(generation);
            }
            if generation.tokens.len() == options.max_tokens {
                break;
            }
            if self.is_full() {
                generation.stop = StopReason::ContextFull;
                break;
            }
            self.advance(token)?;
        }
        if matcher.matched().is_none() {
            let tail = matcher.push(&decoder.finish()?) + &matcher.finish();
            if emit(&tail, &mut generation.text).is_break() {
                generation.stop = StopReason::Interrupted;
            }
        }
        Ok(generation)
    }

    /// Why an answer cannot go on with `token`.
    fn end_before(&self, token: u32) -> Option<StopReason> {
        if self.engine().generation_defaults().eos.contains(&token) {
            Some(StopReason::EndOfText)
        } else if self.is_full() {
            Some(StopReason::ContextFull)
        } else {
            None
        }
    }
}
