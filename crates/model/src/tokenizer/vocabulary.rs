//! Compact tables of a vocabulary's tokens: texts by id, ids by text.

use std::hash::{BuildHasher, RandomState};

use twox_hash::XxHash3_64;

/// Marks an id without a token, and an empty slot.
const VACANT: u32 = u32::MAX;

/// Ids beyond this many times the number of tokens, plus [`SPARE_IDS`], are refused: a table by id would be out of
/// proportion to the file.
const LARGEST_SPREAD: usize = 4;
const SPARE_IDS: usize = 1 << 16;

/// The tokens of a vocabulary.
#[derive(Debug, Clone)]
pub(crate) struct Vocabulary {
    /// The texts of all tokens, concatenated.
    texts: String,
    /// Start and end of each id's text in `texts`.
    spans: Vec<(u32, u32)>,
    /// Open-addressing hash table with a power-of-two length: the upper half of a text's hash, and its id.
    slots: Vec<(u32, u32)>,
    /// Hash seed, different in every run, so that a file cannot provoke collisions.
    seed: u64,
}

impl Vocabulary {
    /// A vocabulary of these ids and texts. If two tokens have the same text, the later one is found; two texts with
    /// the same id are refused.
    pub(crate) fn new<'a>(entries: impl Iterator<Item = (u32, &'a str)> + Clone) -> Result<Vocabulary, String> {
        let (mut tokens, mut bytes, mut ids) = (0, 0, 0);
        for (id, text) in entries.clone() {
            tokens += 1;
            bytes += text.len();
            ids = ids.max(id as usize + 1);
        }
        if ids > LARGEST_SPREAD * tokens + SPARE_IDS {
            return Err(format!(
                "its largest id is {}, but it has only {tokens} tokens",
                ids - 1
            ));
        }
        if bytes > VACANT as usize {
            return Err(format!("its tokens take {bytes} bytes, {VACANT} is the limit"));
        }
        let slots = (tokens + tokens / 3 + 1).next_power_of_two();
        let mut vocabulary = Vocabulary {
            texts: String::with_capacity(bytes),
            spans: vec![(VACANT, VACANT); ids],
            slots: vec![(0, VACANT); slots],
            seed: RandomState::new().hash_one(0),
        };
        for (id, text) in entries {
            vocabulary.insert(id, text)?;
        }
        Ok(vocabulary)
    }

    fn insert(&mut self, id: u32, text: &str) -> Result<(), String> {
        if let Some(other) = self.text(id) {
            return Err(format!("tokens {other:?} and {text:?} have the same id {id}"));
        }
        let (slot, tag) = self.slot_of(text);
        let known = self.slots[slot].1;
        self.slots[slot] = (tag, id);
        self.spans[id as usize] = match known {
            VACANT => (self.texts.len() as u32, (self.texts.len() + text.len()) as u32),
            _ => self.spans[known as usize],
        };
        if known == VACANT {
            self.texts.push_str(text);
        }
        Ok(())
    }

    /// The slot of `text`, or the empty slot for it, with the upper half of its hash.
    fn slot_of(&self, text: &str) -> (usize, u32) {
        let hash = XxHash3_64::oneshot_with_seed(self.seed, text.as_bytes());
        let tag = (hash >> 32) as u32;
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            let (found, id) = self.slots[slot];
            if id == VACANT || (found == tag && self.text(id) == Some(text)) {
                return (slot, tag);
            }
            slot = (slot + 1) & mask;
        }
    }

    /// The id of a token by its exact text.
    pub(crate) fn id(&self, text: &str) -> Option<u32> {
        let (slot, _) = self.slot_of(text);
        Some(self.slots[slot].1).filter(|id| *id != VACANT)
    }

    /// The text of a token.
    pub(crate) fn text(&self, id: u32) -> Option<&str> {
        let (start, end) = *self.spans.get(id as usize)?;
        self.texts.get(start as usize..end as usize)
    }

    /// Highest id + 1.
    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }

    /// Bytes in the longest text.
    pub(crate) fn longest_text(&self) -> usize {
        let lengths = self.spans.iter().map(|(start, end)| end - start);
        lengths.max().unwrap_or(0) as usize
    }

    /// Every token, by rising id.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &str)> {
        (0..self.spans.len() as u32).filter_map(|id| Some((id, self.text(id)?)))
    }

    /// Ids of the tokens `<0x00>` to `<0xFF>`.
    pub(crate) fn byte_tokens(&self) -> Vec<Option<u32>> {
        (0..=255).map(|byte: u8| self.id(&format!("<0x{byte:02X}>"))).collect()
    }

    /// Memory of the tables.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.texts.capacity() + size_of_val(self.spans.as_slice()) + size_of_val(self.slots.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_found_by_text_and_by_id() {
        let texts: Vec<String> = (0..5000).map(|number| format!("t{number}")).collect();
        let entries = texts
            .iter()
            .enumerate()
            .map(|(id, text)| (id as u32 * 2, text.as_str()));
        let vocabulary = Vocabulary::new(entries.clone()).unwrap();
        for (id, text) in entries {
            assert_eq!((vocabulary.id(text), vocabulary.text(id)), (Some(id), Some(text)));
            assert_eq!(vocabulary.text(id + 1), None);
        }
        assert_eq!((vocabulary.id("t5000"), vocabulary.id("")), (None, None));
        assert_eq!((vocabulary.len(), vocabulary.longest_text()), (9999, 5));
        assert_eq!(vocabulary.iter().count(), 5000);
    }

    #[test]
    fn equal_texts_belong_to_the_later_token_and_every_id_keeps_its_text() {
        let vocabulary = Vocabulary::new([(0, "a"), (1, "b"), (2, "a")].into_iter()).unwrap();
        assert_eq!(vocabulary.id("a"), Some(2));
        assert_eq!(vocabulary.text(0), Some("a"));
        assert_eq!(vocabulary.text(2), Some("a"));
        assert_eq!((vocabulary.id("b"), vocabulary.text(1)), (Some(1), Some("b")));
    }

    #[test]
    fn two_texts_with_one_id_are_refused() {
        let problem = Vocabulary::new([(0, "a"), (0, "b")].into_iter()).unwrap_err();
        assert!(problem.contains("\"a\" and \"b\""), "{problem}");
    }

    #[test]
    fn ids_far_beyond_the_number_of_tokens_are_refused() {
        let problem = Vocabulary::new([(0, "a"), (u32::MAX, "b")].into_iter()).unwrap_err();
        assert!(
            problem.contains("4294967295") && problem.contains("2 tokens"),
            "{problem}"
        );
    }
}
