//! Text to token ids and back.
//!
//! tokenizer.json, tokenizer.model, tekken.json and GGUF files all become a [`Pipeline`]: added tokens are extracted
//! from a text, and the rest is normalized, split into words and encoded word by word. Steps and ids match the crate
//! `tokenizers`. Files are untrusted, so every step is checked when it is read and bounded when it runs.

mod added;
mod base64;
mod byte_level;
mod byte_pairs;
mod charsmap;
mod decoder;
mod description;
mod folder;
mod growth;
mod longest;
mod merges;
mod merging;
mod model;
mod neighbours;
mod normalizer;
mod pattern;
mod piece_spaces;
mod pipeline;
mod pre_tokenizer;
mod protobuf;
mod sentence_piece_file;
mod sentence_pieces;
mod settings;
mod stored;
mod surroundings;
mod tekken;
mod unigram;
mod vocabulary;
mod watch;
mod words;

use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;

use crate::{ConversationText, ModelError};

pub(crate) use added::{AddedToken, AddedTokens};
pub(crate) use byte_pairs::{BytePairs, Unknown};
pub(crate) use charsmap::CharacterMap;
pub(crate) use decoder::{Decoder, Decoding};
pub(crate) use description::pair;
pub(crate) use folder::tokenizer_file;
pub(crate) use merges::{MergeTable, Merges};
pub(crate) use model::Model;
pub(crate) use neighbours::Neighbours;
pub(crate) use normalizer::{Normalization, Normalizer};
pub(crate) use pattern::{Behavior, Pattern};
pub(crate) use piece_spaces::SPACE_PIECE;
pub(crate) use pipeline::Pipeline;
pub(crate) use pre_tokenizer::{Cut, GPT2_WORDS, PreTokenizer, is_punctuation};
pub(crate) use sentence_pieces::{Algorithm, BYTE, CONTROL, NORMAL, SentencePieces, UNKNOWN, USER_DEFINED};
pub(crate) use settings::TokenizerSettings;
pub(crate) use stored::{StoredModel, StoredTokens};
pub(crate) use surroundings::Surroundings;
pub(crate) use vocabulary::Vocabulary;
pub(crate) use words::WordPieces;

/// Maximum number of characters of a problem in an error.
const LONGEST_PROBLEM: usize = 240;

/// The tokenizer of a model. Copies share their tables.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    pipeline: Arc<Pipeline>,
    vocab_size: usize,
    bos: Option<u32>,
    eos: Option<u32>,
    /// True if BOS is prepended although the tokenizer has no such rule.
    adds_bos: bool,
}

/// The tokens of a text, or of two texts in one sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextTokens {
    /// All tokens.
    pub tokens: Vec<u32>,
    /// Number of leading tokens that count as the first text's: all of them, unless the model tells two texts apart.
    pub of_first: usize,
}

impl From<Vec<u32>> for TextTokens {
    fn from(tokens: Vec<u32>) -> Self {
        Self {
            of_first: tokens.len(),
            tokens,
        }
    }
}

impl Tokenizer {
    /// A tokenizer read from `path`, with the ids of BOS and EOS.
    pub(crate) fn new(
        path: &Path,
        pipeline: Pipeline,
        bos: Option<u32>,
        eos: Option<u32>,
    ) -> Result<Tokenizer, ModelError> {
        let vocab_size = pipeline.len();
        if vocab_size == 0 {
            return Err(broken(path, "its vocabulary is empty"));
        }
        Ok(Tokenizer {
            pipeline: Arc::new(pipeline),
            vocab_size,
            bos,
            eos,
            adds_bos: false,
        })
    }

    /// This tokenizer without its added tokens from id `count` on. A model that embeds `count` tokens cannot read them,
    /// so texts that spell them stay text. Gemma 3's `<image_soft_token>` is such a token in models without pictures.
    /// BOS, EOS and the tokenizer's own vocabulary stay, and with one of them beyond `count` every added token.
    ///
    /// # Errors
    /// [`ModelError::Tokenize`] if the other tokens cannot be searched for.
    pub(crate) fn without_added_tokens_from(mut self, count: usize) -> Result<Tokenizer, ModelError> {
        let mut ends = self.bos.iter().chain(&self.eos);
        if self.vocab_size > count && ends.all(|id| (*id as usize) < count) {
            let pipeline = Arc::make_mut(&mut self.pipeline);
            pipeline.added = pipeline.added.below(count).map_err(failed)?;
            self.vocab_size = pipeline.len();
        }
        Ok(self)
    }

