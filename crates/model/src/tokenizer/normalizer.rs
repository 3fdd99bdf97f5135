//! Changes a text before it is split into words.

use std::borrow::Cow;
use std::ops::Range;

use serde::Deserialize;
use serde_json::Value;
use unicode_categories::UnicodeCategories;
use unicode_normalization_alignments::UnicodeNormalization;
use unicode_normalization_alignments::char::is_combining_mark;

use super::byte_level::push_bytes;
use super::charsmap::CharacterMap;
use super::growth::{self, Bounded};
use super::pattern::{Pattern, PatternText};
use super::piece_spaces::PieceSpaces;

/// The steps of a normalizer, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Normalizer {
    steps: Vec<Normalization>,
}

/// A step.
#[derive(Debug, Clone)]
pub(crate) enum Normalization {
    Composed,
    Decomposed,
    CompatiblyComposed,
    CompatiblyDecomposed,
    Lowercase,
    StripAccents,
    /// Removes spaces at the left and the right end.
    Strip(bool, bool),
    /// Removes control characters and replaces unusual spaces, as in NMT models.
    Nmt,
    Mapped(CharacterMap),
    Replace(Pattern, String),
    Prepend(String),
    ByteLevel,
    CleanText,
    SpacedIdeographs,
    StripNonSpacingMarks,
    Pieces(PieceSpaces),
}

/// A normalizer in tokenizer.json's form.
#[derive(Deserialize)]
#[serde(tag = "type")]
enum NormalizerText {
    #[serde(rename = "NFC")]
    Composed,
    #[serde(rename = "NFD")]
    Decomposed,
    #[serde(rename = "NFKC")]
    CompatiblyComposed,
    #[serde(rename = "NFKD")]
    CompatiblyDecomposed,
    Lowercase,
    StripAccents,
    Strip {
        strip_left: bool,
        strip_right: bool,
    },
    Nmt,
    Precompiled {
        precompiled_charsmap: Option<String>,
    },
    Replace {
        pattern: PatternText,
        content: String,
    },
    Prepend {
        prepend: String,
    },
    ByteLevel,
    #[serde(alias = "Bert")]
    BertNormalizer {
        clean_text: bool,
        handle_chinese_chars: bool,
        strip_accents: Option<bool>,
        lowercase: bool,
    },
    Sequence {
        normalizers: Vec<NormalizerText>,
    },
}

impl Normalizer {
    /// Maximum number of bytes of a text that become one byte; `None` if a step may drop text.
    pub(crate) fn most_shrinking(&self) -> Option<usize> {
        // Composition joins a letter and its marks: 9 bytes of Hangul become 3.
        const BY_COMPOSING: usize = 4;
        self.steps.iter().try_fold(1, |most, step| match step {
            Normalization::Composed => Some(most * BY_COMPOSING),
            Normalization::Prepend(_) | Normalization::ByteLevel => Some(most),
            _ => None,
        })
    }

    /// Makes letters small before the other steps, unless a step does so.
    pub(crate) fn lower(&mut self) {
        if !self.steps.iter().any(|step| matches!(step, Normalization::Lowercase)) {
            self.steps.insert(0, Normalization::Lowercase);
        }
    }

