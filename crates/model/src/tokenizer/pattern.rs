//! Patterns to search for in texts, and splitting at their matches.

use std::ops::Range;

use fancy_regex::{Regex, RegexBuilder};
use serde::Deserialize;
use serde_json::Value;

/// Maximum number of backtracking steps of a regular expression per match: a thousand times the need of known
/// tokenizers' patterns for a word, and few enough to refuse a hostile one quickly.
const MOST_BACKTRACKS: usize = 1_000_000;
/// Maximum number of bytes of all regular expressions of a tokenizer together, and of the automaton of each part.
/// Patterns of known tokenizers have at most 700 bytes.
const MOST_PATTERN_BYTES: usize = 4096;
const LARGEST_AUTOMATON: usize = 2 << 20;

/// A pattern in tokenizer.json's form.
#[derive(Debug, Deserialize)]
pub(crate) enum PatternText {
    String(String),
    Regex(String),
}

/// A pattern to search for.
#[derive(Debug, Clone)]
pub(crate) enum Pattern {
    Text(String),
    Expression(Box<Regex>),
    Words(Box<WordExpression>),
    Character(fn(char) -> bool),
    Exactly(char),
    GroupsOfThree(Box<GroupsOfThree>),
}

/// Groups of three characters in numbers, counted from each number's end.
#[derive(Debug, Clone)]
pub(crate) struct GroupsOfThree {
    numbers: Regex,
    /// True if the remainder at the start of a number is a match too.
    with_shorter: bool,
}

/// A regular expression with the ending of nearly all byte-level tokenizers: of several spaces before a word, only
/// the last belongs to it. The look-ahead is removed from the expression, so that it runs as an automaton in linear
/// time.
#[derive(Debug, Clone)]
pub(crate) struct WordExpression {
    /// The alternatives before the lookahead, and a last one named `spaces`.
    regex: Regex,
    /// True if a single space before a word is a match.
    matches_single_space: bool,
}

/// Endings of word expressions, and whether a single space before a word is a match.
const ENDS_OF_WORD_EXPRESSIONS: [(&str, bool); 2] = [(r"|\s+(?!\S)|\s+", true), (r"|\s+(?!\S)", false)];

/// The treatment of matches when a pattern splits a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) enum Behavior {
    /// Matches are dropped.
    Removed,
    /// Each match is a separate piece.
    Isolated,
    /// Each match ends the piece before it.
    MergedWithPrevious,
    /// Each match begins the piece after it.
    MergedWithNext,
    /// Adjacent matches form one piece.
    Contiguous,
}

/// Receives the pieces of a text.
pub(crate) type PieceSink<'s> = dyn FnMut(Range<usize>) -> Result<(), String> + 's;

/// Refuses settings whose regular expressions are too long in total, before compilation.
pub(crate) fn check_length<'v>(settings: impl Iterator<Item = &'v Value>) -> Result<(), String> {
    let bytes: usize = settings.map(expression_bytes).sum();
    if bytes <= MOST_PATTERN_BYTES {
        Ok(())
    } else {
        Err(format!(
            "its regular expressions have {bytes} bytes, {MOST_PATTERN_BYTES} is the limit"
        ))
    }
}

fn expression_bytes(settings: &Value) -> usize {
    match settings {
        Value::Array(items) => items.iter().map(expression_bytes).sum(),
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| match value {
                Value::String(text) if name == "Regex" => text.len(),
                value => expression_bytes(value),
            })
            .sum(),
        _ => 0,
    }
}

impl PatternText {
    /// The pattern, compiled.
    pub(crate) fn compile(self) -> Result<Pattern, String> {
        match self {
            PatternText::String(text) | PatternText::Regex(text) if text.is_empty() => Err("a pattern is empty".into()),
            PatternText::String(text) => Ok(Pattern::Text(text)),
            PatternText::Regex(text) => Pattern::expression(&text),
        }
    }
}

