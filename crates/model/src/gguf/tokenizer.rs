//! Tokenizers and chat templates stored in GGUF files.
//!
//! The vocabulary is put into the form of a tokenizer.json and read as one.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Value, json};

use super::header::{Header, Metadata};
use super::pre_tokenizers::{PreTokenizer, byte_level};
use crate::{ChatTemplate, ModelError, Tokenizer};

/// What a token is for, as GGUF numbers it.
const UNKNOWN: i128 = 2;
const CONTROL: i128 = 3;
const USER_DEFINED: i128 = 4;
const UNUSED: i128 = 5;
const BYTE: i128 = 6;

/// Tokens that end a turn in some model, whether or not the file names them.
const TURN_ENDS: &[&str] = &["<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>"];

/// The vocabulary of a file.
pub(super) struct Vocabulary<'a> {
    path: &'a Path,
    header: &'a Header,
    tokens: Vec<&'a str>,
    kinds: Vec<i128>,
}

impl<'a> Vocabulary<'a> {
    /// `None` where the file has no tokenizer.
    pub(super) fn read(path: &'a Path, header: &'a Header) -> Result<Option<Vocabulary<'a>>, ModelError> {
        let Some(tokens) = header.metadata.get("tokenizer.ggml.tokens") else {
            return Ok(None);
        };
        let mut vocabulary = Vocabulary {
            path,
            header,
            tokens: Vec::new(),
            kinds: Vec::new(),
        };
        vocabulary.tokens = vocabulary.texts("tokens", tokens)?;
        vocabulary.kinds = match header.metadata.get("tokenizer.ggml.token_type") {
            Some(Metadata::List(kinds)) if kinds.len() == vocabulary.tokens.len() => kinds
                .iter()
                .map(|kind| match kind {
                    Metadata::Integer(kind) => *kind,
                    _ => 0,
                })
                .collect(),
            Some(_) => return Err(vocabulary.broken("tokenizer.ggml.token_type must hold a number for every token")),
            None => vec![1; vocabulary.tokens.len()],
        };
        Ok(Some(vocabulary))
    }

    /// The tokenizer.
    pub(super) fn tokenizer(&self) -> Result<Tokenizer, ModelError> {
        let model = match self.get("model") {
            Some(Metadata::Text(model)) => model.as_str(),
            _ => "",
        };
        let mut description = match model {
            "llama" => self.sentencepiece()?,
            "gpt2" => self.byte_pairs()?,
            other => {
                return Err(self.broken(&format!(
                    "tokenizer.ggml.model is {other:?}; supported are llama and gpt2"
                )));
            }
        };
        description["version"] = "1.0".into();
        description["added_tokens"] = self.added_tokens();
        description["post_processor"] = self.post_processor(model);
        let bytes = description.to_string().into_bytes();
        Tokenizer::from_parts(
            self.path,
            &bytes,
            self.named("bos_token_id")?,
            self.named("eos_token_id")?,
        )
    }

    /// The chat template, where there is one.
    pub(super) fn chat_template(&self) -> Result<Option<ChatTemplate>, ModelError> {
        let Some(Metadata::Text(source)) = self.header.metadata.get("tokenizer.chat_template") else {
            return Ok(None);
        };
        let mut special_tokens = Vec::new();
        for (name, setting) in [
            ("bos_token", "bos_token_id"),
            ("eos_token", "eos_token_id"),
            ("unk_token", "unknown_token_id"),
            ("pad_token", "padding_token_id"),
        ] {
            if let Some(id) = self.named(setting)? {
                special_tokens.push((name.to_owned(), self.tokens[id as usize].to_owned()));
            }
        }
        ChatTemplate::of_file(self.path, source, special_tokens).map(Some)
    }

    /// Every token that ends a generation.
    pub(super) fn stops(&self) -> Result<Vec<u32>, ModelError> {
        let mut stops: Vec<u32> = Vec::new();
        for setting in ["eos_token_id", "eot_token_id", "eom_token_id"] {
            stops.extend(self.named(setting)?);
        }
        for (id, token) in self.tokens.iter().enumerate() {
            if self.kinds[id] == CONTROL && TURN_ENDS.contains(token) {
                stops.push(id as u32);
            }
        }
        stops.sort_unstable();
        stops.dedup();
        Ok(stops)
    }

    /// SentencePiece's byte-pair encoding: pieces with scores, spaces as `▁`, unknown characters as bytes.
    fn sentencepiece(&self) -> Result<Value, ModelError> {
        let scores: Vec<f64> = match self.get("scores") {
            Some(Metadata::List(scores)) if scores.len() == self.tokens.len() => scores
                .iter()
                .map(|score| match score {
                    Metadata::Float(score) => *score,
                    _ => 0.0,
                })
                .collect(),
            _ => return Err(self.broken("tokenizer.ggml.scores must hold a number for every token")),
        };
        let unknown = self
            .kinds
            .iter()
            .position(|kind| *kind == UNKNOWN)
            .map(|id| self.tokens[id]);
        let prefix = !matches!(self.get("add_space_prefix"), Some(Metadata::Flag(false)));
        let mut normalizers = vec![json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})];
        let mut decoders = vec![
            json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if prefix {
            normalizers.insert(0, json!({"type": "Prepend", "prepend": "▁"}));
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        Ok(json!({
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "pre_tokenizer": null,
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": {"type": "BPE", "unk_token": unknown, "fuse_unk": true, "byte_fallback": true,
                "vocab": self.vocabulary(), "merges": self.merges_by_score(&scores)},
        }))
    }

    /// The merges that build pieces of a scored vocabulary, the best piece first.
    fn merges_by_score(&self, scores: &[f64]) -> Vec<[&'a str; 2]> {
        let ids: HashMap<&str, usize> = self.tokens.iter().enumerate().map(|(id, token)| (*token, id)).collect();
        let mut merges: Vec<(f64, [&str; 2])> = Vec::new();
        for (id, token) in self.tokens.iter().enumerate() {
            if matches!(self.kinds[id], UNKNOWN | CONTROL | UNUSED | BYTE) {
                continue;
            }
            let splits = token.char_indices().skip(1).map(|(at, _)| token.split_at(at));
            let mut own: Vec<[&str; 2]> = splits
                .filter(|(left, right)| ids.contains_key(left) && ids.contains_key(right))
                .map(|(left, right)| [left, right])
                .collect();
            own.sort_by_key(|[left, right]| (ids[left], ids[right]));
            merges.extend(own.into_iter().map(|pair| (scores[id], pair)));
        }
        let lengths = |[left, right]: [&str; 2]| (left.chars().count(), right.chars().count());
        merges.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| lengths(b.1).cmp(&lengths(a.1))));
        merges.into_iter().map(|(_, pair)| pair).collect()
    }

    /// Byte-level byte-pair encoding with merges in the file and a pre-tokenizer known by name.
    fn byte_pairs(&self) -> Result<Value, ModelError> {
        let pre_tokenizer = self.pre_tokenizer()?;
        let Some(merges) = self.get("merges") else {
            return Err(self.broken("tokenizer.ggml.merges is missing"));
        };
        let merges = self.texts("merges", merges)?;
        Ok(json!({
            "normalizer": pre_tokenizer.normalizer(),
            "pre_tokenizer": pre_tokenizer.description(),
            "decoder": byte_level(true),
            "model": {"type": "BPE", "ignore_merges": pre_tokenizer.ignores_merges, "vocab": self.vocabulary(), "merges": merges},
        }))
    }

    fn pre_tokenizer(&self) -> Result<&'static PreTokenizer, ModelError> {
        let name = match self.get("pre") {
            Some(Metadata::Text(name)) => name.as_str(),
            _ => "",
        };
        PreTokenizer::named(name).map_err(|problem| self.broken(&problem))
    }

    fn vocabulary(&self) -> Value {
        let ids = self.tokens.iter().enumerate();
        Value::Object(ids.map(|(id, token)| ((*token).to_owned(), id.into())).collect())
    }

    fn added_tokens(&self) -> Value {
        let added = self
            .tokens
            .iter()
            .zip(&self.kinds)
            .enumerate()
            .filter(|(_, (_, kind))| matches!(**kind, UNKNOWN | CONTROL | USER_DEFINED));
        added
            .map(|(id, (token, kind))| {
                json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": *kind != USER_DEFINED})
            })
            .collect::<Vec<_>>()
            .into()
    }

    /// BOS and EOS around a text, by the file's flags or by the custom of the tokenizer's kind.
    fn post_processor(&self, model: &str) -> Value {
        let flag = |name: &str, custom: bool| match self.get(name) {
            Some(Metadata::Flag(flag)) => *flag,
            _ => custom,
        };
        let custom_bos = model == "llama" || self.pre_tokenizer().is_ok_and(|known| known.adds_bos);
        let mut single = vec![json!({"Sequence": {"id": "A", "type_id": 0}})];
        let mut special_tokens = serde_json::Map::new();
        let mut special = |setting: &'static str| -> Option<Value> {
            let id = self.named(setting).ok().flatten()?;
            let token = self.tokens[id as usize];
            special_tokens.insert(token.to_owned(), json!({"id": token, "ids": [id], "tokens": [token]}));
            Some(json!({"SpecialToken": {"id": token, "type_id": 0}}))
        };
        if flag("add_bos_token", custom_bos) {
            single.splice(0..0, special("bos_token_id"));
        }
        if flag("add_eos_token", false) {
            single.extend(special("eos_token_id"));
        }
        let mut pair = single.clone();
        pair.push(json!({"Sequence": {"id": "B", "type_id": 1}}));
        json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special_tokens})
    }

    /// A token the file names by id, which must exist.
    fn named(&self, setting: &'static str) -> Result<Option<u32>, ModelError> {
        let Some(Metadata::Integer(id)) = self.get(setting) else {
            return Ok(None);
        };
        match usize::try_from(*id) {
            Ok(index) if index < self.tokens.len() => Ok(Some(index as u32)),
            _ => Err(ModelError::MissingToken {
                path: self.path.to_owned(),
                role: setting,
                token: id.to_string(),
            }),
        }
    }

    fn texts(&self, name: &str, list: &'a Metadata) -> Result<Vec<&'a str>, ModelError> {
        let not_texts = || self.broken(&format!("tokenizer.ggml.{name} must be a list of texts"));
        let Metadata::List(items) = list else {
            return Err(not_texts());
        };
        items
            .iter()
            .map(|item| match item {
                Metadata::Text(text) => Ok(text.as_str()),
                _ => Err(not_texts()),
            })
            .collect()
    }

    fn get(&self, name: &str) -> Option<&'a Metadata> {
        self.header.metadata.get(&format!("tokenizer.ggml.{name}"))
    }

    fn broken(&self, problem: &str) -> ModelError {
        ModelError::Tokenizer {
            path: self.path.to_owned(),
            problem: problem.to_owned(),
        }
    }
}
