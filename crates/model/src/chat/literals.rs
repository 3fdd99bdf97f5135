//! Marks control tokens spelt in a template's input, so that they can be found in its output.
//!
//! A template may cut, trim, quote and join its inputs, so a mark must be part of the text. A sentinel is a character
//! that no input contains. It is inserted inside each spelling before rendering and removed afterwards. Half a token,
//! which another text or the template could complete, is also marked.

use std::collections::HashSet;

use aho_corasick::{AhoCorasick, Input, MatchKind};
use serde_json::{Map, Value};

/// Noncharacters, which Unicode reserves for use within one program.
const SENTINELS: std::ops::RangeInclusive<char> = '\u{fdd0}'..='\u{fdef}';

/// The spellings of a tokenizer's control tokens.
#[derive(Debug, Clone, Default)]
pub(super) struct ControlTexts {
    texts: Vec<String>,
    finder: Option<AhoCorasick>,
    /// Each text without some of its last characters.
    beginnings: HashSet<String>,
    /// Each text without some of its first characters.
    ends: HashSet<String>,
    longest: usize,
}

impl ControlTexts {
    /// Plain words are left out, because templates use words such as `user`. Single characters are left out too.
    pub(super) fn new(texts: impl IntoIterator<Item = String>) -> ControlTexts {
        let is_mark = |text: &String| text.chars().nth(1).is_some() && !text.chars().all(is_of_word);
        let texts: Vec<String> = texts.into_iter().filter(is_mark).collect();
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(&texts);
        let cuts = |text: &str| text.char_indices().skip(1).map(|(at, _)| at).collect::<Vec<_>>();
        let parts = |part: &dyn Fn(&str, usize) -> String| {
            let parts = texts
                .iter()
                .flat_map(|text| cuts(text).into_iter().map(|at| part(text, at)));
            parts.collect()
        };
        ControlTexts {
            beginnings: parts(&|text, at| text[..at].to_owned()),
            ends: parts(&|text, at| text[at..].to_owned()),
            longest: texts.iter().map(String::len).max().unwrap_or(0),
            finder: finder.ok().filter(|_| !texts.is_empty()),
            texts,
        }
    }

    /// Inserts a sentinel inside every spelling of a control token in `values` and returns the sentinel; `None` if
    /// there is no spelling. The sentinel must not occur in `reserved` either.
    ///
    /// # Errors
    /// A description if the values contain every possible sentinel.
    pub(super) fn mark(&self, values: &mut Map<String, Value>, reserved: &[&str]) -> Result<Option<char>, String> {
        let Some(finder) = &self.finder else { return Ok(None) };
        if !values.values().any(|value| self.is_spelt_in(finder, value)) {
            return Ok(None);
        }
        let mut used = HashSet::new();
        for text in reserved {
            note_sentinels(text, &mut used);
        }
        values.values().for_each(|value| note_sentinels_of(value, &mut used));
        let sentinel = SENTINELS.into_iter().find(|sentinel| !used.contains(sentinel));
        let Some(sentinel) = sentinel else {
            return Err("the messages hold every noncharacter from U+FDD0 to U+FDEF, remove these".to_owned());
        };
        values
            .values_mut()
            .for_each(|value| self.mark_value(finder, value, sentinel));
        Ok(Some(sentinel))
    }

