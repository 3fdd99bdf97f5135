//! Unigram language models: a text is split to maximise the sum of its pieces' scores.

use super::byte_pairs::bytes_of;
use super::vocabulary::Vocabulary;
use super::watch::Watch;

/// Difference between the lowest score and an unknown character's.
const UNKNOWN_PENALTY: f64 = 10.0;

/// A unigram model without its vocabulary.
#[derive(Debug, Clone)]
pub(crate) struct Unigram {
    /// Score of each token; NaN for tokens that splitting never uses.
    scores: Vec<f64>,
    least_score: f64,
    /// True if sums are rounded to 32 bits, as in SentencePiece.
    in_32_bits: bool,
    unknown: Option<u32>,
    /// Tokens of the 256 bytes, which spell unknown text.
    byte_tokens: Vec<Option<u32>>,
    /// Ids of the usable tokens, in the order of their texts.
    sorted: Vec<u32>,
    /// For each byte, the first index in `sorted` of the tokens that begin with it.
    starts: Vec<usize>,
}

/// The best split of a text up to some byte.
#[derive(Clone, Copy)]
struct Best {
    score: f64,
    /// First byte of the last piece of the split.
    start: Option<usize>,
    token: u32,
}

impl Unigram {
    /// A model with these scores.
    pub(crate) fn new(
        scores: Vec<f64>,
        unknown: Option<u32>,
        byte_tokens: Vec<Option<u32>>,
        vocabulary: &Vocabulary,
    ) -> Result<Unigram, String> {
        if unknown.is_some_and(|id| id as usize >= scores.len()) {
            return Err("unk_id is larger than the vocabulary".into());
        }
        if let Some(id) = scores.iter().position(|score| !score.is_finite()) {
            return Err(format!("the score of token {id} is not a number"));
        }
        Ok(Unigram::build(scores, unknown, byte_tokens, vocabulary))
    }

    /// A model of a SentencePiece vocabulary. Tokens with NaN scores are not used.
    pub(crate) fn of_pieces(
        scores: &[f32],
        unknown: Option<u32>,
        byte_tokens: Vec<Option<u32>>,
        vocabulary: &Vocabulary,
    ) -> Result<Unigram, String> {
        if let Some(id) = scores.iter().position(|score| score.is_infinite()) {
            return Err(format!("the score of token {id} is not a number"));
        }
        let scores = scores.iter().map(|score| f64::from(*score)).collect();
        Ok(Unigram {
            in_32_bits: true,
            ..Unigram::build(scores, unknown, byte_tokens, vocabulary)
        })
    }

    fn build(
        scores: Vec<f64>,
        unknown: Option<u32>,
        byte_tokens: Vec<Option<u32>>,
        vocabulary: &Vocabulary,
    ) -> Unigram {
        let is_piece = |id: u32| scores.get(id as usize).is_some_and(|score| !score.is_nan());
        let texts = vocabulary.iter().filter(|(id, text)| vocabulary.id(text) == Some(*id));
        let texts = texts.filter(|(id, text)| !text.is_empty() && is_piece(*id));
        let mut sorted: Vec<u32> = texts.map(|(id, _)| id).collect();
        sorted.sort_unstable_by_key(|id| vocabulary.text(*id));
        let first_byte = |id: &u32| vocabulary.text(*id).map_or(0, |text| text.as_bytes()[0]);
        let starts = (0..=256)
            .map(|byte| sorted.partition_point(|id| usize::from(first_byte(id)) < byte))
            .collect();
        Unigram {
            least_score: scores.iter().copied().fold(f64::INFINITY, f64::min),
            scores,
            in_32_bits: false,
            unknown,
            byte_tokens,
            sorted,
            starts,
        }
    }

    fn sum(&self, left: f64, right: f64) -> f64 {
        let sum = left + right;
        if self.in_32_bits { f64::from(sum as f32) } else { sum }
    }

