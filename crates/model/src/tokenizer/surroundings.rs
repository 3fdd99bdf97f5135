//! Tokens that a tokenizer adds around a text.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

/// Tokens before, between and after a text.
#[derive(Debug, Clone)]
pub(crate) struct Surroundings {
    parts: Vec<Surrounding>,
    /// The parts of two texts in one sequence, if the tokenizer joins texts.
    pair: Option<Vec<PairPart>>,
}

/// A part of two joined texts.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PairPart {
    tokens: PairTokens,
    /// True if the tokens count as tokens of the second text.
    is_second: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum PairTokens {
    Special(Vec<u32>),
    First,
    Second,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Surrounding {
    Tokens(Vec<u32>),
    Text,
}

/// A post-processor in tokenizer.json's form.
#[derive(Deserialize)]
#[serde(tag = "type")]
enum PostProcessorText {
    TemplateProcessing {
        single: Vec<PieceText>,
        #[serde(default)]
        pair: Vec<PieceText>,
        special_tokens: HashMap<String, SpecialTokenText>,
    },
    BertProcessing {
        sep: (String, u32),
        cls: (String, u32),
    },
    RobertaProcessing {
        sep: (String, u32),
        cls: (String, u32),
    },
    ByteLevel,
    Sequence {
        processors: Vec<PostProcessorText>,
    },
}

#[derive(Deserialize)]
enum PieceText {
    Sequence {
        id: SequenceText,
        #[serde(default)]
        type_id: u32,
    },
    SpecialToken {
        id: String,
        #[serde(default)]
        type_id: u32,
    },
}

#[derive(Deserialize)]
enum SequenceText {
    A,
    B,
}

#[derive(Deserialize)]
struct SpecialTokenText {
    ids: Vec<u32>,
}

impl Default for Surroundings {
    fn default() -> Surroundings {
        Surroundings::new(Vec::new(), Vec::new())
    }
}

impl Surroundings {
    /// Surroundings with these tokens before and after a text.
    pub(crate) fn new(before: Vec<u32>, behind: Vec<u32>) -> Surroundings {
        let parts = [
            Surrounding::Tokens(before),
            Surrounding::Text,
            Surrounding::Tokens(behind),
        ];
        Surroundings {
            parts: parts.into(),
            pair: None,
        }
    }

    /// These surroundings, together with the surroundings of two texts: `between` them, and the tokens before and after
    /// a single text around them. With `has_types`, the tokens behind the first text and its `between` count as the
    /// second text's.
    pub(crate) fn with_pair(mut self, between: Vec<u32>, has_types: bool) -> Surroundings {
        let part = |tokens, is_second| PairPart { tokens, is_second };
        if let [
            Surrounding::Tokens(before),
            Surrounding::Text,
            Surrounding::Tokens(behind),
        ] = self.parts.as_slice()
        {
            self.pair = Some(vec![
                part(PairTokens::Special(before.clone()), false),
                part(PairTokens::First, false),
                part(PairTokens::Special(between), false),
                part(PairTokens::Second, has_types),
                part(PairTokens::Special(behind.clone()), has_types),
            ]);
        }
        self
    }

    /// True if the tokenizer joins two texts.
    pub(crate) fn joins_texts(&self) -> bool {
        self.pair.is_some()
    }

    /// The tokens of two texts in one sequence, and the number of leading tokens that belong to the first text. `None`
    /// if the tokenizer does not join texts.
    pub(crate) fn around_pair(&self, first: &[u32], second: &[u32]) -> Option<(Vec<u32>, usize)> {
        let (mut tokens, mut of_first) = (Vec::new(), 0);
        for part in self.pair.as_ref()? {
            tokens.extend_from_slice(match &part.tokens {
                PairTokens::Special(special) => special,
                PairTokens::First => first,
                PairTokens::Second => second,
            });
            if !part.is_second {
                of_first = tokens.len();
            }
        }
        Some((tokens, of_first))
    }

    /// The surroundings of a tokenizer.json.
    pub(crate) fn from_json(value: Option<Value>) -> Result<Surroundings, String> {
        let Some(value) = value else {
            return Ok(Surroundings::default());
        };
        let text: PostProcessorText =
            serde_json::from_value(value).map_err(|error| format!("post_processor: {error}"))?;
        Ok(text.parts()?.unwrap_or_default())
    }

    /// The tokens of a text with the surrounding ones; without `add_special`, only the text.
    pub(crate) fn around(&self, text: Vec<u32>, add_special: bool) -> Vec<u32> {
        if let [Surrounding::Text] | [_, Surrounding::Text, _] = self.parts.as_slice()
            && !add_special
        {
            return text;
        }
        let parts = self.parts.iter().map(|part| match part {
            Surrounding::Text => text.as_slice(),
            Surrounding::Tokens(tokens) if add_special => tokens.as_slice(),
            Surrounding::Tokens(_) => &[],
        });
        parts.collect::<Vec<_>>().concat()
    }

    /// Highest id + 1.
    pub(crate) fn len(&self) -> usize {
        let ids = self.parts.iter().flat_map(|part| match part {
            Surrounding::Text => &[],
            Surrounding::Tokens(tokens) => tokens.as_slice(),
        });
        let pair = self.pair.iter().flatten().flat_map(|part| match &part.tokens {
            PairTokens::Special(tokens) => tokens.as_slice(),
            PairTokens::First | PairTokens::Second => &[],
        });
        ids.chain(pair).max().map_or(0, |id| *id as usize + 1)
    }
}

impl PostProcessorText {
    /// `None` for post-processors that only affect token offsets.
    fn parts(self) -> Result<Option<Surroundings>, String> {
        match self {
            PostProcessorText::ByteLevel => Ok(None),
            PostProcessorText::BertProcessing { sep, cls } => {
                let single = Surroundings::new(vec![cls.1], vec![sep.1]);
                Ok(Some(single.with_pair(vec![sep.1], true)))
            }
            PostProcessorText::RobertaProcessing { sep, cls } => {
                let single = Surroundings::new(vec![cls.1], vec![sep.1]);
                Ok(Some(single.with_pair(vec![sep.1, sep.1], false)))
            }
            PostProcessorText::TemplateProcessing {
                single,
                pair,
                special_tokens,
            } => {
                let special = |id: &str| match special_tokens.get(id) {
                    Some(token) => Ok(token.ids.clone()),
                    None => Err(format!(
                        "post_processor: special_tokens lacks {id:?}, which the template names"
                    )),
                };
                let part = |piece: PieceText| match piece {
                    PieceText::Sequence {
                        id: SequenceText::A, ..
                    } => Ok(Surrounding::Text),
                    PieceText::Sequence {
                        id: SequenceText::B, ..
                    } => Err("post_processor: the template of a single text names a second one".to_owned()),
                    PieceText::SpecialToken { id, .. } => special(&id).map(Surrounding::Tokens),
                };
                let parts = single.into_iter().map(part).collect::<Result<Vec<_>, _>>()?;
                if parts.iter().filter(|part| **part == Surrounding::Text).count() != 1 {
                    return Err("post_processor: the template of a single text must hold it once".into());
                }
                let pair = pair.into_iter().map(|piece| pair_part(piece, &special));
                let pair = pair.collect::<Result<Vec<_>, _>>()?;
                Ok(Some(Surroundings {
                    parts,
                    pair: is_usual_pair(&pair).then_some(pair),
                }))
            }
            PostProcessorText::Sequence { processors } => {
                let mut found = None;
                for processor in processors {
                    if let Some(parts) = processor.parts()?
                        && found.replace(parts).is_some()
                    {
                        return Err("post_processor: only one step of a sequence may add tokens".into());
                    }
                }
                Ok(found)
            }
        }
    }
}

fn pair_part(piece: PieceText, special: &impl Fn(&str) -> Result<Vec<u32>, String>) -> Result<PairPart, String> {
    let (tokens, type_id) = match piece {
        PieceText::Sequence { id, type_id } => match id {
            SequenceText::A => (PairTokens::First, type_id),
            SequenceText::B => (PairTokens::Second, type_id),
        },
        PieceText::SpecialToken { id, type_id } => (PairTokens::Special(special(&id)?), type_id),
    };
    Ok(PairPart {
        tokens,
        is_second: type_id == 1,
    })
}

/// True if a template has both texts once, in order, and all its tokens of the second type at its end.
fn is_usual_pair(pair: &[PairPart]) -> bool {
    let texts = pair
        .iter()
        .filter(|part| !matches!(part.tokens, PairTokens::Special(_)));
    let texts: Vec<&PairTokens> = texts.map(|part| &part.tokens).collect();
    texts == [&PairTokens::First, &PairTokens::Second] && pair.is_sorted_by_key(|part| part.is_second)
}