    /// This tokenizer for texts in lower case. Added tokens keep their case.
    pub(crate) fn in_lower_case(mut self) -> Tokenizer {
        Arc::make_mut(&mut self.pipeline).normalizer.lower();
        self
    }

    fn resolve(
        &self,
        settings: &TokenizerSettings,
        role: &'static str,
        token: Option<&str>,
    ) -> Result<Option<u32>, ModelError> {
        let Some(token) = token else { return Ok(None) };
        match self.token_id(token) {
            Some(id) => Ok(Some(id)),
            None => Err(ModelError::MissingToken {
                path: settings.path.clone(),
                role,
                token: token.to_owned(),
            }),
        }
    }

    /// Token ids of `text`. With `add_special` the tokens the model expects around a text, such as BOS, are added.
    /// Special tokens spelt in the text are always recognised. Time and memory are nearly linear in the text.
    ///
    /// # Errors
    /// [`ModelError::Tokenize`] if the tokenizer's settings cannot handle the text: a pattern takes too many steps,
    /// replacements make the text too long, or a character has no token.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, ModelError> {
        self.encode_around(text, &[], add_special, &mut |_| ControlFlow::Continue(()))
    }

    /// As [`encode`](Self::encode), but messages and documents stay text: within the literals of `text`, control
    /// tokens are not recognised. Control tokens are special tokens, tokens that end an answer, and tokens spelt like
    /// tags, such as `<|name|>` and `[NAME]`. Other added tokens, such as `<think>`, are recognised everywhere.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_conversation(&self, text: &ConversationText, add_special: bool) -> Result<Vec<u32>, ModelError> {
        self.encode_conversation_until(text, add_special, &mut |_| ControlFlow::Continue(()))
    }

    /// As [`encode_conversation`](Self::encode_conversation); every few milliseconds `poll` receives a lower bound of
    /// the text's tokens and decides whether to continue.
    ///
    /// # Errors
    /// As [`encode`](Self::encode), and [`ModelError::TokenizeInterrupted`] if `poll` breaks.
    pub fn encode_conversation_until(
        &self,
        text: &ConversationText,
        add_special: bool,
        poll: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Vec<u32>, ModelError> {
        self.encode_around(text.text(), text.literals(), add_special, poll)
    }

    /// True if [`encode_pair_until`](Self::encode_pair_until) is possible.
    pub fn joins_texts(&self) -> bool {
        self.pipeline.surroundings.joins_texts()
    }

    /// Token ids of two texts in one sequence, with the tokens that the model expects around them. Control tokens that
    /// the texts spell stay text. `poll` is as in [`encode_conversation_until`](Self::encode_conversation_until).
    ///
    /// # Errors
    /// As there, and for a tokenizer that does not join texts.
    pub fn encode_pair_until(
        &self,
        texts: [&str; 2],
        poll: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<TextTokens, ModelError> {
        let mut encode = |text: &str| {
            let whole = 0..text.len();
            let literals: &[Range<usize>] = if text.is_empty() {
                &[]
            } else {
                std::slice::from_ref(&whole)
            };
            self.encode_around(text, literals, false, poll)
        };
        let [first, second] = texts;
        let (first, second) = (encode(first)?, encode(second)?);
        let joined = self.pipeline.surroundings.around_pair(&first, &second);
        let (tokens, of_first) = joined.ok_or_else(|| failed("the tokenizer does not join two texts".to_owned()))?;
        Ok(TextTokens { tokens, of_first })
    }

    fn encode_around(
        &self,
        text: &str,
        literals: &[Range<usize>],
        add_special: bool,
        poll: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Vec<u32>, ModelError> {
        let mut is_stopped = false;
        let mut poll = |tokens| {
            let flow = poll(tokens);
            is_stopped |= flow.is_break();
            flow
        };
        let encoded = self.pipeline.encode(text, literals, add_special, &mut poll);
        let mut ids = encoded.map_err(|problem| {
            if is_stopped {
                ModelError::TokenizeInterrupted
            } else {
                failed(problem)
            }
        })?;
        if let (true, true, Some(bos)) = (add_special, self.adds_bos, self.bos) {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// The text of `ids` without special tokens. Invalid UTF-8 becomes U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> Result<String, ModelError> {
        self.pipeline.decode(ids, true).map_err(failed)
    }

    /// The text of `ids`, including special tokens.
    pub fn decode_with_special(&self, ids: &[u32]) -> Result<String, ModelError> {
        self.pipeline.decode(ids, false).map_err(failed)
    }

    /// The id of a token by its exact text.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.pipeline.id(token)
    }

    /// The text of a token in the vocabulary's spelling.
    pub fn token_text(&self, id: u32) -> Option<String> {
        self.pipeline.text(id).map(str::to_owned)
    }

    /// The bytes that a token adds in the middle of a text; for an added token, its own spelling; empty for an
    /// invalid id.
    ///
    /// # Errors
    /// [`ModelError::Tokenize`] if the tokenizer's settings cannot handle it.
    pub fn token_bytes(&self, id: u32) -> Result<Vec<u8>, ModelError> {
        let pipeline = &self.pipeline;
        match (pipeline.added.token(id), pipeline.vocabulary.text(id)) {
            (Some(token), _) => Ok(token.text.as_bytes().to_vec()),
            (None, Some(text)) => pipeline.decoder.bytes_in_text(text).map_err(failed),
            (None, None) => Ok(Vec::new()),
        }
    }

    /// True if `id` is a special token, which [`decode`](Self::decode) leaves out.
    pub fn is_special(&self, id: u32) -> bool {
        self.pipeline.added.is_special(id)
    }

    /// Makes the tokens that end an answer control tokens.
    pub(crate) fn add_control_tokens(&mut self, ids: &[u32]) {
        Arc::make_mut(&mut self.pipeline).added.make_control(ids);
    }

    /// Texts of the tokens that messages and documents cannot write.
    pub(crate) fn control_texts(&self) -> Vec<String> {
        self.pipeline.added.control_texts()
    }

    /// The algorithm, named as in tokenizer.json.
    pub(crate) fn kind(&self) -> &'static str {
        self.pipeline.model.name()
    }

    /// Highest token id + 1.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Approximate memory of the tokenizer's tables, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.pipeline.memory_bytes() as u64
    }

    /// The token at the start of a text, if there is one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token at the end of a text, if there is one.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// True if runs of byte tokens are decoded as a whole.
    pub(crate) fn has_byte_runs(&self) -> bool {
        self.pipeline.decoder.reads_byte_tokens()
    }

    /// True if a following token can still change the text of this one.
    pub(crate) fn is_open(&self, id: u32, text: &str) -> bool {
        if self.has_byte_runs() {
            // A run of byte tokens is valid UTF-8 only as a whole, which is known at its end.
            self.pipeline
                .text(id)
                .is_some_and(|token| decoder::byte_token(token).is_some())
        } else {
            text.ends_with('\u{fffd}')
        }
    }
}

/// An error about a tokenizer file, in one line of limited length.
pub(crate) fn broken(path: &Path, problem: &str) -> ModelError {
    ModelError::Tokenizer {
        path: path.to_owned(),
        problem: shortened(problem),
    }
}

/// An error about an unsupported kind of tokenizer.
pub(crate) fn unsupported(path: &Path, kind: &str, advice: &'static str) -> ModelError {
    ModelError::UnsupportedTokenizer {
        path: path.to_owned(),
        kind: shortened(kind),
        advice,
    }
}

fn failed(problem: String) -> ModelError {
    ModelError::Tokenize(shortened(&problem))
}

fn shortened(problem: &str) -> String {
    let line = problem.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut line: String = line.take(LONGEST_PROBLEM + 1).collect();
    if line.chars().count() > LONGEST_PROBLEM {
        line.pop();
        line.push('…');
    }
    line
}
