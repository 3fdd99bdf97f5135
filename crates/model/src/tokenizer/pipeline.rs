//! A tokenizer's parts, in processing order.

use std::ops::Range;

use super::added::{AddedPart, AddedTokens, Stage};
use super::decoder::Decoder;
use super::merging::Word;
use super::model::Model;
use super::normalizer::Normalizer;
use super::pre_tokenizer::PreTokenizer;
use super::surroundings::Surroundings;
use super::vocabulary::Vocabulary;
use super::watch::{Poll, Watch};

/// Longest text in bytes; positions in a word have 32 bits.
const LONGEST_TEXT: usize = 1 << 30;

/// All parts for converting text to tokens and back.
#[derive(Debug, Clone)]
pub(crate) struct Pipeline {
    pub(crate) vocabulary: Vocabulary,
    pub(crate) added: AddedTokens,
    pub(crate) normalizer: Normalizer,
    pub(crate) pre_tokenizer: PreTokenizer,
    pub(crate) model: Model,
    pub(crate) surroundings: Surroundings,
    pub(crate) decoder: Decoder,
}

impl Pipeline {
    /// Token ids of a text: added tokens are extracted, and the rest is normalized, split into words and encoded word
    /// by word. No control token may overlap one of the `literals`, byte ranges of the text, ascending and disjoint.
    pub(crate) fn encode(
        &self,
        text: &str,
        literals: &[Range<usize>],
        add_special: bool,
        poll: &mut Poll<'_>,
    ) -> Result<Vec<u32>, String> {
        if text.len() > LONGEST_TEXT {
            return Err(format!("it has {} bytes, {LONGEST_TEXT} is the limit", text.len()));
        }
        let mut ids = Vec::with_capacity(text.len() / 4);
        let mut word = Word::new(Watch::new(poll));
        let literals_behind = if self.added.has_normalized_control() {
            literals
        } else {
            &[]
        };
        self.added
            .split(text, Stage::BeforeNormalizer, literals, |part| match part {
                AddedPart::Token(id) => {
                    ids.push(id);
                    Ok(())
                }
                AddedPart::Text(text, from) => {
                    let literals = literals_within(literals_behind, from..from + text.len());
                    self.encode_plain(text, &literals, from == 0, &mut word, &mut ids)
                }
            })?;
        Ok(self.surroundings.around(ids, add_special))
    }

    fn encode_plain(
        &self,
        text: &str,
        literals: &[Range<usize>],
        at_start: bool,
        word: &mut Word<'_>,
        ids: &mut Vec<u32>,
    ) -> Result<(), String> {
        let normalized = self.normalizer.apply(text)?;
        let literals = self.normalizer.ranges_behind(text, &normalized, literals)?;
        self.added
            .split(&normalized, Stage::BehindNormalizer, &literals, |part| match part {
                AddedPart::Token(id) => {
                    ids.push(id);
                    Ok(())
                }
                AddedPart::Text(text, from) => self.pre_tokenizer.cut(text, at_start && from == 0, &mut |text| {
                    word.watch.step(text.len(), ids.len())?;
                    self.model.encode(text, &self.vocabulary, word, ids)
                }),
            })
    }

    /// The text of tokens. Invalid ids are dropped; so are special tokens with `skip_special`.
    pub(crate) fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, String> {
        let shown = ids.iter().filter(|id| !(skip_special && self.added.is_special(**id)));
        let texts = shown.filter_map(|id| match self.added.token(*id) {
            // Normalized during encoding, so that the decoder can undo it.
            Some(token) => Some(token.normalized.as_ref().unwrap_or(&token.text).clone()),
            None => self.vocabulary.text(*id).map(str::to_owned),
        });
        self.decoder.decode(texts.collect())
    }

    /// The id of a token by its exact text.
    pub(crate) fn id(&self, text: &str) -> Option<u32> {
        self.added.id(text).or_else(|| self.vocabulary.id(text))
    }

    /// The text of a token.
    pub(crate) fn text(&self, id: u32) -> Option<&str> {
        let added = self.added.token(id).map(|token| token.text.as_str());
        added.or_else(|| self.vocabulary.text(id))
    }

    /// Highest id + 1.
    pub(crate) fn len(&self) -> usize {
        self.vocabulary.len().max(self.added.len()).max(self.surroundings.len())
    }

    /// Approximate memory of all tables.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.vocabulary.memory_bytes() + self.added.memory_bytes() + self.model.memory_bytes()
    }
}

/// Literals within a part of a text, relative to its start.
fn literals_within(literals: &[Range<usize>], part: Range<usize>) -> Vec<Range<usize>> {
    let first = literals.partition_point(|literal| literal.end <= part.start);
    let within = literals[first..].iter().take_while(|literal| literal.start < part.end);
    let clipped = within.map(|literal| literal.start.max(part.start)..literal.end.min(part.end));
    clipped
        .map(|literal| literal.start - part.start..literal.end - part.start)
        .collect()
}
