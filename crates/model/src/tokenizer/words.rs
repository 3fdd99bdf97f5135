//! Vocabularies of whole words, and of words split from the left into the longest pieces.

use super::byte_pairs::Unknown;
use super::vocabulary::Vocabulary;

/// WordPiece: the longest token at the start of a word, then the longest that continues it.
#[derive(Debug, Clone)]
pub(crate) struct WordPieces {
    pub(crate) unknown: Unknown,
    /// Prefix of every piece of a word except the first.
    pub(crate) continuing_prefix: String,
    /// Words of more characters are unknown.
    pub(crate) longest_word: usize,
    /// Bytes of the longest token.
    pub(crate) longest_piece: usize,
}

impl WordPieces {
    /// Appends the tokens of a word to `ids`.
    pub(crate) fn encode(&self, word: &str, vocabulary: &Vocabulary, ids: &mut Vec<u32>) -> Result<(), String> {
        let known = ids.len();
        let mut start = 0;
        let mut piece = String::new();
        let cut = word.chars().nth(self.longest_word).is_none();
        while cut && start < word.len() {
            let prefix = if start > 0 { self.continuing_prefix.as_str() } else { "" };
            let longest = word.len().min(start + self.longest_piece.saturating_sub(prefix.len()));
            let ends = (start + 1..=longest).rev().filter(|end| word.is_char_boundary(*end));
            let found = ends.into_iter().find_map(|end| {
                piece.clear();
                piece.push_str(prefix);
                piece.push_str(&word[start..end]);
                Some((vocabulary.id(&piece)?, end))
            });
            let Some((id, end)) = found else { break };
            ids.push(id);
            start = end;
        }
        if start < word.len() {
            ids.truncate(known);
            ids.push(unknown_word(&self.unknown)?);
        }
        Ok(())
    }
}

/// WordLevel: each word is a token or unknown.
pub(crate) fn encode_whole(
    word: &str,
    unknown: &Unknown,
    vocabulary: &Vocabulary,
    ids: &mut Vec<u32>,
) -> Result<(), String> {
    ids.push(match vocabulary.id(word) {
        Some(id) => id,
        None => unknown_word(unknown)?,
    });
    Ok(())
}

fn unknown_word(unknown: &Unknown) -> Result<u32, String> {
    unknown
        .token()?
        .ok_or_else(|| "the text holds a word that is no token".to_owned())
}
