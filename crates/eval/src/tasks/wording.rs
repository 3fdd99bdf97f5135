//! Phrases of tasks: templates with `{names}` in braces.

use std::path::Path;

use riffle_engine::Engine;
use serde::{Deserialize, Serialize};

use crate::EvalError;
use crate::error::plain_reason;

/// Maximum number of bytes of a wording.
const LARGEST_WORDING_BYTES: u64 = 1 << 20;

/// The phrases of all tasks. Two wordings are built in: `ruler` has RULER's own words and uses the model's chat
/// template if it has one; `plain` has the short forms of the shipped model's training. Other wordings are JSON files
/// of the same fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wording {
    /// Name of the wording in records.
    pub name: String,
    /// True to format prompts with the model's chat template, if it has one.
    pub chat: bool,
    /// Digits of a number.
    pub digits: usize,
    /// Text between the two words of a key.
    pub key_joiner: String,
    /// Texts that end an answer, besides the model's end tokens.
    pub stops: Vec<String>,
    /// Needles.
    pub niah: NiahWording,
    /// Chains of variables.
    pub variables: VariablesWording,
    /// Words of a numbered list.
    pub common_words: ListWording,
    /// Words of a coded text.
    pub coded_words: ListWording,
    /// Questions about documents.
    pub documents: DocumentsWording,
}

/// A question and the beginning of its answer, which the model continues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ask {
    /// The question.
    pub question: String,
    /// The beginning of the answer.
    pub lead: String,
}

/// Facts `{key}` → `{value}`; `{noun}` and `{nouns}` name the kind of value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NiahWording {
    /// Text before the document.
    pub before: String,
    /// A fact.
    pub fact: String,
    /// Asks for the one value of `{keys}`.
    pub one: Ask,
    /// Asks for several values of one key.
    pub values: Ask,
    /// Asks for the values of several keys at once; `null` asks for them one by one.
    pub keys: Option<Ask>,
}

/// Variables: `{name}`, `{source}` and `{value}` in the lines; `{value}`, `{last}` and `{count}` in the question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VariablesWording {
    /// Text before the document.
    pub before: String,
    /// A variable with the value.
    pub value: String,
    /// A variable with the value of another variable.
    pub link: String,
    /// True for names of five capital letters, as in RULER; false for two words.
    pub upper_case: bool,
    /// The parts of a chain that the answer must contain.
    pub asks_for: ChainAnswer,
    /// The question.
    pub ask: Ask,
}

/// The parts of a chain that an answer must contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChainAnswer {
    /// The names of all variables of the chain, as in RULER.
    AllNames,
    /// Every variable before the last one, and the value, link by link.
    LastLink,
}

/// Words to count; `{count}` in the question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListWording {
    /// Text before the list.
    pub before: String,
    /// The question.
    pub ask: Ask,
}

/// Documents with a fact in each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DocumentsWording {
    /// Text before the documents.
    pub before: String,
    /// A document: `{number}`, `{text}`.
    pub document: String,
    /// A fact of one hop: `{key}`, `{value}`.
    pub fact: String,
    /// Asks for the fact: `{key}`.
    pub ask: Ask,
    /// The fact at the end of two hops: `{key}`, `{value}`.
    pub first_hop: String,
    /// The fact that leads to the end of two hops: `{key}`, `{source}`.
    pub second_hop: String,
    /// Asks for the value after both hops: `{key}`.
    pub ask_two_hops: Ask,
    /// A question of the user: `{question}`.
    pub ask_given: Ask,
}

impl Wording {
    /// The short forms of the shipped model's training.
    pub fn plain() -> Self {
        serde_json::from_str(include_str!("plain.json")).expect("the built-in wording is whole")
    }

    /// RULER's words. Hsieh et al. 2024, arXiv:2404.06654.
    pub fn ruler() -> Self {
        serde_json::from_str(include_str!("ruler.json")).expect("the built-in wording is whole")
    }

    /// Returns a wording by name (`plain`, `ruler`) or from a JSON file. `auto` is RULER's if the model has a chat
    /// template.
    ///
    /// # Errors
    /// [`EvalError::File`] for a missing file or a missing field.
    pub fn find(name: &str, engine: &Engine) -> Result<Self, EvalError> {
        match &*name.to_ascii_lowercase() {
            "auto" if engine.chat_template().is_some() => Ok(Self::ruler()),
            "auto" | "plain" => Ok(Self::plain()),
            "ruler" => Ok(Self::ruler()),
            _ => Self::read(Path::new(name)),
        }
    }

    fn read(path: &Path) -> Result<Self, EvalError> {
        let failed = |reason: String| EvalError::File {
            path: path.to_owned(),
            reason: format!("{reason}; --wording takes auto, plain, ruler or a JSON file of the fields of either"),
        };
        let text = riffle_files::read_text(path, LARGEST_WORDING_BYTES);
        let text = text.map_err(|error| failed(plain_reason(&error.into())))?;
        serde_json::from_str(&text).map_err(|error| failed(error.to_string()))
    }
}

impl Ask {
    /// Both parts with the names replaced.
    pub(crate) fn fill(&self, values: &[(&str, &str)]) -> Self {
        Self {
            question: fill(&self.question, values),
            lead: fill(&self.lead, values),
        }
    }
}

/// `template` with every `{name}` replaced.
pub(crate) fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let mut text = template.to_owned();
    for (name, value) in values {
        text = text.replace(&format!("{{{name}}}"), value);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_built_in_wordings_are_whole_and_fill_in() {
        let plain = Wording::plain();
        let ask = plain.niah.one.fill(&[("keys", "field house")]);
        assert_eq!(
            ask.question + &ask.lead,
            "What is the pass key for field house? The pass key for field house is"
        );
        assert_eq!(Wording::ruler().name, "ruler");
    }

    #[test]
    fn a_wording_file_that_lacks_a_field_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("wording.json");
        let mut value: serde_json::Value = serde_json::from_str(include_str!("plain.json")).unwrap();
        std::fs::write(&path, value.to_string()).unwrap();
        assert_eq!(Wording::read(&path).unwrap(), Wording::plain());
        value["niah"].as_object_mut().unwrap().remove("fact");
        std::fs::write(&path, value.to_string()).unwrap();
        let message = Wording::read(&path).unwrap_err().to_string();
        assert!(message.contains("missing field `fact`"), "{message}");
    }
}
