//! Tokens found in a text before it is split into words: special tokens and tokens added to a vocabulary.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, Input, MatchKind};
use fancy_regex::Regex;

/// An added token.
#[derive(Debug, Clone)]
pub(crate) struct AddedToken {
    pub(crate) id: u32,
    pub(crate) text: String,
    /// The normalised text, for tokens that are matched after the normalizer.
    pub(crate) normalized: Option<String>,
    /// True if the token matches only without adjacent letters or digits.
    pub(crate) single_word: bool,
    /// True if the token includes the spaces before its text.
    pub(crate) strips_left: bool,
    /// True if the token includes the spaces after its text.
    pub(crate) strips_right: bool,
    /// True if decoded text omits the token.
    pub(crate) special: bool,
    /// True for a token that controls a conversation. Literal text never becomes one.
    pub(crate) control: bool,
}

impl AddedToken {
    /// A token that matches anywhere in the original text.
    pub(crate) fn new(id: u32, text: String, special: bool) -> AddedToken {
        AddedToken {
            id,
            normalized: None,
            single_word: false,
            strips_left: false,
            strips_right: false,
            special,
            control: special || is_mark(&text),
            text,
        }
    }
}

/// All added tokens of a tokenizer.
#[derive(Debug, Clone)]
pub(crate) struct AddedTokens {
    by_id: HashMap<u32, AddedToken>,
    ids: HashMap<String, u32>,
    before: Option<Finder>,
    behind: Option<Finder>,
}

/// The tokens to match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Tokens matched in the original text.
    BeforeNormalizer,
    /// The matches of the normalized text.
    BehindNormalizer,
}

/// A part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddedPart<'a> {
    /// An added token.
    Token(u32),
    /// Text between added tokens, and its first byte.
    Text(&'a str, usize),
}

/// Finds the leftmost of several texts, and the longest there.
#[derive(Debug, Clone)]
struct Finder {
    automaton: AhoCorasick,
    ids: Vec<u32>,
    /// For each text, ids and lengths of other texts that are its prefixes, longest first.
    shorter: Vec<Vec<(u32, usize)>>,
}

static LETTER_OR_DIGIT: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"\A\w\z").ok());

impl AddedTokens {
    /// True if some token includes any number of adjacent spaces.
    pub(crate) fn take_in_spaces(&self) -> bool {
        self.by_id.values().any(|token| token.strips_left || token.strips_right)
    }

    /// Bytes of the longest token.
    pub(crate) fn longest_text(&self) -> Option<usize> {
        let lengths = |token: &AddedToken| token.text.len().max(token.normalized.as_ref().map_or(0, String::len));
        self.by_id.values().map(lengths).max()
    }

    /// A table of tokens; if several have the same text or id, the last one wins.
    pub(crate) fn new(tokens: Vec<AddedToken>) -> Result<AddedTokens, String> {
        let mut added = AddedTokens {
            by_id: HashMap::new(),
            ids: HashMap::new(),
            before: None,
            behind: None,
        };
        for token in tokens {
            added.ids.insert(token.text.clone(), token.id);
            added.by_id.insert(token.id, token);
        }
        // Tokens are sorted by id, so that the same file always gives the same tables.
        let mut wanted: Vec<&AddedToken> = added.ids.values().filter_map(|id| added.by_id.get(id)).collect();
        wanted.sort_unstable_by_key(|token| token.id);
        let (behind, before): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|token| token.normalized.is_some());
        added.before = Finder::new(before.iter().map(|token| (token.id, token.text.as_str())))?;
        added.behind = Finder::new(
            behind
                .iter()
                .filter_map(|token| Some((token.id, token.normalized.as_deref()?))),
        )?;
        Ok(added)
    }

    /// The tokens with ids below `count`.
    pub(crate) fn below(&self, count: usize) -> Result<AddedTokens, String> {
        let kept = self.by_id.values().filter(|token| (token.id as usize) < count);
        let mut kept: Vec<AddedToken> = kept.cloned().collect();
        // Of several tokens with the same text, the last one wins again.
        kept.sort_unstable_by_key(|token| (self.ids.get(&token.text) == Some(&token.id), token.id));
        AddedTokens::new(kept)
    }

    /// Splits `text` at the tokens of a stage. No control token may overlap one of the `literals`, byte ranges of
    /// `text`, ascending and disjoint.
    pub(crate) fn split<'a>(
        &self,
        text: &'a str,
        stage: Stage,
        literals: &[Range<usize>],
        mut part: impl FnMut(AddedPart<'a>) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut start = 0;
        let between = |from: usize, to: usize, part: &mut dyn FnMut(AddedPart<'a>) -> Result<(), String>| {
            if from < to {
                part(AddedPart::Text(&text[from..to], from))
            } else {
                Ok(())
            }
        };
        let mut at = 0;
        while let Some(found) = self.finder(stage).and_then(|finder| finder.next(text, at)) {
            let mut from = found.range.start;
            let Some((id, mut to)) = self.recognised(&found, literals) else {
                at = from + text[from..].chars().next().map_or(1, char::len_utf8);
                continue;
            };
            at = to;
            // A token before this one may have included its leading spaces.
            let (Some(token), true) = (self.by_id.get(&id), from >= start) else {
                continue;
            };
            if token.single_word && (ends_in_word(&text[..from]) || begins_with_word(&text[to..])) {
                continue;
            }
            if token.strips_left {
                from = text[..from].trim_end().len().max(start);
            }
            if token.strips_right {
                to = text.len() - text[to..].trim_start().len();
            }
            between(start, from, &mut part)?;
            part(AddedPart::Token(id))?;
            start = to;
        }
        between(start, text.len(), &mut part)
    }

    fn finder(&self, stage: Stage) -> Option<&Finder> {
        match stage {
            Stage::BeforeNormalizer => self.before.as_ref(),
            Stage::BehindNormalizer => self.behind.as_ref(),
        }
    }

    /// The longest recognised token at a match, and its end.
    fn recognised(&self, found: &Found<'_>, literals: &[Range<usize>]) -> Option<(u32, usize)> {
        let start = found.range.start;
        let shorter = found.shorter.iter().map(|(id, bytes)| (*id, start + bytes));
        let mut tokens = std::iter::once((found.id, found.range.end)).chain(shorter);
        tokens.find(|(id, end)| {
            let is_control = self.by_id.get(id).is_some_and(|token| token.control);
            !(is_control && touches(literals, start..*end))
        })
    }

    /// True if control tokens are matched after the normalizer.
    pub(crate) fn has_normalized_control(&self) -> bool {
        self.by_id
            .values()
            .any(|token| token.control && token.normalized.is_some())
    }

    /// Makes these tokens control tokens.
    pub(crate) fn make_control(&mut self, ids: &[u32]) {
        for id in ids {
            if let Some(token) = self.by_id.get_mut(id) {
                token.control = true;
            }
        }
    }

    /// Texts of the control tokens, in the order of their ids.
    pub(crate) fn control_texts(&self) -> Vec<String> {
        let mut tokens: Vec<&AddedToken> = self.by_id.values().filter(|token| token.control).collect();
        tokens.sort_unstable_by_key(|token| token.id);
        tokens.into_iter().map(|token| token.text.clone()).collect()
    }

    /// The id of a token by its exact text.
    pub(crate) fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    pub(crate) fn token(&self, id: u32) -> Option<&AddedToken> {
        self.by_id.get(&id)
    }

    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.by_id.get(&id).is_some_and(|token| token.special)
    }

    /// Highest id + 1.
    pub(crate) fn len(&self) -> usize {
        self.by_id.keys().max().map_or(0, |id| *id as usize + 1)
    }

    /// Approximate memory of the tables.
    pub(crate) fn memory_bytes(&self) -> usize {
        let texts: usize = self.ids.keys().map(String::len).sum();
        let finders = [&self.before, &self.behind].into_iter().flatten();
        let finders: usize = finders
            .map(|finder| finder.automaton.memory_usage() + 4 * finder.ids.len())
            .sum();
        finders + 2 * texts + self.by_id.capacity() * (size_of::<AddedToken>() + 2 * size_of::<String>())
    }
}

