//! Ranks parts by the words in common with the question.

use std::collections::BTreeSet;

use bm25::{Embedder, EmbedderBuilder, Scorer};
use riffle_documents::Document;

use crate::parts::words::Words;
use crate::parts::{Part, order};

/// Share of a neighbour's score that a part also gets, because the answer often follows the question's words.
const NEIGHBOUR_SHARE: f64 = 0.4;

/// Weight of the previous question, because a question such as "and by whom?" omits its topic.
pub(crate) const EARLIER_SHARE: f64 = 0.3;

/// Parts with their words, ranked by BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and
/// Beyond", 2009).
pub(crate) struct Ranking {
    parts: Vec<Part>,
    embedder: Embedder<u32, Words>,
    scorer: Scorer<usize>,
}

impl Ranking {
    /// Counts the words of all parts. The parts are in reading order.
    pub(crate) fn new(documents: &[Document], parts: Vec<Part>) -> Self {
        let texts: Vec<&str> = parts.iter().map(|part| part.text(documents)).collect();
        let longest = documents.iter().max_by_key(|document| document.text.len());
        let words = Words::of_language(longest.map_or("", |document| &document.text));
        let embedder = EmbedderBuilder::with_tokenizer_and_fit_to_corpus(words, &texts).build();
        let mut scorer = Scorer::new();
        for (number, text) in texts.iter().enumerate() {
            scorer.upsert(&number, embedder.embed(text));
        }
        Self {
            parts,
            embedder,
            scorer,
        }
    }

    /// The parts in reading order.
    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// A score for each part from the words of the question and the previous question.
    pub(crate) fn scores(&self, question: &str, earlier: Option<&str>) -> Vec<f64> {
        let mut scores = self.matches(question);
        if let Some(earlier) = earlier {
            for (score, of_earlier) in scores.iter_mut().zip(self.matches(earlier)) {
                *score += EARLIER_SHARE * of_earlier;
            }
        }
        let alone = scores.clone();
        let near = |one: usize, other: usize| match self.parts.get(other) {
            Some(part) if part.document == self.parts[one].document => alone[other],
            _ => 0.0,
        };
        for (number, score) in scores.iter_mut().enumerate() {
            let before = number.checked_sub(1).map_or(0.0, |before| near(number, before));
            *score += NEIGHBOUR_SHARE * before.max(near(number, number + 1));
        }
        scores
    }

    fn matches(&self, question: &str) -> Vec<f64> {
        let question = self.embedder.embed(question);
        let score = |number| self.scorer.score(&number, &question).map_or(0.0, f64::from);
        (0..self.parts.len()).map(score).collect()
    }
}

/// Indices of the best parts that fit in `budget` tokens together. The beginnings of documents come first, because
/// they have titles and authors. If no part has a score, evenly spaced parts represent the text.
pub(crate) fn best(parts: &[Part], scores: &[f64], tokens: &[usize], budget: usize) -> BTreeSet<usize> {
    let begins = |number: &usize| {
        number
            .checked_sub(1)
            .is_none_or(|before| parts[before].document != parts[*number].document)
    };
    let mut order = order(scores, |score| score > 0.0);
    if order.is_empty() {
        let most = tokens.iter().copied().max().unwrap_or(1).max(1);
        let step = parts.len().div_ceil((budget / most).max(1)).max(1);
        order = (0..parts.len()).step_by(step).collect();
    }
    let beginnings: Vec<usize> = (0..parts.len()).filter(begins).collect();
    // The beginnings of many documents alone could fill the budget.
    let few = beginnings.iter().map(|number| tokens[*number]).sum::<usize>() <= budget / 2;
    let first = if few { beginnings } else { Vec::new() };
    let mut chosen = BTreeSet::new();
    let mut room = budget;
    for number in first.into_iter().chain(order) {
        if !chosen.contains(&number) && tokens[number] <= room {
            room -= tokens[number];
            chosen.insert(number);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use riffle_documents::DocumentKind;

    use super::*;
    use crate::parts::{cut, named};

    fn documents(texts: &[&str]) -> Vec<Document> {
        let document = |text: &&str| Document {
            name: "a.txt".to_owned(),
            kind: DocumentKind::Text,
            text: (*text).to_owned(),
            places: Vec::new(),
            warnings: Vec::new(),
        };
        texts.iter().map(document).collect()
    }

    /// A long text with one sentence about a ship in its middle.
    fn book() -> String {
        let about = |subject: &str| {
            format!("Many sentences are written about {subject} in this long text of ours.\n").repeat(60)
        };
        let fact = "The ship sailed from Nantucket on a cold Christmas day.\n";
        [
            about("gardens"),
            about("bread"),
            fact.to_owned(),
            about("music"),
            about("paper"),
        ]
        .concat()
    }

    fn ranking(texts: &[&str]) -> (Vec<Document>, Ranking) {
        let documents = documents(texts);
        let named = named(&documents, &[]).unwrap();
        let parts = named.iter().flat_map(|part| cut(&documents, part)).collect();
        let ranking = Ranking::new(&documents, parts);
        (documents, ranking)
    }

    fn chosen(ranking: &Ranking, documents: &[Document], scores: &[f64], budget: usize) -> Vec<String> {
        let tokens: Vec<usize> = ranking.parts().iter().map(|part| part.range().len() / 4).collect();
        let best = best(ranking.parts(), scores, &tokens, budget);
        best.iter()
            .map(|number| ranking.parts()[*number].text(documents).to_owned())
            .collect()
    }

    #[test]
    fn the_part_that_shares_words_with_the_question_is_read() {
        let book = book();
        let (documents, ranking) = ranking(&[&book]);
        let scores = ranking.scores("Where do ships sail from?", None);
        let read = chosen(&ranking, &documents, &scores, 1000);
        assert!(read.iter().any(|text| text.contains("Nantucket")), "{read:?}");
        assert!(
            read[0].starts_with("Many sentences are written about gardens"),
            "the beginning"
        );
    }

    #[test]
    fn a_question_that_names_nothing_takes_the_subject_of_the_one_before() {
        let book = book();
        let (documents, ranking) = ranking(&[&book]);
        let scores = ranking.scores("And on which one?", Some("Where did the ship sail from?"));
        let read = chosen(&ranking, &documents, &scores, 1000);
        assert!(read.iter().any(|text| text.contains("Christmas")), "{read:?}");
    }

    #[test]
    fn a_question_without_words_of_the_text_samples_it() {
        let book = book();
        let (documents, ranking) = ranking(&[&book]);
        let scores = ranking.scores("Zusammenfassung?", None);
        assert!(scores.iter().all(|score| *score == 0.0));
        let read = chosen(&ranking, &documents, &scores, 2000).concat();
        for subject in ["gardens", "bread", "music", "paper"] {
            assert!(read.contains(subject), "{subject}");
        }
    }

    #[test]
    fn choices_keep_their_budget_and_do_not_change() {
        let book = book();
        let (_, ranking) = ranking(&[&book, &book]);
        let scores = ranking.scores("Where does music come from?", None);
        let tokens: Vec<usize> = ranking.parts().iter().map(|part| part.range().len() / 4).collect();
        for budget in [0, 100, 1000, 5000] {
            let first = best(ranking.parts(), &scores, &tokens, budget);
            assert!(first.iter().map(|number| tokens[*number]).sum::<usize>() <= budget);
            assert_eq!(first, best(ranking.parts(), &scores, &tokens, budget));
        }
    }
}
