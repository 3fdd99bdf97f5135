//! Computes the fewest tokens of a text from its length alone.

use super::byte_level::byte_of;
use super::{Model, Tokenizer};

/// Characters that represent bytes are below this one.
const BEHIND_BYTES: u32 = 0x180;

impl Tokenizer {
    /// The fewest tokens of a text of `bytes` bytes. Returns 0 for a tokenizer that may drop parts of a text. Also for
    /// one that may make one token of a word of any length, as WordPiece does. Reads the whole vocabulary.
    pub fn fewest_tokens(&self, bytes: usize) -> usize {
        let longest = self.longest_token().filter(|longest| *longest > 0);
        longest.map_or(0, |longest| bytes.div_ceil(longest))
    }

    /// Maximum number of bytes of text that become one token.
    fn longest_token(&self) -> Option<usize> {
        let pipeline = &self.pipeline;
        let shrinking = pipeline.normalizer.most_shrinking()?;
        let spells_rest = match &pipeline.model {
            Model::BytePairs(model) => model.byte_tokens.len() == 256 && model.byte_tokens.iter().all(Option::is_some),
            Model::Unigram(model) => model.spells_bytes(),
            // A word of any length may be one unknown token.
            Model::WordPieces(_) | Model::WholeWords(_) => return None,
        };
        let spells_bytes = pipeline.pre_tokenizer.spells_bytes() || pipeline.normalizer.spells_bytes();
        let has_character = |character: char| pipeline.vocabulary.id(character.encode_utf8(&mut [0; 4])).is_some();
        let mut characters = (0..BEHIND_BYTES)
            .filter_map(char::from_u32)
            .filter(|character| byte_of(*character).is_some());
        let has_all_bytes = if spells_bytes {
            characters.all(has_character)
        } else {
            spells_rest
        };
        if !has_all_bytes || !pipeline.pre_tokenizer.keeps_text() || pipeline.added.take_in_spaces() {
            return None;
        }
        let texts = pipeline.vocabulary.iter().map(|(_, text)| text.len());
        let longest = texts.chain(pipeline.added.longest_text()).max()?;
        Some(longest * shrinking)
    }
}
