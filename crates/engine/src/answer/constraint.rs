//! Answers constrained to a form, such as a grammar.

use std::fmt;

/// The required form of answers. Many requests may share one.
pub trait AnswerForm: fmt::Debug + Send + Sync {
    /// Begins an answer of this form.
    ///
    /// # Errors
    /// The reason it cannot begin, as a sentence.
    fn begin(&self) -> Result<Box<dyn TokenConstraint>, String>;
}

/// The tokens that may come next in an unfinished answer.
pub trait TokenConstraint: Send {
    /// Bits of the allowed next tokens, 32 per word, the lowest token in the lowest bit. If the answer may end here,
    /// tokens that end a text are allowed.
    ///
    /// # Errors
    /// The reason this cannot be computed, as a sentence; it ends the answer.
    fn allowed(&mut self) -> Result<&[u32], String>;

    /// Continues after `token`, one of the allowed tokens. Returns true if the answer is complete and no token can
    /// follow.
    ///
    /// # Errors
    /// The reason the answer cannot continue, as a sentence.
    fn accept(&mut self, token: u32) -> Result<bool, String>;

    /// A copy of the unfinished answer, to try further tokens. Without copies, drafts ignore the form and agree less
    /// often.
    fn fork(&mut self) -> Option<Box<dyn TokenConstraint>> {
        None
    }
}