/// A match of a token's text.
struct Found<'f> {
    id: u32,
    range: Range<usize>,
    /// Ids and lengths of tokens that are its prefixes, longest first.
    shorter: &'f [(u32, usize)],
}

impl Finder {
    fn new<'a>(tokens: impl Iterator<Item = (u32, &'a str)>) -> Result<Option<Finder>, String> {
        let (ids, texts): (Vec<u32>, Vec<&str>) = tokens.filter(|(_, text)| !text.is_empty()).unzip();
        if ids.is_empty() {
            return Ok(None);
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(&texts)
            .map_err(|error| format!("its added tokens are too many or too long: {error}"))?;
        let by_text: HashMap<&str, u32> = texts.iter().copied().zip(ids.iter().copied()).collect();
        let shorter = texts.iter().map(|text| {
            let ends = text.char_indices().rev().map(|(end, _)| end).filter(|end| *end > 0);
            ends.filter_map(|end| Some((*by_text.get(&text[..end])?, end)))
                .collect()
        });
        Ok(Some(Finder {
            shorter: shorter.collect(),
            automaton,
            ids,
        }))
    }

    /// The first match from byte `at` on.
    fn next(&self, text: &str, at: usize) -> Option<Found<'_>> {
        let found = self.automaton.find(Input::new(text).range(at..))?;
        let number = found.pattern().as_usize();
        Some(Found {
            id: self.ids[number],
            range: found.range(),
            shorter: &self.shorter[number],
        })
    }
}

/// True if a range shares a byte with a literal, or contains an empty one.
fn touches(literals: &[Range<usize>], range: Range<usize>) -> bool {
    let next = literals.partition_point(|literal| literal.end <= range.start);
    literals.get(next).is_some_and(|literal| literal.start < range.end)
}

fn ends_in_word(text: &str) -> bool {
    text.chars().next_back().is_some_and(is_word_character)
}

fn begins_with_word(text: &str) -> bool {
    text.chars().next().is_some_and(is_word_character)
}

fn is_word_character(character: char) -> bool {
    let text = character.encode_utf8(&mut [0; 4]).to_owned();
    let pattern = LETTER_OR_DIGIT.as_ref();
    pattern.is_some_and(|pattern| pattern.is_match(&text).unwrap_or(false))
}

/// True if a token is spelt like a conversation's tag: `<|name|>`, `<｜name｜>`, `[NAME]`, `<start_of_name>`.
pub(crate) fn is_mark(text: &str) -> bool {
    let within = |before: &str, behind: &str| text.strip_prefix(before)?.strip_suffix(behind);
    let bracketed = within("[", "]").map(|name| name.strip_prefix('/').unwrap_or(name));
    let is_capital = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    within("<|", "|>").is_some()
        || within("<｜", "｜>").is_some()
        || matches!(text, "<start_of_turn>" | "<end_of_turn>" | "<s>" | "</s>")
        || bracketed
            .is_some_and(|name| name.starts_with(|c: char| c.is_ascii_uppercase()) && name.chars().all(is_capital))
}
