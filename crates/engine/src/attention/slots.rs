//! Numbers of a token: in its text, in its cache, and in heads from which tokens have left.
//!
//! Three numbers name a token and they must not be mixed:
//!
//! | type | counts | differs from the one before where |
//! |---|---|---|
//! | `usize` | tokens of the sequence, from its first | |
//! | [`Position`] | rotary angles | an endless window has turned keys back |
//! | [`Slot`] | tokens that the cache holds | an endless window has dropped pages |
//! | [`HeadSlot`] | tokens that a (layer, KV head) holds | a policy or a sliding layer has evicted tokens |

/// The position that a token's keys and queries are turned to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position(pub(crate) usize);

/// A token's number among those that the cache of its sequence holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot(pub(crate) usize);

/// A token's number among those that a (layer, KV head) holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HeadSlot(pub(crate) usize);

impl Slot {
    /// The slot so many tokens later.
    pub(crate) fn after(self, tokens: usize) -> Self {
        Self(self.0 + tokens)
    }
}
