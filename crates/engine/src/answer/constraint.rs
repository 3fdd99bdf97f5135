//! Answers that are held to a form, such as a grammar.

use std::fmt;

/// The form that answers have to have. Many requests may ask for the same.
pub trait AnswerForm: fmt::Debug + Send + Sync {
    /// An answer of this form, before its first token.
    ///
    /// # Errors
    /// Why it cannot be begun, as a sentence.
    fn begin(&self) -> Result<Box<dyn TokenConstraint>, String>;
}

/// Which tokens may come next in an answer under way.
pub trait TokenConstraint: Send {
    /// Bits of the tokens that may come next, 32 to a word, the lowest token in the lowest bit. Tokens that end a text are
    /// among them where the answer may end here.
    ///
    /// # Errors
    /// Why this cannot be told, as a sentence; the answer ends with it.
    fn allowed(&mut self) -> Result<&[u32], String>;

    /// Goes on behind `token`, which was drawn from the allowed tokens. True when the answer is complete and no token can follow.
    ///
    /// # Errors
    /// Why the answer cannot go on, as a sentence.
    fn accept(&mut self, token: u32) -> Result<bool, String>;

    /// The same answer once more, to try what may follow. Without it drafts are made without the form, and fewer of them agree.
    fn fork(&mut self) -> Option<Box<dyn TokenConstraint>> {
        None
    }
}
