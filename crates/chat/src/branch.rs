//! One line of a conversation: its turns, and the session that holds their pages.

use riffle_engine::{Checkpoint, Session};
use serde::{Deserialize, Serialize};

use crate::report::TurnReport;
use crate::transcript::{Mark, Transcript};

/// A text that stands before a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    /// Name of the document, such as that of its file.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// A message and its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// Texts that stand before the message.
    pub documents: Vec<Document>,
    /// The message.
    pub message: String,
    /// The answer, as far as it was written.
    pub answer: String,
    /// End of the transcript before the turn.
    pub(crate) begin: Mark,
    /// Tokens of it that had been read.
    pub(crate) held_tokens: usize,
    /// End of the transcript before the answer.
    pub(crate) prompt: Mark,
    /// How often the message was answered before.
    pub(crate) retries: u64,
}

/// A branch of a conversation.
#[derive(Default)]
pub(crate) struct Branch {
    pub(crate) name: String,
    pub(crate) turns: Vec<Turn>,
    /// Texts that the next message will have before it.
    pub(crate) attached: Vec<Document>,
    /// The message whose reading was stopped or failed.
    pub(crate) unanswered: Option<String>,
    pub(crate) transcript: Transcript,
    /// `None` where everything has to be read again.
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

    /// Tokens that it holds keys and values of.
    pub(crate) fn held_tokens(&self) -> usize {
        self.session.as_ref().map_or(0, |session| session.tokens().len())
    }

    /// Frees the keys and values of this branch. Returns the number of tokens that they belonged to.
    pub(crate) fn forget_pages(&mut self) -> usize {
        let held = self.held_tokens();
        self.session = None;
        self.prompt_end = None;
        held
    }
}
