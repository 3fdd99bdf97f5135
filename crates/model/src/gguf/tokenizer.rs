//! Tokenizers and chat templates stored in GGUF files.

use std::path::Path;

use super::ends::ends;
use super::header::{Header, Metadata};
use super::pre_tokenizers::PreTokenizer as Known;
use crate::chat::{DEFAULT_NAME, NamedTemplate};
use crate::tokenizer::{
    AddedToken, AddedTokens, BytePairs, Cut, Decoder, Decoding, MergeTable, Merges, Model, Neighbours, Normalization,
    Normalizer, Pattern, Pipeline, PreTokenizer, Scores, Surroundings, Unknown, Vocabulary, broken, is_mark, pair,
};
use crate::{ChatTemplate, ModelError, Tokenizer};

/// The purposes of tokens, as GGUF numbers them.
pub(super) const NORMAL: u8 = 1;
const UNKNOWN: u8 = 2;
pub(super) const CONTROL: u8 = 3;
const USER_DEFINED: u8 = 4;
const UNUSED: u8 = 5;
const BYTE: u8 = 6;

/// Special tokens of Phi-3 behind which spaces stay.
const PHI3_UNSTRIPPED: &[&str] = &["<unk>", "<s>", "<|endoftext|>"];

/// The tokens of a file.
pub(super) struct Tokens<'a> {
    path: &'a Path,
    header: &'a Header<'a>,
    texts: Vec<&'a str>,
    kinds: Vec<u8>,
    /// Ids of the tokens that end an answer, ascending.
    ends: Vec<u32>,
}

/// The steps of a text before and after the model.
struct Steps {
    normalizations: Vec<Normalization>,
    cuts: Vec<Cut>,
    decodings: Vec<Decoding>,
}

