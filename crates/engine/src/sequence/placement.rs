//! Where the tokens of a sequence stand: in its text, in its cache, and in heads that have evicted tokens.
//!
//! Three numbers name a token and they must not be mixed:
//!
//! | type | counts | differs from the one before where |
//! |---|---|---|
//! | `usize` | tokens of the sequence, from its first | |
//! | [`Position`] | rotary angles | an endless window has turned keys back |
//! | [`Slot`] | tokens that the cache holds | an endless window has dropped pages |
//! | [`HeadSlot`] | tokens that a (layer, KV head) holds | a policy or a sliding layer has evicted tokens |

use crate::sequence::eviction::Evicted;
use crate::sequence::sliding::SlidingLayers;
use crate::sequence::window::RollingWindow;

/// The position that a token's keys and queries are turned to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position(pub(crate) usize);

/// A token's number among those that the cache of its sequence holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot(pub(crate) usize);

/// A token's number among those that a (layer, KV head) holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HeadSlot(pub(crate) usize);

/// What has left a sequence's cache, and so where its tokens stand.
#[derive(Debug, Clone, Default)]
pub(crate) struct Placement {
    /// The endless window of the whole sequence.
    pub(crate) rolling: RollingWindow,
    /// Tokens that policies and sliding layers have evicted, head by head.
    pub(crate) evicted: Evicted,
    /// The layers that hold a window alone.
    pub(crate) sliding: SlidingLayers,
}

impl Slot {
    /// The slot so many tokens later.
    pub(crate) fn after(self, tokens: usize) -> Self {
        Self(self.0 + tokens)
    }
}

impl Placement {
    /// Position of a token of the sequence, the next one included.
    pub(crate) fn position(&self, token: usize) -> Position {
        self.rolling.position(token)
    }

    /// Slot of a token that the cache still holds, the next one included.
    pub(crate) fn slot(&self, token: usize) -> Slot {
        self.rolling.slot(token)
    }

    /// Whether the sequence can go back to its first `tokens` tokens: nothing that they need has left since.
    pub(crate) fn reaches(&self, tokens: usize) -> bool {
        self.rolling.reaches(tokens) && self.evicted.reaches(tokens)
    }
}
