//! Numbers of a token that must not be mixed. In a head with evicted tokens it has a third one
//! ([`LayerRows::head_slot`]).
//!
//! [`LayerRows::head_slot`]: crate::attention::LayerRows::head_slot

/// The position to which a token's keys and queries are rotated. An endless window rotates keys back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position(pub(crate) usize);

/// The index of a token among the tokens in its sequence's cache. An endless window drops pages, which lowers the
/// slots of later tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot(pub(crate) usize);

impl Slot {
    /// The slot `tokens` tokens later.
    pub(crate) fn after(self, tokens: usize) -> Self {
        Self(self.0 + tokens)
    }
}
