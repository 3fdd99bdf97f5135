//! Options of an answer, and its outcome.

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
    /// Texts that end the answer and are not part of it.
    pub stops: Vec<String>,
    /// Additional tokens that end the answer. The model's end tokens always do.
    pub stop_tokens: Vec<u32>,
    /// Number of tokens before which only the length limit ends the answer.
    pub min_tokens: usize,
    /// Continue after the model's end of text.
    pub ignores_end: bool,
    /// End an answer that repeats itself: a run of up to 256 tokens, at least four times, with at least 128 repeated
    /// tokens. Has no effect with a form, with repetition penalties, and if the model's end is ignored.
    pub ends_loops: bool,
    /// Return each token's probability, with this many of the likeliest alternatives.
    pub probabilities: Option<usize>,
    /// The required form of the answer.
    pub form: Option<Arc<dyn AnswerForm>>,
    /// The source of drafts, so that several tokens are read in one pass. The answer stays the same to the byte.
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
    /// The requested number of tokens was generated.
    MaxTokens,
    /// The context is full.
    ContextFull,
    /// The caller stopped the answer.
    Interrupted,
    /// The answer repeated the same tokens.
    Loop {
        /// Length of the repeated run.
        period_tokens: usize,
    },
}

impl StopReason {
    /// Name of the reason in reports.
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
    /// The reason for the answer's end.
    pub stop: StopReason,
    /// Counts of the answer's drafts.
    pub drafts: DraftCount,
}