impl<'a> Tokens<'a> {
    /// `None` where the file has no tokenizer.
    pub(super) fn read(path: &'a Path, header: &'a Header<'a>) -> Result<Option<Tokens<'a>>, ModelError> {
        let Some(list) = header.metadata.get("tokenizer.ggml.tokens") else {
            return Ok(None);
        };
        let mut tokens = Tokens {
            path,
            header,
            texts: Vec::new(),
            kinds: Vec::new(),
            ends: Vec::new(),
        };
        tokens.texts = tokens.texts_of("tokens", list)?;
        tokens.kinds = match tokens.get("token_type") {
            None => vec![NORMAL; tokens.texts.len()],
            Some(list) => tokens.for_every_token("token_type", list, |kind| match kind {
                Metadata::Integer(kind @ 0..=6) => Some(kind as u8),
                _ => None,
            })?,
        };
        let mut kinds = std::mem::take(&mut tokens.kinds);
        tokens.ends = ends(&tokens.texts, &mut kinds, |setting| tokens.named(setting))?;
        tokens.kinds = kinds;
        Ok(Some(tokens))
    }

    /// The tokenizer.
    pub(super) fn tokenizer(&self) -> Result<Tokenizer, ModelError> {
        let pipeline = match self.text("model")?.unwrap_or_default() {
            "llama" => self.sentencepiece(),
            "gpt2" => self.byte_pairs(),
            other => Err(self.broken(&format!(
                "tokenizer.ggml.model is {other:?}; supported are llama and gpt2"
            ))),
        }?;
        Tokenizer::new(
            self.path,
            pipeline,
            self.named("bos_token_id")?,
            self.named("eos_token_id")?,
        )
    }

    /// The chat template, with those for tools and documents; `None` where there is none.
    pub(super) fn chat_template(&self) -> Result<Option<ChatTemplate>, ModelError> {
        let mut templates = Vec::new();
        for (name, key) in [
            (DEFAULT_NAME, "tokenizer.chat_template"),
            ("tool_use", "tokenizer.chat_template.tool_use"),
            ("rag", "tokenizer.chat_template.rag"),
        ] {
            match self.header.metadata.get(key) {
                None => {}
                Some(Metadata::Text(text)) => templates.push(NamedTemplate {
                    name: name.to_owned(),
                    file: self.path.to_owned(),
                    text: (*text).to_owned(),
                }),
                Some(_) => return Err(self.broken(&format!("{key} must be a text"))),
            }
        }
        let mut special_tokens = Vec::new();
        for (name, setting) in [
            ("bos_token", "bos_token_id"),
            ("eos_token", "eos_token_id"),
            ("unk_token", "unknown_token_id"),
            ("pad_token", "padding_token_id"),
        ] {
            if let Some(id) = self.named(setting)? {
                special_tokens.push((name.to_owned(), self.texts[id as usize].to_owned()));
            }
        }
        ChatTemplate::of_templates(&templates, special_tokens)
    }

    /// Every token that ends an answer.
    pub(super) fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// SentencePiece's byte-pair encoding: pieces with scores, spaces as `▁`, unknown characters as bytes.
    fn sentencepiece(&self) -> Result<Pipeline, ModelError> {
        let Some(scores) = self.get("scores") else {
            return Err(self.broken("tokenizer.ggml.scores is missing"));
        };
        let mut scores = self.for_every_token("scores", scores, |score| match score {
            Metadata::Float(score) if !score.is_nan() => Some(score as f32),
            _ => None,
        })?;
        for (score, kind) in scores.iter_mut().zip(&self.kinds) {
            if matches!(*kind, UNKNOWN | CONTROL | UNUSED | BYTE) {
                *score = f32::NAN;
            }
        }
        let vocabulary = self.vocabulary()?;
        let unknown = self.kinds.iter().position(|kind| *kind == UNKNOWN);
        let space = |text: &str| Pattern::Text(text.to_owned());
        let mut normalizations = vec![Normalization::Replace(space(" "), "▁".into())];
        let mut decodings = vec![
            Decoding::Replace(space("▁"), " ".into()),
            Decoding::ByteTokens,
            Decoding::Fuse,
        ];
        if self.flag("add_space_prefix")?.unwrap_or(true) {
            normalizations.insert(0, Normalization::Prepend("▁".into()));
            decodings.push(Decoding::Strip(' ', 1, 0));
        }
        let model = BytePairs {
            merges: Merges::Scored(Scores::new(scores)),
            neighbours: Neighbours::new(&vocabulary),
            unknown: Unknown::new(unknown.map(|id| self.texts[id]), &vocabulary),
            fuses_unknown: true,
            byte_tokens: vocabulary.byte_tokens(),
            continuing_prefix: String::new(),
            word_suffix: String::new(),
            takes_whole_words: false,
        };
        let steps = Steps {
            normalizations,
            cuts: Vec::new(),
            decodings,
        };
        self.pipeline(vocabulary, model, steps, true)
    }

    /// Byte-level byte-pair encoding with merges in the file and a pre-tokenizer known by name.
    fn byte_pairs(&self) -> Result<Pipeline, ModelError> {
        let name = self.text("pre")?.unwrap_or_default();
        let known = Known::named(name).map_err(|problem| self.broken(&problem))?;
        let Some(merges) = self.get("merges") else {
            return Err(self.broken("tokenizer.ggml.merges is missing"));
        };
        let merges = self.texts_of("merges", merges)?;
        let vocabulary = self.vocabulary()?;
        let mut table = MergeTable::with_capacity(merges.len());
        for (place, merge) in merges.iter().enumerate() {
            let Some(tokens) = pair(merge) else {
                return Err(self.broken(&format!(
                    "merge {place} of tokenizer.ggml.merges is {merge:?}, not two tokens"
                )));
            };
            table
                .insert(place, tokens, 0, &vocabulary)
                .map_err(|problem| self.broken(&problem))?;
        }
        let model = BytePairs {
            merges: Merges::Listed(table),
            neighbours: Neighbours::new(&vocabulary),
            unknown: Unknown::Nothing,
            fuses_unknown: false,
            byte_tokens: Vec::new(),
            continuing_prefix: String::new(),
            word_suffix: String::new(),
            takes_whole_words: known.ignores_merges,
        };
        let steps = Steps {
            normalizations: known.normalizations(),
            cuts: known.cuts().map_err(|problem| self.broken(&problem))?,
            decodings: vec![Decoding::Bytes],
        };
        self.pipeline(vocabulary, model, steps, known.adds_bos)
    }

    fn pipeline(
        &self,
        vocabulary: Vocabulary,
        model: BytePairs,
        steps: Steps,
        adds_bos: bool,
    ) -> Result<Pipeline, ModelError> {
        let broken = |problem: String| self.broken(&problem);
        Ok(Pipeline {
            vocabulary,
            added: AddedTokens::new(self.added_tokens()).map_err(broken)?,
            normalizer: Normalizer::new(steps.normalizations).map_err(broken)?,
            pre_tokenizer: PreTokenizer::new(steps.cuts).map_err(broken)?,
            model: Model::BytePairs(model),
            surroundings: self.surroundings(adds_bos)?,
            decoder: Decoder::new(steps.decodings).map_err(broken)?,
        })
    }

    fn vocabulary(&self) -> Result<Vocabulary, ModelError> {
        let numbered = self.texts.iter().enumerate();
        Vocabulary::new(numbered.map(|(id, text)| (id as u32, *text))).map_err(|problem| self.broken(&problem))
    }

    fn added_tokens(&self) -> Vec<AddedToken> {
        let is_phi3 = self.is_phi3();
        let tokens = self.texts.iter().zip(&self.kinds).enumerate();
        let added = tokens.filter(|(_, (_, kind))| matches!(**kind, UNKNOWN | CONTROL | USER_DEFINED));
        added
            .map(|(id, (text, kind))| AddedToken {
                id: id as u32,
                text: (*text).to_owned(),
                normalized: None,
                single_word: false,
                strips_left: false,
                strips_right: is_phi3 && !PHI3_UNSTRIPPED.contains(text),
                special: *kind != USER_DEFINED,
                control: *kind != USER_DEFINED || is_mark(text),
            })
            .collect()
    }

    /// True for the tokenizer of Phi-3 and Phi-3.5, whose special tokens take in the white space behind them. Files do not say so:
    /// llama.cpp goes by the model's name.
    fn is_phi3(&self) -> bool {
        let text = |key: &str| match self.header.metadata.get(key) {
            Some(Metadata::Text(text)) => text.to_lowercase(),
            _ => String::new(),
        };
        let name = text("general.name");
        let is_named = name.contains("phi-3") || name.contains("phi3");
        is_named || text("general.architecture") == "phi3" && text("tokenizer.ggml.model") == "llama"
    }

    /// BOS and EOS around a text, by the file's flags or by the custom of the tokenizer's kind.
    fn surroundings(&self, adds_bos: bool) -> Result<Surroundings, ModelError> {
        let wanted = |flag: &str, custom: bool, token: &'static str| -> Result<Vec<u32>, ModelError> {
            if self.flag(flag)?.unwrap_or(custom) {
                Ok(self.named(token)?.into_iter().collect())
            } else {
                Ok(Vec::new())
            }
        };
        Ok(Surroundings::new(
            wanted("add_bos_token", adds_bos, "bos_token_id")?,
            wanted("add_eos_token", false, "eos_token_id")?,
        ))
    }

