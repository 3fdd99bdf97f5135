//! Records which characters are adjacent in tokens.

use super::vocabulary::Vocabulary;

/// Bits of the filter: a byte for each of the 200,000 pairs of characters in large vocabularies.
const BITS: usize = 1 << 21;

/// The pairs of characters that are adjacent in some token, as a Bloom filter: it may return true for other pairs,
/// but never false for these. A text can be split between two characters that are not neighbours without changing a
/// merge.
#[derive(Debug, Clone)]
pub(crate) struct Neighbours {
    words: Vec<u64>,
}

impl Neighbours {
    /// The pairs in all tokens of a vocabulary.
    pub(crate) fn new(vocabulary: &Vocabulary) -> Neighbours {
        let mut words = vec![0; BITS / 64];
        for (_, text) in vocabulary.iter() {
            let rights = text.chars().skip(1);
            for (left, right) in text.chars().zip(rights) {
                let bit = bit_of(left, right);
                words[bit / 64] |= 1 << (bit % 64);
            }
        }
        Neighbours { words }
    }

    /// False if no token contains `left` and `right` side by side.
    pub(crate) fn may_meet(&self, left: char, right: char) -> bool {
        let bit = bit_of(left, right);
        self.words[bit / 64] >> (bit % 64) & 1 == 1
    }

    /// Memory of the filter.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(self.words.as_slice())
    }
}

fn bit_of(left: char, right: char) -> usize {
    let pair = u64::from(u32::from(left)) << 32 | u64::from(u32::from(right));
    (pair.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - BITS.ilog2())) as usize
}
