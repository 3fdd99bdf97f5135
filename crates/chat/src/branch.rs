//! One branch of a conversation: its turns, and the session with their pages.

use riffle_engine::{Checkpoint, Session};
use serde::{Deserialize, Serialize};

use crate::report::TurnReport;
use crate::transcript::{Mark, Transcript};

/// A text before a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    /// Name of the document, such as its file name.
    pub name: String,
    /// Text of the document.
    pub text: String,
}

/// A message and its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// Documents before the message.
    pub documents: Vec<Document>,
    /// The message.
    pub message: String,
    /// The answer, or the part of it before a stop.
    pub answer: String,
    /// End of the transcript before the turn.
    pub(crate) begin: Mark,
    /// Tokens of the transcript that were already read.
    pub(crate) held_tokens: usize,
    /// End of the transcript before the answer.
    pub(crate) prompt: Mark,
    /// Number of earlier answers to the message.
    pub(crate) retries: u64,
}

/// A branch of a conversation.
#[derive(Default)]
pub(crate) struct Branch {
    pub(crate) name: String,
    pub(crate) turns: Vec<Turn>,
    /// Documents for the next message.
    pub(crate) attached: Vec<Document>,
    /// The message whose reading stopped or failed.
    pub(crate) unanswered: Option<String>,
    pub(crate) transcript: Transcript,
    /// `None` if the whole transcript must be read again.
    pub(crate) session: Option<Session>,
    /// Checkpoint at the end of the latest prompt.
    pub(crate) prompt_end: Option<Checkpoint>,
    pub(crate) last: Option<TurnReport>,
}

impl Branch {
    pub(crate) fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }

    /// Tokens with keys and values in the session.
    pub(crate) fn held_tokens(&self) -> usize {
        self.session.as_ref().map_or(0, |session| session.tokens().len())
    }

    /// Frees the keys and values of this branch. Returns their number of tokens.
    pub(crate) fn forget_pages(&mut self) -> usize {
        let held = self.held_tokens();
        self.session = None;
        self.prompt_end = None;
        held
    }
}