impl Pattern {
    /// Compiles a regular expression.
    pub(crate) fn expression(pattern: &str) -> Result<Pattern, String> {
        let ends = ENDS_OF_WORD_EXPRESSIONS.iter();
        let known = ends
            .filter_map(|(end, single)| Some((pattern.strip_suffix(end)?, *single)))
            .next();
        // Expressions with other look-around stay unchanged.
        if let Some((words, matches_single_space)) = known.filter(|(words, _)| !looks_around(words)) {
            let regex = compile(&format!(r"{words}|(?P<spaces>\s+)"))?;
            return Ok(Pattern::Words(Box::new(WordExpression {
                regex,
                matches_single_space,
            })));
        }
        Ok(Pattern::Expression(Box::new(compile(pattern)?)))
    }

    /// Groups of three characters in the matches of `numbers`, counted from each match's end; with the flag, a
    /// shorter first group too. A match with a capture group is not a number.
    pub(crate) fn groups_of_three(numbers: &str, with_shorter: bool) -> Result<Pattern, String> {
        let numbers = compile(numbers)?;
        Ok(Pattern::GroupsOfThree(Box::new(GroupsOfThree {
            numbers,
            with_shorter,
        })))
    }

    /// Lower bound of a match's bytes; 0 if a match may be empty or nothing is known.
    pub(crate) fn shortest_match(&self) -> usize {
        match self {
            Pattern::Text(text) => text.len(),
            Pattern::Exactly(character) => character.len_utf8(),
            Pattern::Character(_) | Pattern::GroupsOfThree(_) => 1,
            Pattern::Expression(_) | Pattern::Words(_) => 0,
        }
    }

    /// Calls `found` with every match, from left to right.
    pub(crate) fn find(
        &self,
        text: &str,
        mut found: impl FnMut(Range<usize>) -> Result<(), String>,
    ) -> Result<(), String> {
        match self {
            Pattern::Text(wanted) => text
                .match_indices(wanted.as_str())
                .try_for_each(|(at, wanted)| found(at..at + wanted.len())),
            Pattern::Exactly(wanted) => text
                .match_indices(*wanted)
                .try_for_each(|(at, wanted)| found(at..at + wanted.len())),
            Pattern::Character(wanted) => text
                .match_indices(*wanted)
                .try_for_each(|(at, wanted)| found(at..at + wanted.len())),
            Pattern::Expression(regex) => regex
                .find_iter(text)
                .try_for_each(|result| found(result.map_err(cannot_cut)?.range())),
            Pattern::Words(words) => words.find(text, found),
            Pattern::GroupsOfThree(groups) => groups.find(text, found),
        }
    }

    /// Splits `text` at the matches, or between them with `inverted`; empty pieces are dropped.
    pub(crate) fn cut(
        &self,
        text: &str,
        behavior: Behavior,
        inverted: bool,
        piece: &mut PieceSink<'_>,
    ) -> Result<(), String> {
        let mut joiner = Joiner {
            behavior,
            waiting: None,
            matched_before: false,
            piece,
        };
        let mut end = 0;
        self.find(text, |found| {
            if end < found.start {
                joiner.take(end..found.start, inverted)?;
            }
            end = found.end;
            joiner.take(found, !inverted)
        })?;
        if end < text.len() {
            joiner.take(end..text.len(), inverted)?;
        }
        joiner.finish()
    }
}

fn compile(pattern: &str) -> Result<Regex, String> {
    let regex = RegexBuilder::new(pattern)
        .backtrack_limit(MOST_BACKTRACKS)
        .delegate_size_limit(LARGEST_AUTOMATON)
        .build();
    regex.map_err(|error| format!("pattern {pattern:?} is not a usable regular expression: {error}"))
}

fn cannot_cut(error: fancy_regex::Error) -> String {
    format!("a pattern of the tokenizer cannot cut this text: {error}")
}

