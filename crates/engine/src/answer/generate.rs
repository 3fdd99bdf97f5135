//! Options of an answer, and what came of it.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::{AnswerForm, DraftCount, DraftSpec, SamplingOptions};

/// The length, draws and ends of an answer.
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
    /// End an answer that writes the same tokens again and again: up to 256 tokens, at least four times, with 128 repeated tokens. Has
    /// no effect under a form, under penalties for repetition, and where the model's end is ignored.
    pub ends_loops: bool,
    /// Tell how likely each token was, with so many of the likeliest tokens in its place.
    pub probabilities: Option<usize>,
    /// The form that the answer has to have.
    pub form: Option<Arc<dyn AnswerForm>>,
    /// The source of guesses, so that several tokens are read in one pass. The answer is the same to the byte.
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
            ends_loops: false,
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
    /// The answer wrote the same tokens again and again.
    Loop {
        /// Tokens that repeat.
        period_tokens: usize,
    },
}

impl StopReason {
    /// Its name in reports.
    pub fn name(&self) -> &'static str {
        match self {
            Self::EndOfText => "end_of_text",
            Self::StopString(_) => "stop_string",
            Self::MaxTokens => "max_tokens",
            Self::ContextFull => "context_full",
            Self::Interrupted => "interrupted",
            Self::Loop { .. } => "loop",
        }
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EndOfText => write!(f, "end of text"),
            Self::StopString(stop) => write!(f, "stop string {stop:?}"),
            Self::MaxTokens => write!(f, "token limit (`max_tokens`)"),
            Self::ContextFull => write!(f, "context full (`context_tokens`)"),
            Self::Interrupted => write!(f, "interrupted"),
            Self::Loop { period_tokens: 1 } => write!(f, "loop: the same token again and again (`ends_loops`)"),
            Self::Loop { period_tokens } => {
                write!(
                    f,
                    "loop: the same {period_tokens} tokens again and again (`ends_loops`)"
                )
            }
        }
    }
}

/// A generated answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generation {
    /// The text, without stop strings and special tokens.
    pub text: String,
    /// The sampled tokens, the end-of-text token included.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub stop: StopReason,
    /// Its drafts.
    pub drafts: DraftCount,
}