    /// Appends the tokens of a text to `ids`.
    pub(crate) fn encode(
        &self,
        text: &str,
        vocabulary: &Vocabulary,
        watch: &mut Watch<'_>,
        ids: &mut Vec<u32>,
    ) -> Result<(), String> {
        let best = self.best_cuts(text, vocabulary, &mut || watch.step(1, ids.len()))?;
        let mut pieces: Vec<(usize, usize)> = Vec::new();
        let mut end = text.len();
        let mut unknown_before = false;
        while let Some(Best {
            start: Some(start),
            token,
            ..
        }) = best.get(end).copied().filter(|_| end > 0)
        {
            let unknown = Some(token) == self.unknown;
            match pieces.last_mut() {
                // Adjacent unknown characters form one piece.
                Some(piece) if unknown && unknown_before => piece.0 = start,
                _ => pieces.push((start, end)),
            }
            (unknown_before, end) = (unknown, start);
        }
        for (start, end) in pieces.into_iter().rev() {
            let piece = &text[start..end];
            if let Some(id) = vocabulary.id(piece).filter(|id| !self.scores[*id as usize].is_nan()) {
                ids.push(id);
            } else if let Some(tokens) = bytes_of(piece, &self.byte_tokens) {
                ids.extend(tokens);
            } else {
                ids.push(self.unknown()?);
            }
        }
        Ok(())
    }

    /// True if every text can be spelt by bytes.
    pub(crate) fn spells_bytes(&self) -> bool {
        self.byte_tokens.len() == 256 && self.byte_tokens.iter().all(Option::is_some)
    }

    fn unknown(&self) -> Result<u32, String> {
        let missing = "the text holds characters that are no tokens, and the tokenizer has no token for the unknown";
        self.unknown.ok_or_else(|| missing.to_owned())
    }

    /// The best split up to each byte of the text.
    fn best_cuts(
        &self,
        text: &str,
        vocabulary: &Vocabulary,
        step: &mut dyn FnMut() -> Result<(), String>,
    ) -> Result<Vec<Best>, String> {
        let nothing = Best {
            score: 0.0,
            start: None,
            token: 0,
        };
        let mut best = vec![nothing; text.len() + 1];
        for (start, character) in text.char_indices() {
            step()?;
            let before = best[start].score;
            let single = start + character.len_utf8();
            let mut has_single = false;
            let mut offer = |end: usize, token: u32, score: f64| {
                let target = &mut best[end];
                let score = self.sum(score, before);
                if target.start.is_none() || score > target.score {
                    *target = Best {
                        score,
                        start: Some(start),
                        token,
                    };
                }
            };
            self.for_each_prefix(&text[start..], vocabulary, |length, token| {
                has_single |= start + length == single;
                offer(start + length, token, self.scores[token as usize]);
            });
            if !has_single {
                offer(single, self.unknown()?, self.sum(self.least_score, -UNKNOWN_PENALTY));
            }
        }
        Ok(best)
    }

    /// Calls `found` with the length and the id of every token that is a prefix of `text`, by ascending length.
    fn for_each_prefix(&self, text: &str, vocabulary: &Vocabulary, mut found: impl FnMut(usize, u32)) {
        let bytes = text.as_bytes();
        let token_bytes = |id: u32| vocabulary.text(id).unwrap_or_default().as_bytes();
        let first = usize::from(bytes[0]);
        let mut range = &self.sorted[self.starts[first]..self.starts[first + 1]];
        for length in 1..=bytes.len() {
            let Some(&least) = range.first() else { return };
            if token_bytes(least).len() == length {
                found(length, least);
                range = &range[1..];
            }
            // Every remaining token is longer and starts with the first `length` bytes.
            let Some(&next) = bytes.get(length) else { return };
            let from = range.partition_point(|id| token_bytes(*id)[length] < next);
            let to = range.partition_point(|id| token_bytes(*id)[length] <= next);
            range = &range[from..to];
        }
    }

    /// Memory of the tables.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(self.scores.as_slice()) + size_of_val(self.sorted.as_slice())
    }
}