fn looks_around(pattern: &str) -> bool {
    let refers = |pair: &[u8]| pair[0] == b'\\' && matches!(pair[1], b'1'..=b'9' | b'g' | b'k' | b'G' | b'K');
    let groups = ["(?=", "(?!", "(?<", "(?>", "(?P", "(?("];
    groups.iter().any(|group| pattern.contains(group)) || pattern.as_bytes().windows(2).any(refers)
}

impl GroupsOfThree {
    fn find(&self, text: &str, mut found: impl FnMut(Range<usize>) -> Result<(), String>) -> Result<(), String> {
        for number in self.numbers.captures_iter(text) {
            let number = number.map_err(cannot_cut)?;
            let Some(number) = number.get(0).filter(|_| number.get(1).is_none()) else {
                continue;
            };
            let number = number.range();
            let starts = text[number.clone()].char_indices().map(|(at, _)| number.start + at);
            let shorter = starts.clone().count() % 3;
            let mut from = number.start;
            for (place, start) in starts.chain([number.end]).enumerate().skip(1) {
                if place == shorter && !self.with_shorter {
                    from = start;
                } else if place % 3 == shorter {
                    found(from..start)?;
                    from = start;
                }
            }
        }
        Ok(())
    }
}

impl WordExpression {
    fn find(&self, text: &str, mut found: impl FnMut(Range<usize>) -> Result<(), String>) -> Result<(), String> {
        let mut from = 0;
        while let Some(range) = self
            .regex
            .find_from_pos(text, from)
            .map_err(cannot_cut)?
            .map(|found| found.range())
        {
            let matched = &text[range.clone()];
            let last = matched.chars().next_back().map_or(0, char::len_utf8);
            let before_word = range.end < text.len() && matched.chars().all(char::is_whitespace);
            if last == 0 {
                // After an empty match the next search begins one character later.
                found(range.clone())?;
                let Some(skipped) = text[range.end..].chars().next() else {
                    return Ok(());
                };
                from = range.end + skipped.len_utf8();
            } else if !before_word || !self.are_spaces(text, range.start)? {
                from = range.end;
                found(range)?;
            } else if range.len() > last {
                // The last space belongs to the next word.
                from = range.end - last;
                found(range.start..from)?;
            } else {
                from = range.end;
                if self.matches_single_space {
                    found(range)?;
                }
            }
        }
        Ok(())
    }

    /// True if the match at `start` is of the last alternative.
    fn are_spaces(&self, text: &str, start: usize) -> Result<bool, String> {
        let groups = self.regex.captures_from_pos(text, start).map_err(cannot_cut)?;
        Ok(groups.is_some_and(|groups| groups.name("spaces").is_some()))
    }
}

/// Joins matches with adjacent text.
struct Joiner<'p, 's> {
    behavior: Behavior,
    /// The last piece, which the next range may still join.
    waiting: Option<Range<usize>>,
    matched_before: bool,
    piece: &'p mut PieceSink<'s>,
}

impl Joiner<'_, '_> {
    fn take(&mut self, range: Range<usize>, matched: bool) -> Result<(), String> {
        let joins = match self.behavior {
            Behavior::Removed if matched => return Ok(()),
            Behavior::Removed | Behavior::Isolated => return self.emit(range),
            Behavior::Contiguous => matched == self.matched_before,
            Behavior::MergedWithPrevious => matched && !self.matched_before,
            Behavior::MergedWithNext => !matched && self.matched_before,
        };
        self.matched_before = matched;
        match &mut self.waiting {
            Some(waiting) if joins => waiting.end = range.end,
            _ => {
                self.finish()?;
                self.waiting = Some(range);
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), String> {
        self.waiting.take().map_or(Ok(()), |range| self.emit(range))
    }

    fn emit(&mut self, range: Range<usize>) -> Result<(), String> {
        if range.is_empty() { Ok(()) } else { (self.piece)(range) }
    }
}
