//! Which two tokens merge, and in which order.

use std::cmp::Ordering;
use std::hash::{BuildHasher, RandomState};

use super::vocabulary::Vocabulary;

/// Marks an empty slot; ids are smaller.
const VACANT: u32 = u32::MAX;

/// The merges of a byte-pair encoding.
#[derive(Debug, Clone)]
pub(crate) enum Merges {
    /// Listed by the file, best first.
    Listed(MergeTable),
    /// Every token that is made of two others, in the order of scores.
    Scored(Scores),
}

/// The rank of a merge; the lowest is applied first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// Index in the file's list.
    Place(u32),
    /// A rank by score.
    Score(ScoredRank),
}

/// Orders merges of a scored vocabulary by descending score. Equal scores have the order in which `transformers`
/// lists them when it converts a SentencePiece model: by descending length of the left and the right token in
/// characters, then by ascending ids.
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
    /// The rank of the merge of two tokens, and the resulting token; `joined` is scratch.
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

    /// Memory of the tables.
    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            Merges::Listed(table) => size_of_val(table.slots.as_slice()),
            Merges::Scored(scores) => size_of_val(scores.scores.as_slice()),
        }
    }
}

/// The order of merges by the resulting tokens.
#[derive(Debug, Clone)]
pub(crate) struct Scores {
    /// Score of each token; NaN for tokens that are not a merge's result.
    scores: Vec<f32>,
    /// True if equal scores merge from the left; otherwise in `transformers`' order.
    from_left: bool,
}

impl Scores {
    /// Scores by id. Tokens that merges do not produce, such as control tokens, have a score that is not a number.
    pub(crate) fn new(scores: Vec<f32>) -> Scores {
        Scores {
            scores,
            from_left: false,
        }
    }

    /// Scores by id; equal scores merge from the left, as in SentencePiece and tiktoken.
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

    /// Adds the merge of two tokens by their texts, with list index `place`. A repeated pair keeps the later index.
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
