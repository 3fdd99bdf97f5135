//! Chooses the parts that a question is answered from.

use riffle_documents::Document;

use crate::parts::{Part, Ranking, best, cut};
use crate::prompt::Prompt;

/// Tokens of the parts that a first question reads, where the context has room for more: beyond them answers get no better and take longer.
const FIRST_TOKENS: usize = 8192;

/// Tokens of the parts that a later question adds at most.
const FURTHER_TOKENS: usize = 2048;

/// Tokens of the line that says where a part stands.
const PLACE_TOKENS: usize = 16;

/// Ranks the parts of documents, and knows how many tokens each has.
pub(crate) struct PartChooser {
    ranking: Ranking,
    tokens: Vec<usize>,
    first_tokens: usize,
    further_tokens: usize,
}

impl PartChooser {
    /// A chooser over the text that `prompt` holds, which reads nothing before [`with_room`](Self::with_room).
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

    /// The same in a context with room for `room_tokens`: the parts of a first question take three quarters of it at most.
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

    /// The parts for a question in reading order, with a share of the tokens that a first question may take.
    pub(crate) fn first(&self, question: &str, earlier: Option<&str>, share: f64) -> Vec<Part> {
        let scores = self.ranking.scores(question, earlier);
        self.best(&scores, (share * self.first_tokens as f64) as usize)
    }

    /// The parts that a later question adds to the `held` ones. They are among the parts that the same question would read if it came first.
    pub(crate) fn further(&self, question: &str, earlier: Option<&str>, held: &[&Part]) -> Vec<Part> {
        let mut scores = self.ranking.scores(question, earlier);
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
