//! Splits a text into words before a model turns them into tokens.

use serde::Deserialize;
use serde_json::Value;
use unicode_categories::UnicodeCategories;

use super::byte_level::push_bytes;
use super::growth::{self, MOST_STEPS};
use super::pattern::{Behavior, Pattern, PatternText};

/// The words of GPT-2.
pub(crate) const GPT2_WORDS: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Runs of letters and digits, and runs of everything else but spaces.
const WORDS_AND_SIGNS: &str = r"\w+|[^\w\s]+";

/// The steps of a pre-tokenizer, in order. Each splits the pieces of the one before.
#[derive(Debug, Clone, Default)]
pub(crate) struct PreTokenizer {
    steps: Vec<Cut>,
}

/// A step.
#[derive(Debug, Clone)]
pub(crate) enum Cut {
    /// Splits at the matches of a pattern; `inverted` swaps matches and the text between.
    Split {
        pattern: Pattern,
        behavior: Behavior,
        inverted: bool,
    },
    /// Adds a space before texts that do not start with one.
    PrefixSpace,
    /// Maps bytes to printable characters.
    Bytes,
    /// Replaces spaces by another character, which `prepend` adds before texts.
    Spaces { replacement: char, prepend: Prepend },
    /// Splits into pieces of this many characters.
    FixedLength(usize),
}

/// Which texts get a leading character for spaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Prepend {
    /// Only at the start of the whole text.
    First,
    /// None.
    Never,
    /// Every text between two added tokens.
    Always,
}

/// A pre-tokenizer in tokenizer.json's form.
#[derive(Deserialize)]
#[serde(tag = "type")]
enum PreTokenizerText {
    BertPreTokenizer,
    ByteLevel {
        add_prefix_space: bool,
        #[serde(default = "yes")]
        use_regex: bool,
    },
    #[serde(alias = "CharDelimiterSplit")]
    Delimiter {
        delimiter: char,
    },
    Metaspace {
        replacement: char,
        add_prefix_space: Option<bool>,
        prepend_scheme: Option<Prepend>,
        split: Option<bool>,
    },
    Whitespace,
    Sequence {
        pretokenizers: Vec<PreTokenizerText>,
    },
    Split {
        pattern: PatternText,
        behavior: Behavior,
        #[serde(default)]
        invert: bool,
    },
    Punctuation {
        #[serde(default = "isolated")]
        behavior: Behavior,
    },
    WhitespaceSplit,
    Digits {
        individual_digits: bool,
    },
    FixedLength {
        #[serde(default = "five")]
        length: usize,
    },
}

fn yes() -> bool {
    true
}

fn isolated() -> Behavior {
    Behavior::Isolated
}

fn five() -> usize {
    5
}

impl Cut {
    /// Each match of a pattern is a word, and so is the text between two matches.
    pub(crate) fn isolated(pattern: Pattern) -> Cut {
        Cut::Split {
            pattern,
            behavior: Behavior::Isolated,
            inverted: false,
        }
    }

    /// Pieces at the matches of a pattern.
    pub(crate) fn split(pattern: Pattern, behavior: Behavior) -> Cut {
        Cut::Split {
            pattern,
            behavior,
            inverted: false,
        }
    }

    /// Upper bound of the ratio of output to input length.
    fn growth(&self) -> f64 {
        match self {
            Cut::Split { .. } | Cut::FixedLength(_) => 1.0,
            Cut::PrefixSpace => 1.1,
            Cut::Bytes => 2.0,
            Cut::Spaces { replacement, .. } => replacement.len_utf8() as f64,
        }
    }
}

impl PreTokenizer {
    /// True if no text is dropped.
    pub(crate) fn keeps_text(&self) -> bool {
        let removes = |step: &Cut| {
            matches!(
                step,
                Cut::Split {
                    behavior: Behavior::Removed,
                    ..
                }
            )
        };
        !self.steps.iter().any(removes)
    }

    /// True if bytes become separate characters.
    pub(crate) fn spells_bytes(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Cut::Bytes))
    }

    /// The pre-tokenizer of a tokenizer.json.
    pub(crate) fn from_json(value: Option<Value>) -> Result<PreTokenizer, String> {
        let mut steps = Vec::new();
        if let Some(value) = value {
            let text: PreTokenizerText =
                serde_json::from_value(value).map_err(|error| format!("pre_tokenizer: {error}"))?;
            text.push_steps(&mut steps)?;
        }
        PreTokenizer::new(steps)
    }

    /// A pre-tokenizer of these steps.
    pub(crate) fn new(steps: Vec<Cut>) -> Result<PreTokenizer, String> {
        growth::check("pre_tokenizer", steps.iter().map(Cut::growth))?;
        Ok(PreTokenizer { steps })
    }

    /// Calls `word` with the words of `text`, from left to right; `at_start` is true at the start of the whole text.
    pub(crate) fn cut(
        &self,
        text: &str,
        at_start: bool,
        word: &mut dyn FnMut(&str) -> Result<(), String>,
    ) -> Result<(), String> {
        cut(&self.steps, text, at_start, word)
    }
}