    /// True if bytes become separate characters.
    pub(crate) fn spells_bytes(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Normalization::ByteLevel))
    }

    /// The normalizer of a tokenizer.json.
    pub(crate) fn from_json(value: Option<Value>) -> Result<Normalizer, String> {
        let mut steps = Vec::new();
        if let Some(value) = value {
            let text: NormalizerText = serde_json::from_value(value).map_err(|error| format!("normalizer: {error}"))?;
            text.push_steps(&mut steps)?;
        }
        Normalizer::new(steps)
    }

    /// A normalizer of these steps.
    pub(crate) fn new(steps: Vec<Normalization>) -> Result<Normalizer, String> {
        growth::check("normalizer", steps.iter().map(Normalization::growth))?;
        Ok(Normalizer { steps })
    }

    /// The text after all steps.
    pub(crate) fn apply<'a>(&self, text: &'a str) -> Result<Cow<'a, str>, String> {
        let mut text = Cow::Borrowed(text);
        for step in &self.steps {
            if let Some(changed) = step.apply(&text)? {
                text = Cow::Owned(changed);
            }
        }
        Ok(text)
    }

    /// Maps ranges of `text`, ascending and disjoint, to `normalized`, the result of the steps. Returns one range for
    /// the whole text if the steps do not preserve the ranges' ends.
    pub(crate) fn ranges_behind(
        &self,
        text: &str,
        normalized: &str,
        ranges: &[Range<usize>],
    ) -> Result<Vec<Range<usize>>, String> {
        if ranges.is_empty() || text == normalized {
            return Ok(ranges.to_vec());
        }
        let whole = 0..normalized.len();
        let Some(mark) = ('\u{fdd0}'..='\u{fdef}').find(|mark| !text.contains(*mark)) else {
            return Ok(vec![whole]);
        };
        let mut marked = String::with_capacity(text.len() + 6 * ranges.len());
        let mut start = 0;
        for end in ranges.iter().flat_map(|range| [range.start, range.end]) {
            marked.push_str(&text[start..end]);
            marked.push(mark);
            start = end;
        }
        marked.push_str(&text[start..]);
        let marked = self.apply(&marked)?;
        let mut as_bytes = String::new();
        push_bytes(mark.encode_utf8(&mut [0; 4]), &mut as_bytes);
        for mark in [mark.to_string(), as_bytes] {
            let parts: Vec<&str> = marked.split(mark.as_str()).collect();
            if parts.len() == 2 * ranges.len() + 1 && parts.concat() == normalized {
                let ends: Vec<usize> = parts
                    .iter()
                    .scan(0, |end, part| {
                        *end += part.len();
                        Some(*end)
                    })
                    .collect();
                return Ok(ends.chunks_exact(2).map(|ends| ends[0]..ends[1]).collect());
            }
        }
        Ok(vec![whole])
    }
}

impl NormalizerText {
    fn push_steps(self, steps: &mut Vec<Normalization>) -> Result<(), String> {
        if steps.len() > growth::MOST_STEPS {
            return Ok(());
        }
        steps.push(match self {
            NormalizerText::Composed => Normalization::Composed,
            NormalizerText::Decomposed => Normalization::Decomposed,
            NormalizerText::CompatiblyComposed => Normalization::CompatiblyComposed,
            NormalizerText::CompatiblyDecomposed => Normalization::CompatiblyDecomposed,
            NormalizerText::Lowercase => Normalization::Lowercase,
            NormalizerText::StripAccents => Normalization::StripAccents,
            NormalizerText::Strip {
                strip_left,
                strip_right,
            } => Normalization::Strip(strip_left, strip_right),
            NormalizerText::Nmt => Normalization::Nmt,
            NormalizerText::Precompiled { precompiled_charsmap } => {
                Normalization::Mapped(CharacterMap::new(&precompiled_charsmap.unwrap_or_default())?)
            }
            NormalizerText::Replace { pattern, content } => Normalization::Replace(pattern.compile()?, content),
            NormalizerText::Prepend { prepend } => Normalization::Prepend(prepend),
            NormalizerText::ByteLevel => Normalization::ByteLevel,
            NormalizerText::BertNormalizer {
                clean_text,
                handle_chinese_chars,
                strip_accents,
                lowercase,
            } => {
                let chosen = [
                    (clean_text, Normalization::CleanText),
                    (handle_chinese_chars, Normalization::SpacedIdeographs),
                    (strip_accents.unwrap_or(lowercase), Normalization::StripNonSpacingMarks),
                    (lowercase, Normalization::Lowercase),
                ];
                steps.extend(chosen.into_iter().filter(|(wanted, _)| *wanted).map(|(_, step)| step));
                return Ok(());
            }
            NormalizerText::Sequence { normalizers } => {
                return normalizers.into_iter().try_for_each(|step| step.push_steps(steps));
            }
        });
        Ok(())
    }
}

impl Normalization {
    /// Upper bound of the ratio of output to input length.
    fn growth(&self) -> f64 {
        match self {
            Normalization::Replace(pattern, content) => match pattern.shortest_match() {
                // The text between empty matches stays.
                0 => content.len() as f64 + 1.0,
                shortest => content.len() as f64 / shortest as f64,
            },
            Normalization::Prepend(text) => 1.0 + text.len() as f64 / 16.0,
            Normalization::Composed | Normalization::Lowercase => 1.5,
            Normalization::Decomposed | Normalization::StripNonSpacingMarks => 3.0,
            Normalization::CompatiblyComposed | Normalization::CompatiblyDecomposed | Normalization::Mapped(_) => 11.0,
            Normalization::ByteLevel => 2.0,
            Normalization::SpacedIdeographs => 1.7,
            Normalization::Pieces(spaces) => spaces.growth(),
            Normalization::StripAccents | Normalization::Strip(..) | Normalization::Nmt | Normalization::CleanText => {
                1.0
            }
        }
    }

