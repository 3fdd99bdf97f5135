//! Which two tokens become one, and which merge comes first.

use std::cmp::Ordering;
use std::hash::{BuildHasher, RandomState};

use super::vocabulary::Vocabulary;

/// Marks an empty slot; no id is that large.
const VACANT: u32 = u32::MAX;

/// The merges of a byte-pair encoding.
#[derive(Debug, Clone)]
pub(crate) enum Merges {
    /// Listed by the file, best first.
    Listed(MergeTable),
    /// Every token made of two tokens, in the order of its score.
    Scored(Scores),
}

/// The place of a merge among all; the lesser comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// Place in the file's list.
    Place(u32),
    /// By score.
    Score(ScoredRank),
}

/// Orders merges of a scored vocabulary by falling score. Equal scores are ordered as `transformers` lists them when it converts a
/// SentencePiece model: by falling length of the left and the right token in characters, then by rising ids.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScoredRank {
    score: f32,
    lengths: (u32, u32),
    ids: (u32, u32, u32),
}

impl Ord for ScoredRank {
    fn cmp(&self, other: &ScoredRank) -> Ordering {
        let by_score = other.score.total_cmp(&self.score);
        by_score
            .then_with(|| other.lengths.cmp(&self.lengths))
            .then_with(|| self.ids.cmp(&other.ids))
    }
}

impl PartialOrd for ScoredRank {
    fn partial_cmp(&self, other: &ScoredRank) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ScoredRank {
    fn eq(&self, other: &ScoredRank) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for ScoredRank {}

impl Merges {
    /// The rank of the merge of two tokens and the token it makes; `joined` is scratch.
    pub(crate) fn find(
        &self,
        left: u32,
        right: u32,
        vocabulary: &Vocabulary,
        joined: &mut String,
    ) -> Option<(Rank, u32)> {
        match self {
            Merges::Listed(table) => {
                let (place, merged) = table.find(left, right)?;
                Some((Rank::Place(place), merged))
            }
            Merges::Scored(scores) => {
                let (left_text, right_text) = (vocabulary.text(left)?, vocabulary.text(right)?);
                joined.clear();
                joined.push_str(left_text);
                joined.push_str(right_text);
                let merged = vocabulary.id(joined)?;
                let score = scores.of_merged(merged)?;
                let rank = if scores.from_left {
                    ScoredRank {
                        score,
                        lengths: (0, 0),
                        ids: (0, 0, 0),
                    }
                } else {
                    ScoredRank {
                        score,
                        lengths: (left_text.chars().count() as u32, right_text.chars().count() as u32),
                        ids: (merged, left, right),
                    }
                };
                Some((Rank::Score(rank), merged))
            }
        }
    }

    /// Memory the tables take.
    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            Merges::Listed(table) => size_of_val(table.slots.as_slice()),
            Merges::Scored(scores) => size_of_val(scores.scores.as_slice()),
        }
    }
}

/// The order of merges by the tokens they make.
#[derive(Debug, Clone)]
pub(crate) struct Scores {
    /// Score of each token; NaN for those that no merge makes.
    scores: Vec<f32>,
    /// Of equal scores the leftmost comes first, rather than as `transformers` lists them.
    from_left: bool,
}

impl Scores {
    /// Scores by id. Those that are no number are of tokens that merges do not make, such as control tokens.
    pub(crate) fn new(scores: Vec<f32>) -> Scores {
        Scores {
            scores,
            from_left: false,
        }
    }

    /// The same; of equal scores the leftmost comes first, as in SentencePiece and tiktoken.
    pub(crate) fn from_left(scores: Vec<f32>) -> Scores {
        Scores {
            scores,
            from_left: true,
        }
    }

    fn of_merged(&self, id: u32) -> Option<f32> {
        self.scores.get(id as usize).copied().filter(|score| !score.is_nan())
    }
}

/// Listed merges: an open-addressing hash table, a power of two long.
#[derive(Debug, Clone)]
pub(crate) struct MergeTable {
    slots: Vec<Merge>,
    seed: u64,
}

#[derive(Debug, Clone, Copy)]
struct Merge {
    left: u32,
    right: u32,
    place: u32,
    merged: u32,
}

impl MergeTable {
    /// A table for this many merges.
    pub(crate) fn with_capacity(merges: usize) -> MergeTable {
        let vacant = Merge {
            left: VACANT,
            right: VACANT,
            place: 0,
            merged: VACANT,
        };
        MergeTable {
            slots: vec![vacant; (merges + merges / 3 + 1).next_power_of_two()],
            seed: RandomState::new().hash_one(0) | 1,
        }
    }

    /// Adds the merge of two tokens by their texts, listed at `place`. A pair that is listed twice has the later place.
    /// The right token's first `prefix` bytes are not part of the merged token.
    pub(crate) fn insert(
        &mut self,
        place: usize,
        (left, right): (&str, &str),
        prefix: usize,
        vocabulary: &Vocabulary,
    ) -> Result<(), String> {
        let unknown = |text: &str| {
            format!("merge {place} of {left:?} and {right:?} needs the token {text:?}, which does not exist")
        };
        let left_id = vocabulary.id(left).ok_or_else(|| unknown(left))?;
        let right_id = vocabulary.id(right).ok_or_else(|| unknown(right))?;
        let Some(rest) = right.get(prefix..) else {
            return Err(format!("merge {place}: {right:?} lacks the prefix of continuing words"));
        };
        let joined = format!("{left}{rest}");
        let merged = vocabulary.id(&joined).ok_or_else(|| unknown(&joined))?;
        let slot = self.slot_of(left_id, right_id);
        self.slots[slot] = Merge {
            left: left_id,
            right: right_id,
            place: place as u32,
            merged,
        };
        Ok(())
    }

    fn find(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        let merge = self.slots[self.slot_of(left, right)];
        (merge.merged != VACANT).then_some((merge.place, merge.merged))
    }

    fn slot_of(&self, left: u32, right: u32) -> usize {
        let pair = u64::from(left) << 32 | u64::from(right);
        let product = u128::from(pair ^ self.seed) * 0x9e37_79b9_7f4a_7c15_u128;
        let hash = (product as u64 ^ (product >> 64) as u64).wrapping_mul(self.seed);
        let mask = self.slots.len() - 1;
        let mut slot = (hash >> 32) as usize & mask;
        loop {
            let found = &self.slots[slot];
            if found.merged == VACANT || (found.left == left && found.right == right) {
                return slot;
            }
            slot = (slot + 1) & mask;
        }
    }
}