    /// A token the file names by id, which must exist.
    fn named(&self, setting: &'static str) -> Result<Option<u32>, ModelError> {
        let id = match self.get(setting) {
            None => return Ok(None),
            Some(Metadata::Integer(id)) => id,
            Some(_) => return Err(self.broken(&format!("tokenizer.ggml.{setting} must be the id of a token"))),
        };
        match usize::try_from(*id) {
            Ok(index) if index < self.texts.len() => Ok(Some(index as u32)),
            _ => Err(ModelError::MissingToken {
                path: self.path.to_owned(),
                role: setting,
                token: id.to_string(),
            }),
        }
    }

    fn flag(&self, name: &str) -> Result<Option<bool>, ModelError> {
        match self.get(name) {
            None => Ok(None),
            Some(Metadata::Flag(flag)) => Ok(Some(*flag)),
            Some(_) => Err(self.broken(&format!("tokenizer.ggml.{name} must be true or false"))),
        }
    }

    fn text(&self, name: &str) -> Result<Option<&'a str>, ModelError> {
        match self.get(name) {
            None => Ok(None),
            Some(Metadata::Text(text)) => Ok(Some(text)),
            Some(_) => Err(self.broken(&format!("tokenizer.ggml.{name} must be a text"))),
        }
    }

    fn texts_of(&self, name: &str, list: &Metadata<'a>) -> Result<Vec<&'a str>, ModelError> {
        let not_texts = || self.broken(&format!("tokenizer.ggml.{name} must be a list of texts"));
        let Metadata::List(items) = list else {
            return Err(not_texts());
        };
        items.texts().map_err(|_| not_texts())
    }

    /// The values of a list that holds one for every token.
    fn for_every_token<T>(
        &self,
        name: &str,
        list: &Metadata<'a>,
        read: impl Fn(Metadata<'a>) -> Option<T>,
    ) -> Result<Vec<T>, ModelError> {
        let wanted = self.texts.len();
        match list {
            Metadata::List(items) if items.len() == wanted => items
                .values()
                .enumerate()
                .map(|(id, item)| {
                    let problem =
                        || self.broken(&format!("tokenizer.ggml.{name} holds no possible value for token {id}"));
                    item.ok().and_then(&read).ok_or_else(problem)
                })
                .collect(),
            Metadata::List(items) => Err(self.broken(&format!(
                "tokenizer.ggml.{name} has {} values for {wanted} tokens",
                items.len()
            ))),
            _ => Err(self.broken(&format!(
                "tokenizer.ggml.{name} must be a list with a value for every token"
            ))),
        }
    }

    fn get(&self, name: &str) -> Option<&'a Metadata<'a>> {
        self.header.metadata.get(&format!("tokenizer.ggml.{name}"))
    }

    fn broken(&self, problem: &str) -> ModelError {
        broken(self.path, problem)
    }
}
