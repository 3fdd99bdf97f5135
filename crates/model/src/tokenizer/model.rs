//! The models that turn words into tokens.

use super::byte_pairs::{BytePairs, Unknown};
use super::merging::Word;
use super::unigram::Unigram;
use super::vocabulary::Vocabulary;
use super::words::{WordPieces, encode_whole};

/// A model without its vocabulary.
#[derive(Debug, Clone)]
pub(crate) enum Model {
    BytePairs(BytePairs),
    Unigram(Unigram),
    WordPieces(WordPieces),
    WholeWords(Unknown),
}

impl Model {
    /// The algorithm, named as in tokenizer.json.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Model::BytePairs(_) => "BPE",
            Model::Unigram(_) => "Unigram",
            Model::WordPieces(_) => "WordPiece",
            Model::WholeWords(_) => "WordLevel",
        }
    }

    /// Appends the tokens of a word to `ids`; `word` is scratch.
    pub(crate) fn encode(
        &self,
        text: &str,
        vocabulary: &Vocabulary,
        word: &mut Word<'_>,
        ids: &mut Vec<u32>,
    ) -> Result<(), String> {
        match self {
            Model::BytePairs(model) => model.encode(text, vocabulary, word, ids),
            Model::Unigram(model) => model.encode(text, vocabulary, &mut word.watch, ids),
            Model::WordPieces(model) => model.encode(text, vocabulary, ids),
            Model::WholeWords(unknown) => encode_whole(text, unknown, vocabulary, ids),
        }
    }

    /// Memory of the tables.
    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            Model::BytePairs(model) => model.memory_bytes(),
            Model::Unigram(model) => model.memory_bytes(),
            Model::WordPieces(_) | Model::WholeWords(_) => 0,
        }
    }
}
