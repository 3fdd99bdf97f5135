//! Numbers of a token, which must not be mixed. In a head from which tokens have left it has a third one ([`LayerRows::head_slot`]).
//!
//! [`LayerRows::head_slot`]: crate::attention::LayerRows::head_slot

/// The position that a token's keys and queries are turned to. An endless window turns keys back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position(pub(crate) usize);

/// The number of a token among the tokens in the cache of its sequence. An endless window drops pages, which lowers the numbers of later tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot(pub(crate) usize);

impl Slot {
    /// The slot so many tokens later.
    pub(crate) fn after(self, tokens: usize) -> Self {
        Self(self.0 + tokens)
    }
}
