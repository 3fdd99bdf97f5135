//! Selects the parts for a question.

use riffle_documents::Document;

use crate::parts::{Part, Ranking, best, cut, fused, order};
use crate::prompt::Prompt;

/// Tokens of the parts for a first question, if the context has space; more tokens only make answers slower.
const FIRST_TOKENS: usize = 8192;

/// Limit on the tokens of the parts that a later question adds.
const FURTHER_TOKENS: usize = 2048;

/// Tokens of the line that names a part's position.
const PLACE_TOKENS: usize = 16;

/// Ranks the parts of documents with known token counts.
pub(crate) struct PartChooser {
    ranking: Ranking,
    tokens: Vec<usize>,
    first_tokens: usize,
    further_tokens: usize,
}

impl PartChooser {
    /// A chooser for the text in `prompt`; it selects no part before [`with_room`](Self::with_room).
    pub(crate) fn new(documents: &[Document], prompt: &Prompt) -> Self {
        let tokens_before = |byte: usize| prompt.offsets.partition_point(|range| range.end <= byte);
        let (mut parts, mut tokens) = (Vec::new(), Vec::new());
        for (whole, place) in &prompt.parts {
            for part in cut(documents, whole) {
                let [start, end] = [part.start, part.end].map(|byte| tokens_before(place.start + byte - whole.start));
                tokens.push(end - start + PLACE_TOKENS);
                parts.push(part);
            }
        }
        Self {
            tokens,
            ranking: Ranking::new(documents, parts),
            first_tokens: 0,
            further_tokens: 0,
        }
    }

    /// This chooser for a context with `room_tokens` free tokens. Parts of a first question get at most three quarters
    /// of them.
    pub(crate) fn with_room(self, room_tokens: usize) -> Self {
        Self {
            first_tokens: FIRST_TOKENS.min(room_tokens / 4 * 3),
            further_tokens: FURTHER_TOKENS.min(room_tokens / 8),
            ..self
        }
    }

    /// Tokens of the parts of a first question at most.
    pub(crate) fn first_tokens(&self) -> usize {
        self.first_tokens
    }

    /// All parts in reading order.
    pub(crate) fn parts(&self) -> &[Part] {
        self.ranking.parts()
    }

    /// A score for each part by the words of the question and the one before; 0 without a common word.
    pub(crate) fn word_scores(&self, question: &str, earlier: Option<&str>) -> Vec<f64> {
        self.ranking.scores(question, earlier)
    }

    /// A score for each part from its words and its likeness to the question. Each ranking counts as far as a first
    /// question could read its parts. So the best part of each ranking is read, even if most parts share a word with
    /// the question.
    pub(crate) fn joined(&self, words: &[f64], likeness: &[f64]) -> Vec<f64> {
        let readable = |mut ranking: Vec<usize>| {
            let mut tokens = 0;
            let fits = |number: &&usize| {
                tokens += self.tokens[**number];
                tokens <= self.first_tokens
            };
            let count = ranking.iter().take_while(fits).count();
            ranking.truncate(count);
            ranking
        };
        let words = readable(order(words, |score| score > 0.0));
        let likeness = readable(order(likeness, |_| true));
        fused(self.tokens.len(), &[&words, &likeness])
    }

    /// The best parts by their scores in reading order, with a share of a first question's tokens.
    pub(crate) fn first(&self, scores: &[f64], share: f64) -> Vec<Part> {
        self.best(scores, (share * self.first_tokens as f64) as usize)
    }

    /// The parts that a later question adds to the `held` ones. A first question would read these parts too.
    pub(crate) fn further(&self, mut scores: Vec<f64>, held: &[&Part]) -> Vec<Part> {
        let wanted = self.best(&scores, self.first_tokens);
        for (score, part) in scores.iter_mut().zip(self.ranking.parts()) {
            if held.contains(&part) || !wanted.contains(part) {
                *score = 0.0;
            }
        }
        if scores.iter().all(|score| *score == 0.0) {
            return Vec::new();
        }
        let mut further = self.best(&scores, self.further_tokens);
        further.retain(|part| !held.contains(&part));
        further
    }

    fn best(&self, scores: &[f64], budget: usize) -> Vec<Part> {
        let parts = self.ranking.parts();
        let best = best(parts, scores, &self.tokens, budget);
        best.into_iter().map(|number| parts[number].clone()).collect()
    }
}