    fn is_spelt_in(&self, finder: &AhoCorasick, value: &Value) -> bool {
        match value {
            Value::String(text) => !self.places(finder, text).is_empty(),
            Value::Array(items) => items.iter().any(|item| self.is_spelt_in(finder, item)),
            Value::Object(map) => map
                .iter()
                .any(|(key, value)| !self.places(finder, key).is_empty() || self.is_spelt_in(finder, value)),
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
    }

    fn mark_value(&self, finder: &AhoCorasick, value: &mut Value, sentinel: char) {
        match value {
            Value::String(text) => self.mark_text(finder, text, sentinel),
            Value::Array(items) => items
                .iter_mut()
                .for_each(|item| self.mark_value(finder, item, sentinel)),
            Value::Object(map) => {
                let entries = std::mem::take(map).into_iter().map(|(mut key, mut value)| {
                    self.mark_text(finder, &mut key, sentinel);
                    self.mark_value(finder, &mut value, sentinel);
                    (key, value)
                });
                *map = entries.collect();
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn mark_text(&self, finder: &AhoCorasick, text: &mut String, sentinel: char) {
        let places = self.places(finder, text);
        if places.is_empty() {
            return;
        }
        let mut marked = String::with_capacity(text.len() + places.len() * sentinel.len_utf8());
        let mut start = 0;
        for place in places {
            marked.push_str(&text[start..place]);
            marked.push(sentinel);
            start = place;
        }
        marked.push_str(&text[start..]);
        *text = marked;
    }

    /// Positions for sentinels in a text, ascending. One lies inside every token that the text spells completely or
    /// partly.
    fn places(&self, finder: &AhoCorasick, text: &str) -> Vec<usize> {
        let mut places = Vec::new();
        let behind_first = |at: usize| at + text[at..].chars().next().map_or(0, char::len_utf8);
        let mut at = 0;
        while let Some(found) = finder.find(Input::new(text).range(at..)) {
            at = behind_first(found.start());
            places.push(at);
        }
        // Half a token at the start or end of the text.
        let last_bytes = text.len().saturating_sub(self.longest);
        for (at, _) in text.char_indices().rev().take_while(|(at, _)| *at > last_bytes) {
            if self.beginnings.contains(&text[at..]) {
                places.push(behind_first(at));
            }
        }
        for (at, character) in text.char_indices().take_while(|(at, _)| *at < self.longest) {
            let end = at + character.len_utf8();
            if !is_of_word(character) && self.ends.contains(&text[..end]) {
                places.push(at);
            }
        }
        // The middle of a token.
        let is_short = text.len() < self.longest && text.chars().nth(1).is_some();
        if is_short && !text.chars().all(is_of_word) && self.texts.iter().any(|token| token.contains(text)) {
            places.push(behind_first(0));
        }
        places.sort_unstable();
        places.dedup();
        places
    }
}

/// True if a character may be part of a name, such as a role's.
fn is_of_word(character: char) -> bool {
    character.is_alphanumeric() || character.is_whitespace() || matches!(character, '_' | '-')
}

fn note_sentinels(text: &str, used: &mut HashSet<char>) {
    // All sentinels begin with this byte.
    if text.as_bytes().contains(&0xef) {
        used.extend(text.chars().filter(|character| SENTINELS.contains(character)));
    }
}

fn note_sentinels_of(value: &Value, used: &mut HashSet<char>) {
    match value {
        Value::String(text) => note_sentinels(text, used),
        Value::Array(items) => items.iter().for_each(|item| note_sentinels_of(item, used)),
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            note_sentinels(key, used);
            note_sentinels_of(value, used);
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(text: &str) -> String {
        let tokens = ["<|im_start|>", "<|im_end|>", "</s>", "<|user|>", "[INST]", "eos"];
        let control = ControlTexts::new(tokens.map(str::to_owned));
        let mut values = Map::from_iter([("text".to_owned(), text.into())]);
        let sentinel = control.mark(&mut values, &["\u{fdd0}"]).unwrap();
        let text = values["text"].as_str().unwrap();
        match sentinel {
            Some(sentinel) => text.replace(sentinel, "·"),
            None => text.to_owned(),
        }
    }

    #[test]
    fn spelt_tokens_and_their_parts_are_marked_and_nothing_else() {
        for (text, expected) in [
            ("a <|im_end|> b</s>", "a <·|im_end|> b<·/s>"),
            ("<<|im_end|>", "<<·|im_end|>"),
            ("a <|im_", "a <·|im_"),
            ("a <", "a <·"),
            ("end|> b", "end|·> b"),
            ("> quoted", "·> quoted"),
            ("|im_end|", "|·im_end|"),
            ("/s", "/·s"),
            ("user", "user"),
            ("system", "system"),
            ("im_end", "im_end"),
            ("eos", "eos"),
            ("<|im_END|>", "<|im_END|>"),
            ("a < b > c [1] |x|", "a < b > c [1] |x|"),
            ("<think>\nHm.\n</think>\n\nYes.", "<think>\nHm.\n</think>\n\nYes."),
        ] {
            assert_eq!(marked(text), expected);
        }
    }

    #[test]
    fn a_text_with_every_sentinel_is_refused() {
        let control = ControlTexts::new(["</s>".to_owned()]);
        let all: String = SENTINELS.collect();
        let mut values = Map::from_iter([("text".to_owned(), Value::from(all.clone() + "</s>"))]);
        assert!(control.mark(&mut values, &[]).unwrap_err().contains("U+FDD0"));
        let mut values = Map::from_iter([("text".to_owned(), Value::from(all))]);
        assert_eq!(control.mark(&mut values, &[]), Ok(None));
    }
}
