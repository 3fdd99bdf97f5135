//! Reads and checks tokenizer.json.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::added::{AddedToken, AddedTokens};
use super::byte_pairs::{BytePairs, Unknown};
use super::decoder::Decoder;
use super::merges::{MergeTable, Merges};
use super::model::Model;
use super::neighbours::Neighbours;
use super::normalizer::Normalizer;
use super::pattern;
use super::pipeline::Pipeline;
use super::pre_tokenizer::PreTokenizer;
use super::surroundings::Surroundings;
use super::unigram::Unigram;
use super::vocabulary::Vocabulary;
use super::words::WordPieces;

/// Maximum number of bytes of a token in models that try every length, and of characters of a word.
const LONGEST_PIECE: usize = 4096;

/// The contents of tokenizer.json. Truncation and padding are ignored: both would silently change the text.
#[derive(Deserialize)]
struct Description<'a> {
    #[serde(borrow, default)]
    added_tokens: Vec<AddedTokenText<'a>>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    decoder: Option<Value>,
    #[serde(borrow)]
    model: ModelText<'a>,
}

#[derive(Deserialize)]
struct AddedTokenText<'a> {
    id: u32,
    #[serde(borrow)]
    content: Cow<'a, str>,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

/// The settings of all kinds of models.
#[derive(Deserialize)]
struct ModelText<'a> {
    #[serde(rename = "type")]
    kind: Option<String>,
    dropout: Option<f64>,
    unk_token: Option<String>,
    unk_id: Option<u32>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
    max_input_chars_per_word: Option<usize>,
    #[serde(borrow)]
    vocab: Entries<'a>,
    #[serde(borrow)]
    merges: Option<Vec<MergeText<'a>>>,
}

/// A vocabulary: ids by text, or scores in the order of ids.
enum Entries<'a> {
    Ids(Vec<(Text<'a>, u32)>),
    Scores(Vec<(Text<'a>, f64)>),
}

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// A merge of two tokens.
struct MergeText<'a>(Cow<'a, str>, Cow<'a, str>);

/// Reads the bytes of a tokenizer.json.
pub(crate) fn read(bytes: &[u8]) -> Result<Pipeline, String> {
    let description: Description<'_> = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let steps = [
        &description.normalizer,
        &description.pre_tokenizer,
        &description.decoder,
    ];
    pattern::check_length(steps.into_iter().flatten())?;
    let normalizer = Normalizer::from_json(description.normalizer)?;
    let vocabulary = description.model.vocab.vocabulary()?;
    let added = added_tokens(description.added_tokens, &normalizer, &vocabulary)?;
    let model = description.model.build(&vocabulary)?;
    Ok(Pipeline {
        pre_tokenizer: PreTokenizer::from_json(description.pre_tokenizer)?,
        surroundings: Surroundings::from_json(description.post_processor)?,
        decoder: Decoder::from_json(description.decoder)?,
        normalizer,
        vocabulary,
        added,
        model,
    })
}

fn added_tokens(
    texts: Vec<AddedTokenText<'_>>,
    normalizer: &Normalizer,
    vocabulary: &Vocabulary,
) -> Result<AddedTokens, String> {
    let mut tokens: Vec<AddedToken> = Vec::with_capacity(texts.len());
    for text in texts.into_iter().filter(|text| !text.content.is_empty()) {
        let content = text.content.into_owned();
        let other = vocabulary.id(&content).filter(|id| *id != text.id);
        if let Some(other) = other {
            return Err(format!(
                "added token {content:?} has id {}, but the vocabulary gives it {other}",
                text.id
            ));
        }
        if let Some(other) = vocabulary.text(text.id).filter(|other| *other != content) {
            return Err(format!(
                "added token {content:?} has id {}, which is the token {other:?}'s",
                text.id
            ));
        }
        tokens.push(AddedToken {
            normalized: if text.normalized {
                Some(normalizer.apply(&content)?.into_owned())
            } else {
                None
            },
            single_word: text.single_word,
            strips_left: text.lstrip,
            strips_right: text.rstrip,
            ..AddedToken::new(text.id, content, text.special)
        });
    }
    AddedTokens::new(tokens)
}

impl Entries<'_> {
    fn vocabulary(&self) -> Result<Vocabulary, String> {
        match self {
            Entries::Ids(entries) => Vocabulary::new(entries.iter().map(|(text, id)| (*id, &*text.0))),
            Entries::Scores(entries) => {
                let numbered = entries.iter().enumerate();
                Vocabulary::new(numbered.map(|(id, (text, _))| (id as u32, &*text.0)))
            }
        }
    }
}

impl ModelText<'_> {
    /// The kind in the file, or the kind whose settings it has: older files do not name it.
    fn kind(&self) -> &str {
        match (&self.kind, &self.vocab) {
            (Some(kind), _) => kind,
            (None, Entries::Scores(_)) => "Unigram",
            (None, Entries::Ids(_)) if self.merges.is_some() => "BPE",
            (None, Entries::Ids(_)) if self.max_input_chars_per_word.is_some() => "WordPiece",
            (None, Entries::Ids(_)) => "WordLevel",
        }
    }

    fn build(self, vocabulary: &Vocabulary) -> Result<Model, String> {
        let unknown = Unknown::new(self.unk_token.as_deref(), vocabulary);
        let missing = |setting: &str| format!("model: {setting} is missing");
        let byte_tokens = match self.byte_fallback {
            Some(true) => vocabulary.byte_tokens(),
            _ => Vec::new(),
        };
        match (self.kind(), &self.vocab) {
            ("BPE", Entries::Ids(_)) => self.byte_pairs(unknown, byte_tokens, vocabulary),
            ("Unigram", Entries::Scores(entries)) => {
                check_lengths(vocabulary)?;
                let scores = entries.iter().map(|(_, score)| *score).collect();
                Unigram::new(scores, self.unk_id, byte_tokens, vocabulary).map(Model::Unigram)
            }
            ("WordPiece", Entries::Ids(_)) => {
                check_lengths(vocabulary)?;
                let longest_word = self.max_input_chars_per_word;
                let longest_word = longest_word.ok_or_else(|| missing("max_input_chars_per_word"))?;
                if longest_word > LONGEST_PIECE {
                    return Err(format!(
                        "model: max_input_chars_per_word is {longest_word}, {LONGEST_PIECE} is the limit"
                    ));
                }
                let prefix = self.continuing_subword_prefix;
                Ok(Model::WordPieces(WordPieces {
                    unknown,
                    continuing_prefix: prefix.ok_or_else(|| missing("continuing_subword_prefix"))?,
                    longest_word,
                    longest_piece: vocabulary.longest_text(),
                }))
            }
            ("WordLevel", Entries::Ids(_)) => Ok(Model::WholeWords(unknown)),
            ("BPE" | "WordPiece" | "WordLevel", _) => Err("model: vocab must give each token an id".into()),
            ("Unigram", _) => Err("model: vocab must list each token with its score".into()),
            (other, _) => Err(format!(
                "model: type {other:?} is unknown; known are BPE, Unigram, WordPiece and WordLevel"
            )),
        }
    }

    fn byte_pairs(
        self,
        unknown: Unknown,
        byte_tokens: Vec<Option<u32>>,
        vocabulary: &Vocabulary,
    ) -> Result<Model, String> {
        let merges = self.merges.ok_or("model: merges is missing")?;
        if self.dropout.is_some_and(|dropout| dropout != 0.0) {
            return Err("model: dropout leaves out merges at random; set it to null".into());
        }
        let continuing_prefix = self.continuing_subword_prefix.unwrap_or_default();
        let mut table = MergeTable::with_capacity(merges.len());
        for (place, MergeText(left, right)) in merges.iter().enumerate() {
            // The first line of a merges file, which some conversions keep.
            if left == "#version:" {
                continue;
            }
            table.insert(place, (left, right), continuing_prefix.len(), vocabulary)?;
        }
        Ok(Model::BytePairs(BytePairs {
            merges: Merges::Listed(table),
            neighbours: Neighbours::new(vocabulary),
            unknown,
            fuses_unknown: self.fuse_unk.unwrap_or(false),
            byte_tokens,
            continuing_prefix,
            word_suffix: self.end_of_word_suffix.unwrap_or_default(),
            takes_whole_words: self.ignore_merges.unwrap_or(false),
        }))
    }
}

