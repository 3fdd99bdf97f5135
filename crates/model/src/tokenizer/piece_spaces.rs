//! SentencePiece's changes of a text before splitting: replacements of characters, and spaces.

use aho_corasick::{AhoCorasick, Input, MatchKind};

use super::charsmap::CharacterMap;
use super::growth::Bounded;

/// Represents a space in pieces.
pub(crate) const SPACE_PIECE: &str = "▁";

/// The changes, made in one pass.
#[derive(Debug, Clone, Default)]
pub(crate) struct PieceSpaces {
    pub(crate) map: Option<CharacterMap>,
    /// Symbols that replacements leave alone.
    pub(crate) kept: Option<AhoCorasick>,
    /// True to add a space before a text, or after it with `at_end`.
    pub(crate) adds_space: bool,
    pub(crate) at_end: bool,
    /// True to remove spaces at both ends and to collapse repeated ones.
    pub(crate) removes_extra: bool,
    /// Spaces become `▁`.
    pub(crate) escapes: bool,
}

/// Finds symbols, the longest at each position.
pub(crate) fn finder_of(symbols: &[&str]) -> Result<Option<AhoCorasick>, String> {
    if symbols.is_empty() {
        return Ok(None);
    }
    let finder = AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .build(symbols);
    finder
        .map(Some)
        .map_err(|error| format!("its symbols are too many or too long: {error}"))
}

impl PieceSpaces {
    /// Upper bound of the ratio of output to input length.
    pub(crate) fn growth(&self) -> f64 {
        if self.map.is_some() { 33.0 } else { 3.0 }
    }

    /// Appends the changed text to `output`.
    pub(crate) fn apply(&self, text: &str, output: &mut Bounded) -> Result<(), String> {
        let space = if self.escapes { SPACE_PIECE } else { " " };
        let mut parts = self.parts(text).peekable();
        if self.removes_extra {
            while parts.next_if_eq(&" ").is_some() {}
        }
        if parts.peek().is_none() {
            return Ok(());
        }
        if self.adds_space && !self.at_end {
            output.push(space)?;
        }
        let mut is_behind_space = self.removes_extra;
        for part in parts {
            let part = if is_behind_space {
                part.trim_start_matches(' ')
            } else {
                part
            };
            let mut words = part.split(' ');
            output.push(words.next().unwrap_or_default())?;
            for word in words {
                output.push(space)?;
                output.push(word)?;
            }
            is_behind_space = self.removes_extra && (part.ends_with(' ') || (part.is_empty() && is_behind_space));
        }
        if self.removes_extra {
            output.trim_end(space);
        }
        if self.adds_space && self.at_end {
            output.push(space)?;
        }
        Ok(())
    }

    /// The text in parts: kept symbols, replacements and single characters.
    fn parts<'t>(&'t self, text: &'t str) -> impl Iterator<Item = &'t str> {
        let mut at = 0;
        let find = move |at: usize| Some(self.kept.as_ref()?.find(Input::new(text).range(at..))?.range());
        let mut kept = find(0);
        std::iter::from_fn(move || {
            let rest = text.get(at..).filter(|rest| !rest.is_empty())?;
            if kept.as_ref().is_some_and(|kept| kept.start < at) {
                kept = find(at);
            }
            if let Some(kept) = kept.clone().filter(|kept| kept.start == at) {
                at = kept.end;
                return text.get(kept);
            }
            if let Some((bytes, replacement)) = self.map.as_ref().and_then(|map| map.longest(rest)) {
                at += bytes;
                return Some(replacement);
            }
            let character = rest.chars().next().map_or(1, char::len_utf8);
            at += character;
            rest.get(..character)
        })
    }
}
