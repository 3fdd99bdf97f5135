//! Tokenizers and chat templates stored in GGUF files.

use std::path::Path;

use super::ends::ends;
use super::header::{Header, Metadata};
use super::pre_tokenizers::{Bos, PreTokenizer as Known, Spelling};
use crate::chat::{DEFAULT_NAME, NamedTemplate};
use crate::tokenizer::{
    AddedToken, AddedTokens, Algorithm, BYTE, BytePairs, CONTROL, CharacterMap, Decoder, MergeTable, Merges, Model,
    NORMAL, Neighbours, Normalizer, Pipeline, PreTokenizer, SentencePieces, Surroundings, UNKNOWN, USER_DEFINED,
    Unknown, Vocabulary, broken, pair, unsupported,
};
use crate::{ChatTemplate, InfillTokens, ModelError, Tokenizer};

/// Special tokens of Phi-3 that keep the spaces after them.
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

impl<'a> Tokens<'a> {
    /// `None` if the file has no tokenizer.
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
        let Some(kind) = self.text("model")? else {
            return Err(self.broken("tokenizer.ggml.model is missing"));
        };
        let pipeline = match kind {
            "llama" => self.pieces(Algorithm::ListedMerging),
            "t5" => self.pieces(Algorithm::Unigram),
            "gpt2" | "whitespace" => self.byte_pairs(self.text("pre")?.unwrap_or_default()),
            "gemma4" => self.byte_pairs(kind),
            "bert" => self.word_pieces(),
            kind => Err(unsupported(
                self.path,
                &format!("tokenizer {kind:?}"),
                "use a model whose tokenizer is llama, gpt2, gemma4, t5 or bert",
            )),
        }?;
        Tokenizer::new(
            self.path,
            pipeline,
            self.named("bos_token_id")?,
            self.named("eos_token_id")?,
        )
    }

    /// The chat template, with those for tools and documents; `None` if there is none.
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

    /// The tokens for infill (the middle of a text), if the file names them.
    pub(super) fn infill(&self) -> Result<Option<InfillTokens>, ModelError> {
        // Older files have other names for three of the tokens.
        let either = |name: &'static str, older: &'static str| match self.named(name)? {
            Some(id) => Ok(Some(id)),
            None => self.named(older),
        };
        let parts = [
            either("fim_pre_token_id", "prefix_token_id")?,
            either("fim_suf_token_id", "suffix_token_id")?,
            either("fim_mid_token_id", "middle_token_id")?,
        ];
        let [Some(prefix), Some(suffix), middle @ Some(_)] = parts else {
            return Ok(None);
        };
        Ok(Some(InfillTokens {
            prefix,
            suffix,
            middle,
            repository: self.named("fim_rep_token_id")?,
            file: self.named("fim_sep_token_id")?,
            padding: self.named("fim_pad_token_id")?,
        }))
    }

    /// Every token that ends an answer.
    pub(super) fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// A vocabulary of SentencePiece: pieces with scores, spaces as `▁`, unknown characters as bytes.
    fn pieces(&self, algorithm: Algorithm) -> Result<Pipeline, ModelError> {
        let Some(scores) = self.get("scores") else {
            return Err(self.broken("tokenizer.ggml.scores is missing"));
        };
        let scores = self.for_every_token("scores", scores, |score| match score {
            Metadata::Float(score) if !score.is_nan() => Some(score as f32),
            _ => None,
        })?;
        let is_unigram = algorithm == Algorithm::Unigram;
        let pieces = SentencePieces {
            texts: self.texts.clone(),
            scores,
            kinds: self.kinds.clone(),
            algorithm,
            map: self.character_map()?,
            adds_space: self.flag("add_space_prefix")?.unwrap_or(!is_unigram),
            space_at_end: false,
            removes_extra_spaces: self.flag("remove_extra_whitespaces")?.unwrap_or(false),
            escapes_spaces: true,
            spells_bytes: !is_unigram || self.kinds.contains(&BYTE),
        };
        let bos = if is_unigram { Bos::Asked } else { Bos::Usual };
        let surroundings = self.surroundings(bos, is_unigram)?;
        // Two texts have an end and a separator between them, as in XLM-R.
        let between = (self.named("eos_token_id")?, self.named("seperator_token_id")?);
        let surroundings = match between {
            (Some(end), Some(separator)) if is_unigram => surroundings.with_pair(vec![end, separator], false),
            _ => surroundings,
        };
        let pipeline = pieces.pipeline(|_| self.added_tokens(), surroundings);
        pipeline.map_err(|problem| self.broken(&problem))
    }

    /// The table of replacements, if the file has one.
    fn character_map(&self) -> Result<Option<CharacterMap>, ModelError> {
        let not_bytes = || self.broken("tokenizer.ggml.precompiled_charsmap must be a list of bytes");
        let list = match self.get("precompiled_charsmap") {
            None => return Ok(None),
            Some(Metadata::List(list)) => list,
            Some(_) => return Err(not_bytes()),
        };
        let byte = |value: Result<Metadata<'_>, String>| match value {
            Ok(Metadata::Integer(byte @ -128..=255)) => Some(byte as u8),
            _ => None,
        };
        let bytes: Vec<u8> = list.values().map(byte).collect::<Option<_>>().ok_or_else(not_bytes)?;
        CharacterMap::from_model(&bytes).map_err(|problem| self.broken(&problem))
    }

    /// Byte-pair encoding with merges from the file and a named pre-tokenizer.
    fn byte_pairs(&self, name: &str) -> Result<Pipeline, ModelError> {
        let Some(known) = Known::named(name) else {
            return Err(unsupported(
                self.path,
                &format!("pre-tokenizer {name:?}"),
                "it may be newer than Riffle; use the model's folder with tokenizer.json",
            ));
        };
        let broken = |problem: String| self.broken(&problem);
        let numbered = self.texts.iter().enumerate();
        let vocabulary = Vocabulary::new(numbered.map(|(id, text)| (id as u32, *text))).map_err(broken)?;
        let is_pieces = known.spelling == Spelling::Pieces;
        let unknown = self
            .kinds
            .iter()
            .position(|kind| *kind == UNKNOWN)
            .filter(|_| is_pieces);
        let model = BytePairs {
            merges: Merges::Listed(self.merges(&vocabulary)?),
            neighbours: Neighbours::new(&vocabulary),
            unknown: Unknown::new(unknown.map(|id| self.texts[id]), &vocabulary),
            fuses_unknown: is_pieces,
            byte_tokens: if is_pieces {
                vocabulary.byte_tokens()
            } else {
                Vec::new()
            },
            continuing_prefix: String::new(),
            word_suffix: String::new(),
            takes_whole_words: known.ignores_merges,
        };
        Ok(Pipeline {
            vocabulary,
            added: AddedTokens::new(self.added_tokens()).map_err(broken)?,
            normalizer: Normalizer::new(known.normalizations()).map_err(broken)?,
            pre_tokenizer: PreTokenizer::new(known.cuts().map_err(broken)?).map_err(broken)?,
            model: Model::BytePairs(model),
            surroundings: self.surroundings(known.bos, false)?,
            decoder: Decoder::new(known.decodings()).map_err(broken)?,
        })
    }

    /// The merges of the file.
    fn merges(&self, vocabulary: &Vocabulary) -> Result<MergeTable, ModelError> {
        let Some(merges) = self.get("merges") else {
            return Err(self.broken("tokenizer.ggml.merges is missing"));
        };
        let merges = self.texts_of("merges", merges)?;
        let mut table = MergeTable::with_capacity(merges.len());
        for (place, merge) in merges.iter().enumerate() {
            let Some(tokens) = pair(merge) else {
                return Err(self.broken(&format!(
                    "merge {place} of tokenizer.ggml.merges is {merge:?}, not two tokens"
                )));
            };
            let inserted = table.insert(place, tokens, 0, vocabulary);
            inserted.map_err(|problem| self.broken(&problem))?;
        }
        Ok(table)
    }

    /// The tokens with their kinds.
    pub(super) fn pieces_by_kind(&self) -> impl Iterator<Item = (&'a str, u8)> {
        self.texts.iter().copied().zip(self.kinds.iter().copied())
    }

    pub(super) fn added_tokens(&self) -> Vec<AddedToken> {
        let is_phi3 = self.is_phi3();
        let tokens = self.texts.iter().zip(&self.kinds).enumerate();
        let added = tokens.filter(|(_, (_, kind))| matches!(**kind, UNKNOWN | CONTROL | USER_DEFINED));
        added
            .map(|(id, (text, kind))| AddedToken {
                strips_right: is_phi3 && !PHI3_UNSTRIPPED.contains(text),
                ..AddedToken::new(id as u32, (*text).to_owned(), *kind != USER_DEFINED)
            })
            .collect()
    }

    /// True for the tokenizer of Phi-3 and Phi-3.5, whose special tokens include the white space after them. Files do
    /// not say so: llama.cpp decides by the model's name.
    fn is_phi3(&self) -> bool {
        let text = |key: &str| match self.header.metadata.get(key) {
            Some(Metadata::Text(text)) => text.to_lowercase(),
            _ => String::new(),
        };
        let name = text("general.name");
        let is_named = name.contains("phi-3") || name.contains("phi3");
        is_named || text("general.architecture") == "phi3" && text("tokenizer.ggml.model") == "llama"
    }

    /// BOS and EOS around a text, by the file's flags or the default of the tokenizer's kind.
    fn surroundings(&self, bos: Bos, usual_eos: bool) -> Result<Surroundings, ModelError> {
        let flag = self.flag("add_bos_token")?;
        let adds_bos = bos == Bos::Always || flag.unwrap_or(bos == Bos::Usual);
        let adds_eos = self.flag("add_eos_token")?.unwrap_or(usual_eos);
        let wanted = |flag: bool, token: &'static str| -> Result<Vec<u32>, ModelError> {
            if flag {
                Ok(self.named(token)?.into_iter().collect())
            } else {
                Ok(Vec::new())
            }
        };
        Ok(Surroundings::new(
            wanted(adds_bos, "bos_token_id")?,
            wanted(adds_eos, "eos_token_id")?,
        ))
    }

    /// A token that the file gives by id, which must exist.
    pub(super) fn named(&self, setting: &'static str) -> Result<Option<u32>, ModelError> {
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

    /// The values of a list with one per token.
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

    pub(super) fn broken(&self, problem: &str) -> ModelError {
        broken(self.path, problem)
    }
}
