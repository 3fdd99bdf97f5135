//! Tokens that are found in a text before it is cut into words: special tokens and tokens added to a vocabulary.

use std::collections::HashMap;
use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, MatchKind};
use fancy_regex::Regex;

/// An added token.
#[derive(Debug, Clone)]
pub(crate) struct AddedToken {
    pub(crate) id: u32,
    pub(crate) text: String,
    /// The text as the normalizer leaves it, for tokens that are looked for behind the normalizer.
    pub(crate) normalized: Option<String>,
    /// Whether it is found only where no letter or digit stands beside it.
    pub(crate) single_word: bool,
    /// Whether it takes in the spaces before it.
    pub(crate) strips_left: bool,
    /// Whether it takes in the spaces behind it.
    pub(crate) strips_right: bool,
    /// Whether decoded text leaves it out.
    pub(crate) special: bool,
}

/// All added tokens of a tokenizer.
#[derive(Debug, Clone)]
pub(crate) struct AddedTokens {
    by_id: HashMap<u32, AddedToken>,
    ids: HashMap<String, u32>,
    before: Option<Finder>,
    behind: Option<Finder>,
}

/// Which of the tokens are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Those of the text as it is.
    BeforeNormalizer,
    /// Those of the normalized text.
    BehindNormalizer,
}

/// A part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part<'a> {
    /// An added token.
    Token(u32),
    /// Text between added tokens, and whether it is where the text begins.
    Text(&'a str, bool),
}

/// Finds the leftmost and there the longest of several texts.
#[derive(Debug, Clone)]
struct Finder {
    automaton: AhoCorasick,
    ids: Vec<u32>,
}

static LETTER_OR_DIGIT: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"\A\w\z").ok());

impl AddedTokens {
    /// The tokens; where several have one text or id, the last one counts.
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
        // In the order of ids, so that the same file always makes the same tables.
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

    /// Cuts `text` at the tokens of a stage.
    pub(crate) fn split<'a>(
        &self,
        text: &'a str,
        stage: Stage,
        mut part: impl FnMut(Part<'a>) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut start = 0;
        let between = |from: usize, to: usize, part: &mut dyn FnMut(Part<'a>) -> Result<(), String>| match from < to {
            true => part(Part::Text(&text[from..to], from == 0)),
            false => Ok(()),
        };
        let finder = match stage {
            Stage::BeforeNormalizer => &self.before,
            Stage::BehindNormalizer => &self.behind,
        };
        let matches = finder.iter().flat_map(|finder| {
            let found = finder.automaton.find_iter(text);
            found.map(|found| (finder.ids[found.pattern().as_usize()], found.start(), found.end()))
        });
        for (id, mut from, mut to) in matches {
            // A token before this one may have taken in the spaces that it begins with.
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
            part(Part::Token(id))?;
            start = to;
        }
        between(start, text.len(), &mut part)
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

    /// Memory the tables take, about.
    pub(crate) fn memory_bytes(&self) -> usize {
        let texts: usize = self.ids.keys().map(String::len).sum();
        let finders = [&self.before, &self.behind].into_iter().flatten();
        let finders: usize = finders
            .map(|finder| finder.automaton.memory_usage() + 4 * finder.ids.len())
            .sum();
        finders + 2 * texts + self.by_id.capacity() * (size_of::<AddedToken>() + 2 * size_of::<String>())
    }
}

impl Finder {
    fn new<'a>(tokens: impl Iterator<Item = (u32, &'a str)>) -> Result<Option<Finder>, String> {
        let (ids, texts): (Vec<u32>, Vec<&str>) = tokens.filter(|(_, text)| !text.is_empty()).unzip();
        if ids.is_empty() {
            return Ok(None);
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(texts)
            .map_err(|error| format!("its added tokens are too many or too long: {error}"))?;
        Ok(Some(Finder { automaton, ids }))
    }
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