fn cut(
    steps: &[Cut],
    text: &str,
    at_start: bool,
    word: &mut dyn FnMut(&str) -> Result<(), String>,
) -> Result<(), String> {
    let Some((step, rest)) = steps.split_first() else {
        return if text.is_empty() { Ok(()) } else { word(text) };
    };
    match step {
        Cut::Split {
            pattern,
            behavior,
            inverted,
        } => pattern.cut(text, *behavior, *inverted, &mut |range| {
            cut(rest, &text[range.clone()], at_start && range.start == 0, word)
        }),
        Cut::PrefixSpace if text.starts_with(' ') => cut(rest, text, at_start, word),
        Cut::PrefixSpace => cut(rest, &format!(" {text}"), at_start, word),
        Cut::Bytes => {
            let mut bytes = String::with_capacity(text.len() + text.len() / 4);
            push_bytes(text, &mut bytes);
            cut(rest, &bytes, at_start, word)
        }
        Cut::Spaces { replacement, prepend } => {
            let mut spaced = String::with_capacity(text.len() + text.len() / 2 + replacement.len_utf8());
            let wanted = match prepend {
                Prepend::Always => true,
                Prepend::First => at_start,
                Prepend::Never => false,
            };
            if wanted && !text.starts_with(' ') && !text.starts_with(*replacement) {
                spaced.push(*replacement);
            }
            spaced.extend(text.chars().map(|c| if c == ' ' { *replacement } else { c }));
            cut(rest, &spaced, at_start, word)
        }
        Cut::FixedLength(length) => {
            let mut left = text;
            while !left.is_empty() {
                let end = left.char_indices().nth(*length).map_or(left.len(), |(end, _)| end);
                cut(rest, &left[..end], at_start && left.len() == text.len(), word)?;
                left = &left[end..];
            }
            Ok(())
        }
    }
}

impl PreTokenizerText {
    fn push_steps(self, steps: &mut Vec<Cut>) -> Result<(), String> {
        if steps.len() > MOST_STEPS {
            return Ok(());
        }
        let spaces = Pattern::Character(char::is_whitespace);
        match self {
            PreTokenizerText::BertPreTokenizer => steps.extend([
                Cut::split(spaces, Behavior::Removed),
                Cut::isolated(Pattern::Character(is_punctuation)),
            ]),
            PreTokenizerText::ByteLevel {
                add_prefix_space,
                use_regex,
            } => push_byte_level(steps, add_prefix_space, use_regex)?,
            PreTokenizerText::Delimiter { delimiter } => {
                steps.push(Cut::split(Pattern::Exactly(delimiter), Behavior::Removed));
            }
            PreTokenizerText::Metaspace {
                replacement,
                add_prefix_space,
                prepend_scheme,
                split,
            } => {
                let prepend = prepend(add_prefix_space, prepend_scheme)?;
                steps.push(Cut::Spaces { replacement, prepend });
                let words = Cut::split(Pattern::Exactly(replacement), Behavior::MergedWithNext);
                steps.extend(split.unwrap_or(true).then_some(words));
            }
            PreTokenizerText::Whitespace => steps.push(Cut::Split {
                pattern: Pattern::expression(WORDS_AND_SIGNS)?,
                behavior: Behavior::Removed,
                inverted: true,
            }),
            PreTokenizerText::Sequence { pretokenizers } => {
                pretokenizers.into_iter().try_for_each(|step| step.push_steps(steps))?;
            }
            PreTokenizerText::Split {
                pattern,
                behavior,
                invert,
            } => steps.push(Cut::Split {
                pattern: pattern.compile()?,
                behavior,
                inverted: invert,
            }),
            PreTokenizerText::Punctuation { behavior } => {
                steps.push(Cut::split(Pattern::Character(is_punctuation), behavior));
            }
            PreTokenizerText::WhitespaceSplit => steps.push(Cut::split(spaces, Behavior::Removed)),
            PreTokenizerText::Digits { individual_digits } => steps.push(digits(individual_digits)),
            PreTokenizerText::FixedLength { length: 0 } => return Err("FixedLength: length must be at least 1".into()),
            PreTokenizerText::FixedLength { length } => steps.push(Cut::FixedLength(length)),
        }
        Ok(())
    }
}

/// ByteLevel: splits into words, then maps bytes to characters.
fn push_byte_level(steps: &mut Vec<Cut>, add_prefix_space: bool, use_regex: bool) -> Result<(), String> {
    let words = use_regex.then(|| Pattern::expression(GPT2_WORDS).map(Cut::isolated));
    steps.extend(add_prefix_space.then_some(Cut::PrefixSpace));
    steps.extend(words.transpose()?);
    steps.push(Cut::Bytes);
    Ok(())
}

fn digits(individual: bool) -> Cut {
    let behavior = if individual {
        Behavior::Isolated
    } else {
        Behavior::Contiguous
    };
    Cut::split(Pattern::Character(char::is_numeric), behavior)
}

/// Combines Metaspace's two settings; older files only have the first.
fn prepend(add_prefix_space: Option<bool>, scheme: Option<Prepend>) -> Result<Prepend, String> {
    match (add_prefix_space, scheme) {
        (Some(false), None | Some(Prepend::Never)) => Ok(Prepend::Never),
        (Some(false), _) => Err("Metaspace: add_prefix_space contradicts prepend_scheme".into()),
        (_, scheme) => Ok(scheme.unwrap_or(Prepend::Always)),
    }
}

/// True for ASCII's signs, including `$` and `+`, and for Unicode punctuation.
pub(crate) fn is_punctuation(character: char) -> bool {
    character.is_ascii_punctuation() || character.is_punctuation()
}
