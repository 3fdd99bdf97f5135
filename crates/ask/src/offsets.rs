//! Finds the byte ranges of tokens in their text.

use std::collections::HashMap;
use std::ops::Range;

use riffle_model::{ModelError, Tokenizer};

/// Bytes to search for a token that is not at its expected position.
const SEARCHED_BYTES: usize = 64;
/// Bytes to search after many missed tokens in a row.
const MOST_SEARCHED_BYTES: usize = 4096;

/// The byte range in `text` of each of its `tokens`, ascending. Tokens without text, such as a begin token, have an
/// empty range.
pub(crate) fn offsets(tokenizer: &Tokenizer, text: &str, tokens: &[u32]) -> Result<Vec<Range<usize>>, ModelError> {
    let mut known: HashMap<u32, Vec<u8>> = HashMap::new();
    let bytes = text.as_bytes();
    let (mut at, mut missed) = (0, 0);
    let mut ranges = Vec::with_capacity(tokens.len());
    for token in tokens {
        let spelled = match known.entry(*token) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => entry.insert(tokenizer.token_bytes(*token)?),
        };
        let range = stands_at(bytes, at, spelled, missed, tokenizer.is_special(*token));
        missed = if range.is_empty() && !spelled.is_empty() {
            missed + 1
        } else {
            0
        };
        at = range.end;
        ranges.push(range);
    }
    Ok(ranges)
}

/// Finds the bytes of a token, from byte `at` on.
fn stands_at(text: &[u8], at: usize, token: &[u8], missed: usize, is_special: bool) -> Range<usize> {
    let rest = &text[at..];
    if rest.starts_with(token) {
        return at..at + token.len();
    }
    // Some tokenizers add a space before a text.
    let bare = token.strip_prefix(b" ").unwrap_or(token);
    if rest.starts_with(bare) {
        return at..at + bare.len();
    }
    if is_special || bare.is_empty() {
        return at..at;
    }
    // A normalizer has changed the text before this token, so the token is a little further on.
    let window = (SEARCHED_BYTES * (missed + 1)).min(MOST_SEARCHED_BYTES).min(rest.len());
    let found = rest[..window].windows(bare.len()).position(|window| window == bare);
    match found {
        Some(skipped) => at..at + skipped + bare.len(),
        None => at..at,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn tokens_of_the_shipped_model_stand_where_their_text_does() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/model");
        let tokenizer = riffle_model::load_tokenizer(model).unwrap().unwrap();
        let text = "The pass key for Größe 😀 is 48213.\n\n  Indented\ttext.";
        let tokens = tokenizer.encode(text, true).unwrap();
        let ranges = offsets(&tokenizer, text, &tokens).unwrap();
        assert_eq!(ranges[0], 0..0, "the token that begins a text");
        let joined: Vec<u8> = ranges
            .iter()
            .flat_map(|range| text.as_bytes()[range.clone()].to_vec())
            .collect();
        assert_eq!(joined, text.as_bytes());
    }

    #[test]
    fn a_changed_character_is_passed_over() {
        // Imitates a normalizer that replaces "ﬁ" with "fi".
        let text = "the ﬁsh swims".as_bytes();
        let mut at = 0;
        let mut ranges = Vec::new();
        for token in ["the", " fi", "sh", " swims"] {
            let range = stands_at(text, at, token.as_bytes(), 0, false);
            at = range.end;
            ranges.push(range);
        }
        assert_eq!(ranges, [0..3, 3..3, 3..9, 9..15]);
    }
}
