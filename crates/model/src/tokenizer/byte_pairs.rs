//! Byte-pair encoding: a word is split into characters, and neighbours are merged in the order of their ranks.

use super::merges::Merges;
use super::merging::Word;
use super::neighbours::Neighbours;
use super::vocabulary::Vocabulary;

/// A byte-pair encoding without its vocabulary.
#[derive(Debug, Clone)]
pub(crate) struct BytePairs {
    pub(crate) merges: Merges,
    /// Characters that are adjacent in some token.
    pub(crate) neighbours: Neighbours,
    pub(crate) unknown: Unknown,
    /// True if adjacent unknown characters become one unknown token.
    pub(crate) fuses_unknown: bool,
    /// Tokens of the 256 bytes, which spell characters outside the vocabulary.
    pub(crate) byte_tokens: Vec<Option<u32>>,
    /// Prefix of every character of a word except the first.
    pub(crate) continuing_prefix: String,
    /// Suffix of the last character of a word.
    pub(crate) word_suffix: String,
    /// True if a word that is a token stays whole, independent of the merges.
    pub(crate) takes_whole_words: bool,
}

/// The token for characters outside the vocabulary.
#[derive(Debug, Clone)]
pub(crate) enum Unknown {
    /// Unknown characters are dropped.
    Nothing,
    /// This token.
    Token(u32),
    /// A token missing from the vocabulary, which is an error when it is needed.
    Missing(String),
}

impl Unknown {
    pub(crate) fn new(text: Option<&str>, vocabulary: &Vocabulary) -> Unknown {
        match text {
            None => Unknown::Nothing,
            Some(text) => vocabulary
                .id(text)
                .map_or_else(|| Unknown::Missing(text.to_owned()), Unknown::Token),
        }
    }

    /// The token; `None` if characters are dropped.
    pub(crate) fn token(&self) -> Result<Option<u32>, String> {
        match self {
            Unknown::Nothing => Ok(None),
            Unknown::Token(id) => Ok(Some(*id)),
            Unknown::Missing(text) => Err(format!(
                "the text holds characters that are no tokens, and neither is the token {text:?} that stands for them"
            )),
        }
    }
}

impl BytePairs {
    /// Appends the tokens of a word to `ids`.
    pub(crate) fn encode(
        &self,
        text: &str,
        vocabulary: &Vocabulary,
        word: &mut Word<'_>,
        ids: &mut Vec<u32>,
    ) -> Result<(), String> {
        if self.takes_whole_words
            && let Some(id) = vocabulary.id(text)
        {
            ids.push(id);
            return Ok(());
        }
        let plain = self.continuing_prefix.is_empty() && self.word_suffix.is_empty();
        // An unknown token that following unknown characters may join.
        let mut unknown = None;
        let mut spelt = String::new();
        // The character before the next symbol, if it can show whether a merge may cross the boundary.
        let mut before: Option<char> = None;
        for (at, character) in text.char_indices() {
            word.watch.step(1, ids.len())?;
            let end = at + character.len_utf8();
            let mut symbol = &text[at..end];
            if !plain {
                spelt.clear();
                spelt.push_str(if at > 0 { &self.continuing_prefix } else { "" });
                spelt.push_str(symbol);
                spelt.push_str(if end == text.len() { &self.word_suffix } else { "" });
                symbol = &spelt;
            }
            if let Some(id) = vocabulary.id(symbol) {
                unknown.take().into_iter().for_each(|id| word.push(id));
                // No token contains these two characters side by side, so no merge crosses the boundary.
                if before.is_some_and(|before| !self.neighbours.may_meet(before, character)) {
                    word.merge_into(&self.merges, vocabulary, ids)?;
                }
                word.push(id);
                before = plain.then_some(character);
                continue;
            }
            before = None;
            if let Some(tokens) = bytes_of(symbol, &self.byte_tokens) {
                // Bytes do not end a run of unknown characters: the reference implementation puts them before it.
                tokens.for_each(|id| word.push(id));
                continue;
            }
            if let Some(id) = self.unknown.token()?
                && let Some(earlier) = unknown.replace(id)
                && !self.fuses_unknown
            {
                word.push(earlier);
            }
        }
        unknown.into_iter().for_each(|id| word.push(id));
        word.merge_into(&self.merges, vocabulary, ids)
    }

    /// Memory of the tables.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.merges.memory_bytes() + self.neighbours.memory_bytes() + size_of_val(self.byte_tokens.as_slice())
    }
}

/// The byte tokens of a text, if each of its bytes has one.
pub(super) fn bytes_of<'a>(text: &'a str, byte_tokens: &'a [Option<u32>]) -> Option<impl Iterator<Item = u32> + 'a> {
    let token = |byte: u8| byte_tokens.get(usize::from(byte)).copied().flatten();
    let all = text.bytes().all(|byte| token(byte).is_some());
    all.then(|| text.bytes().filter_map(token))
}
