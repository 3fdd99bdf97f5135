//! Tokens that a tokenizer adds around a text.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

/// Tokens before, between and after a text.
#[derive(Debug, Clone)]
pub(crate) struct Surroundings {
    parts: Vec<Surrounding>,
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
    Sequence { id: SequenceText },
    SpecialToken { id: String },
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
    /// These tokens before and after a text.
    pub(crate) fn new(before: Vec<u32>, behind: Vec<u32>) -> Surroundings {
        let parts = [
            Surrounding::Tokens(before),
            Surrounding::Text,
            Surrounding::Tokens(behind),
        ];
        Surroundings { parts: parts.into() }
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
        ids.max().map_or(0, |id| *id as usize + 1)
    }
}

impl PostProcessorText {
    /// `None` for post-processors that only affect token offsets.
    fn parts(self) -> Result<Option<Surroundings>, String> {
        match self {
            PostProcessorText::ByteLevel => Ok(None),
            PostProcessorText::BertProcessing { sep, cls } | PostProcessorText::RobertaProcessing { sep, cls } => {
                Ok(Some(Surroundings::new(vec![cls.1], vec![sep.1])))
            }
            PostProcessorText::TemplateProcessing { single, special_tokens } => {
                let part = |piece: PieceText| match piece {
                    PieceText::Sequence { id: SequenceText::A } => Ok(Surrounding::Text),
                    PieceText::Sequence { id: SequenceText::B } => {
                        Err("post_processor: the template of a single text names a second one".to_owned())
                    }
                    PieceText::SpecialToken { id } => match special_tokens.get(&id) {
                        Some(token) => Ok(Surrounding::Tokens(token.ids.clone())),
                        None => Err(format!(
                            "post_processor: special_tokens lacks {id:?}, which the template names"
                        )),
                    },
                };
                let parts = single.into_iter().map(part).collect::<Result<Vec<_>, _>>()?;
                if parts.iter().filter(|part| **part == Surrounding::Text).count() != 1 {
                    return Err("post_processor: the template of a single text must hold it once".into());
                }
                Ok(Some(Surroundings { parts }))
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
