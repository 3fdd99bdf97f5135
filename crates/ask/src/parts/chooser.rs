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
    /// A chooser over the text that `prompt` holds. The parts of a first question take three quarters of `room_tokens` at most.
    pub(crate) fn new(documents: &[Document], prompt: &Prompt, room_tokens: usize) -> Self {
        let named: Vec<Part> = prompt.parts.iter().map(|(part, _)| part.clone()).collect();
        let parts = cut(documents, &named);
        let tokens_before = |byte: usize| prompt.offsets.partition_point(|range| range.end <= byte);
        let tokens_of = |part: &Part| {
            let holds =
                |(whole, _): &&(Part, _)| whole.document == part.document && whole.range().contains(&part.start);
            let Some((whole, place)) = prompt.parts.iter().find(holds) else {
                return PLACE_TOKENS;
            };
            let [start, end] = [part.start, part.end].map(|byte| tokens_before(place.start + byte - whole.start));
            end - start + PLACE_TOKENS
        };
        Self {
            tokens: parts.iter().map(tokens_of).collect(),
            ranking: Ranking::new(documents, parts),
            first_tokens: FIRST_TOKENS.min(room_tokens / 4 * 3),
            further_tokens: FURTHER_TOKENS.min(room_tokens / 8),
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

    /// The parts that a later question needs beside those that are `held`. What a first question would read decides which these are.
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