    /// The text after this step; `None` if unchanged.
    fn apply(&self, text: &str) -> Result<Option<String>, String> {
        let mut output = Bounded::new(text.len());
        match self {
            Normalization::Composed if text.is_ascii() => return Ok(None),
            Normalization::Prepend(_) if text.is_empty() => return Ok(None),
            Normalization::Prepend(prefix) => {
                output.push(prefix)?;
                output.push(text)?;
            }
            Normalization::Mapped(map) => map.replace(text, |part| output.push(part))?,
            Normalization::Pieces(spaces) => spaces.apply(text, &mut output)?,
            Normalization::Replace(pattern, content) => {
                let mut end = 0;
                pattern.find(text, |found| {
                    output.push(&text[end..found.start])?;
                    end = found.end;
                    output.push(content)
                })?;
                output.push(&text[end..])?;
            }
            Normalization::SpacedIdeographs => {
                for character in text.chars() {
                    let space = if is_ideograph(character) { " " } else { "" };
                    output.push(space)?;
                    output.push(character.encode_utf8(&mut [0; 4]))?;
                    output.push(space)?;
                }
            }
            step => return Ok(Some(step.apply_to_characters(text))),
        }
        Ok(Some(output.finish()))
    }

    /// The text after a step that maps single characters to at most a few others.
    fn apply_to_characters(&self, text: &str) -> String {
        let characters = text.chars();
        match self {
            Normalization::Composed => text.nfc().map(|(character, _)| character).collect(),
            Normalization::Decomposed => text.nfd().map(|(character, _)| character).collect(),
            Normalization::CompatiblyComposed => text.nfkc().map(|(character, _)| character).collect(),
            Normalization::CompatiblyDecomposed => text.nfkd().map(|(character, _)| character).collect(),
            Normalization::Lowercase => characters.flat_map(char::to_lowercase).collect(),
            Normalization::StripAccents => characters.filter(|c| !is_combining_mark(*c)).collect(),
            Normalization::Nmt => characters.filter_map(nmt).collect(),
            Normalization::CleanText => characters
                .filter(|c| !matches!(c, '\0' | '\u{fffd}') && !is_control(*c))
                .map(|c| if c.is_whitespace() { ' ' } else { c })
                .collect(),
            Normalization::StripNonSpacingMarks => {
                let decomposed = text.nfd().map(|(character, _)| character);
                decomposed.filter(|c| !c.is_mark_nonspacing()).collect()
            }
            Normalization::Strip(left, right) => {
                let text = if *left { text.trim_start() } else { text };
                (if *right { text.trim_end() } else { text }).to_owned()
            }
            Normalization::ByteLevel => {
                let mut bytes = String::with_capacity(text.len());
                push_bytes(text, &mut bytes);
                bytes
            }
            Normalization::Mapped(_)
            | Normalization::Pieces(_)
            | Normalization::Replace(..)
            | Normalization::Prepend(_)
            | Normalization::SpacedIdeographs => text.to_owned(),
        }
    }
}

fn nmt(character: char) -> Option<char> {
    match u32::from(character) {
        0x01..=0x08 | 0x0b | 0x0e..=0x1f | 0x7f | 0x8f | 0x9f => None,
        0x09 | 0x0a | 0x0c | 0x0d | 0x1680 | 0x200b..=0x200f | 0x2028 | 0x2029 | 0x2581 | 0xfeff | 0xfffd => Some(' '),
        _ => Some(character),
    }
}

fn is_control(character: char) -> bool {
    !matches!(character, '\t' | '\n' | '\r') && character.is_other()
}

/// The blocks that BERT's normalizer surrounds with spaces.
fn is_ideograph(character: char) -> bool {
    matches!(
        u32::from(character),
        0x4e00..=0x9fff
            | 0x3400..=0x4dbf
            | 0x20000..=0x2a6df
            | 0x2a700..=0x2b73f
            | 0x2b740..=0x2b81f
            | 0x2b920..=0x2ceaf
            | 0xf900..=0xfaff
            | 0x2f800..=0x2fa1f
    )
}