fn check_lengths(vocabulary: &Vocabulary) -> Result<(), String> {
    match vocabulary.longest_text() {
        longest if longest > LONGEST_PIECE => Err(format!(
            "its longest token has {longest} bytes, {LONGEST_PIECE} is the limit"
        )),
        _ => Ok(()),
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Entries<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Entries<'a>, D::Error> {
        struct Seen<'a>(std::marker::PhantomData<&'a ()>);

        impl<'de: 'a, 'a> Visitor<'de> for Seen<'a> {
            type Value = Entries<'a>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a vocabulary")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Entries<'a>, M::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries::Ids(entries))
            }

            fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Entries<'a>, S::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = list.next_element()? {
                    entries.push(entry);
                }
                Ok(Entries::Scores(entries))
            }
        }

        deserializer.deserialize_any(Seen(std::marker::PhantomData))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for MergeText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MergeText<'a>, D::Error> {
        struct Seen<'a>(std::marker::PhantomData<&'a ()>);

        impl<'de: 'a, 'a> Visitor<'de> for Seen<'a> {
            type Value = MergeText<'a>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a merge: two tokens in a list, or with a space between them")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<MergeText<'a>, E> {
                let (left, right) = pair(text).ok_or_else(|| E::custom(format!("merge {text:?} is not two tokens")))?;
                Ok(MergeText(left.into(), right.into()))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<MergeText<'a>, E> {
                let (left, right) = pair(text).ok_or_else(|| E::custom(format!("merge {text:?} is not two tokens")))?;
                Ok(MergeText(left.to_owned().into(), right.to_owned().into()))
            }

            fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<MergeText<'a>, S::Error> {
                let mut next = || list.next_element::<Text<'a>>();
                match (next()?, next()?, next()?) {
                    (Some(left), Some(right), None) => Ok(MergeText(left.0, right.0)),
                    _ => Err(S::Error::custom("a merge is not two tokens")),
                }
            }
        }

        deserializer.deserialize_any(Seen(std::marker::PhantomData))
    }
}

/// The two tokens of a merge in one text.
pub(crate) fn pair(text: &str) -> Option<(&str, &str)> {
    text.split_once(' ').filter(|(_, right)| !right.contains(' '))
}
