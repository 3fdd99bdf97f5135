//! Turns SentencePiece vocabularies from any file into a pipeline.

use super::added::{AddedToken, AddedTokens};
use super::byte_pairs::{BytePairs, Unknown};
use super::charsmap::CharacterMap;
use super::decoder::{Decoder, Decoding};
use super::merges::{Merges, Scores};
use super::model::Model;
use super::neighbours::Neighbours;
use super::normalizer::{Normalization, Normalizer};
use super::piece_spaces::{PieceSpaces, finder_of};
use super::pipeline::Pipeline;
use super::pre_tokenizer::PreTokenizer;
use super::surroundings::Surroundings;
use super::unigram::Unigram;
use super::vocabulary::Vocabulary;

/// The types of pieces, with the numbers of SentencePiece and GGUF.
pub(crate) const NORMAL: u8 = 1;
pub(crate) const UNKNOWN: u8 = 2;
pub(crate) const CONTROL: u8 = 3;
pub(crate) const USER_DEFINED: u8 = 4;
pub(crate) const UNUSED: u8 = 5;
pub(crate) const BYTE: u8 = 6;

/// A vocabulary with its settings. Lists have one value per id.
pub(crate) struct SentencePieces<'a> {
    pub(crate) texts: Vec<&'a str>,
    pub(crate) scores: Vec<f32>,
    pub(crate) kinds: Vec<u8>,
    pub(crate) algorithm: Algorithm,
    pub(crate) map: Option<CharacterMap>,
    pub(crate) adds_space: bool,
    pub(crate) space_at_end: bool,
    pub(crate) removes_extra_spaces: bool,
    pub(crate) escapes_spaces: bool,
    /// True if tokens of bytes spell unknown characters, if the vocabulary has them.
    pub(crate) spells_bytes: bool,
}

/// The algorithm from text to pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Algorithm {
    /// Byte-pair encoding by scores; equal scores merge from the left, as in SentencePiece.
    Merging,
    /// Byte-pair encoding by scores; equal scores merge in the order in which `transformers` lists them.
    ListedMerging,
    Unigram,
}

impl SentencePieces<'_> {
    /// The pipeline; `added` replaces the vocabulary's own tokens of special types.
    pub(crate) fn pipeline(
        self,
        added: impl FnOnce(Vec<AddedToken>) -> Vec<AddedToken>,
        surroundings: Surroundings,
    ) -> Result<Pipeline, String> {
        let vocabulary = Vocabulary::new(self.texts.iter().enumerate().map(|(id, text)| (id as u32, *text)))?;
        let tokens = added(self.added_tokens());
        Ok(Pipeline {
            normalizer: Normalizer::new(vec![Normalization::Pieces(self.spaces(&tokens)?)])?,
            added: AddedTokens::new(tokens)?,
            pre_tokenizer: PreTokenizer::default(),
            decoder: self.decoder()?,
            model: self.model(&vocabulary)?,
            vocabulary,
            surroundings,
        })
    }

    /// Control tokens are matched in the original text, user symbols in the normalized one.
    fn added_tokens(&self) -> Vec<AddedToken> {
        let tokens = self.texts.iter().zip(&self.kinds).enumerate();
        let added = tokens.filter(|(_, (_, kind))| matches!(**kind, UNKNOWN | CONTROL | USER_DEFINED));
        let token = |(id, (text, kind)): (usize, (&&str, &u8))| AddedToken {
            normalized: (*kind == USER_DEFINED).then(|| (*text).to_owned()),
            ..AddedToken::new(id as u32, (*text).to_owned(), *kind != USER_DEFINED)
        };
        added.map(token).collect()
    }

    fn spaces(&self, tokens: &[AddedToken]) -> Result<PieceSpaces, String> {
        let changes_symbols = self.map.is_some() || self.removes_extra_spaces;
        let symbols = tokens.iter().filter_map(|token| token.normalized.as_deref());
        let symbols: Vec<&str> = symbols.filter(|_| changes_symbols).collect();
        Ok(PieceSpaces {
            map: self.map.clone(),
            kept: finder_of(&symbols)?,
            adds_space: self.adds_space,
            at_end: self.space_at_end,
            removes_extra: self.removes_extra_spaces,
            escapes: self.escapes_spaces,
        })
    }

    fn decoder(&self) -> Result<Decoder, String> {
        let mut steps = Decoding::for_pieces();
        match (self.adds_space, self.space_at_end) {
            (true, false) => steps.push(Decoding::Strip(' ', 1, 0)),
            (true, true) => steps.push(Decoding::Strip(' ', 0, 1)),
            (false, _) => {}
        }
        Decoder::new(steps)
    }

    fn model(mut self, vocabulary: &Vocabulary) -> Result<Model, String> {
        let unknown = self.kinds.iter().position(|kind| *kind == UNKNOWN);
        let byte_tokens = if self.spells_bytes {
            vocabulary.byte_tokens()
        } else {
            Vec::new()
        };
        for (score, kind) in self.scores.iter_mut().zip(&self.kinds) {
            if matches!(*kind, UNKNOWN | CONTROL | UNUSED | BYTE) {
                *score = f32::NAN;
            }
        }
        if self.algorithm == Algorithm::Unigram {
            for (score, kind) in self.scores.iter_mut().zip(&self.kinds) {
                if *kind == USER_DEFINED {
                    *score = f32::NAN;
                }
            }
            let model = Unigram::of_pieces(&self.scores, unknown.map(|id| id as u32), byte_tokens, vocabulary)?;
            return Ok(Model::Unigram(model));
        }
        Ok(Model::BytePairs(BytePairs {
            merges: Merges::Scored(match self.algorithm {
                Algorithm::ListedMerging => Scores::new(self.scores),
                _ => Scores::from_left(self.scores),
            }),
            neighbours: Neighbours::new(vocabulary),
            unknown: Unknown::new(unknown.map(|id| self.texts[id]), vocabulary),
            fuses_unknown: true,
            byte_tokens,
            continuing_prefix: String::new(),
            word_suffix: String::new(),
            takes_whole_words: false,
        }))
    }
}
