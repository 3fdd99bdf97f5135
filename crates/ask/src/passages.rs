//! The passages of documents that an answer's attention went to.

use std::ops::Range;

use riffle_documents::Document;
use riffle_engine::AttentionWatch;
use serde::Serialize;

use crate::prompt::Prompt;

/// Bytes of a passage, about: some sentences.
const PASSAGE_BYTES: usize = 320;
/// Bytes of a quotation at most.
const QUOTATION_BYTES: usize = 200;
/// Passages of an answer at most.
const MOST_PASSAGES: usize = 3;
/// A passage is shown if it has this share of the best one's score.
const LEAST_SHARE: f64 = 0.25;
/// First tokens of a prompt, which receive attention whatever is asked: sinks.
const SINK_TOKENS: usize = 16;

/// A part of a document to which attention went while an answer was written.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Passage {
    /// The document's name.
    pub document: String,
    /// Its number among the documents, from 0.
    pub document_number: usize,
    /// Bytes of the document's text.
    pub range: Range<usize>,
    /// Where a person finds it: a page, a chapter, lines. Empty where nothing is known.
    pub place: String,
    /// The part of it to which most attention went.
    pub quotation: String,
    /// Its share of the attention that this question drew to the documents, beyond what they draw anyway.
    pub share: f64,
}

/// The passages to which most attention went, the best first. `watches` are those of the question and of the answer.
pub(crate) fn passages(documents: &[Document], prompt: &Prompt, watches: &[&AttentionWatch]) -> Vec<Passage> {
    let scores = token_scores(prompt, watches);
    let mut found: Vec<Passage> = Vec::new();
    for (number, document) in documents.iter().enumerate() {
        let bytes = byte_scores(document, &prompt.documents[number], prompt, &scores);
        found.extend(of_document(document, number, &bytes));
    }
    let total: f64 = found.iter().map(|passage| passage.share).sum();
    found.sort_by(|a, b| b.share.total_cmp(&a.share));
    let best = found.first().map_or(0.0, |passage| passage.share);
    found.truncate(MOST_PASSAGES);
    found.retain(|passage| passage.share > 0.0 && passage.share >= LEAST_SHARE * best);
    for passage in &mut found {
        passage.share /= total;
    }
    found
}

/// What each token of the documents received beyond what it receives anyway.
///
/// Every head counts by what is special about it: of each head's mean mass of a token the head's mean over all tokens of documents is
/// taken, several times over, so that mass spread evenly, near the end, or over separators of lines counts nothing, and what one head gives
/// a few tokens counts in full.
fn token_scores(prompt: &Prompt, watches: &[&AttentionWatch]) -> Vec<f64> {
    let end = prompt.document_tokens;
    let mut scores = vec![0.0; end];
    for watch in watches {
        let queries = watch.queries().max(1) as f64;
        for head in watch.heads() {
            let mass = &head.mass[..end.min(head.mass.len())];
            let inside = &mass[SINK_TOKENS.min(mass.len())..];
            let total: f64 = inside.iter().map(|mass| f64::from(*mass)).sum();
            if total <= 0.0 {
                continue;
            }
            let floor = EVEN_SHARES * total / inside.len() as f64;
            for (score, mass) in scores[SINK_TOKENS.min(end)..].iter_mut().zip(inside) {
                let beyond = f64::from(*mass) - floor;
                if beyond > 0.0 {
                    *score += beyond / queries;
                }
            }
        }
    }
    scores
}

/// Mass that is not special: so many times what a token would have if all had the same.
const EVEN_SHARES: f64 = 8.0;

/// The scores of tokens, spread over the bytes of a document's text.
fn byte_scores(document: &Document, place: &Range<usize>, prompt: &Prompt, scores: &[f64]) -> Vec<f64> {
    let mut bytes = vec![0.0; document.text.len()];
    let first = prompt.offsets.partition_point(|range| range.end <= place.start);
    let tokens = prompt.offsets[first..].iter().zip(scores.iter().skip(first));
    for (range, score) in tokens.take_while(|(range, _)| range.start < place.end) {
        let inside = range.start.max(place.start)..range.end.min(place.end);
        if inside.is_empty() || *score == 0.0 {
            continue;
        }
        let each = score / inside.len() as f64;
        let from = inside.start - place.start;
        for byte in bytes.iter_mut().skip(from).take(inside.len()) {
            *byte += each;
        }
    }
    bytes
}

/// Passages of one document, each with its score.
fn of_document(document: &Document, number: usize, bytes: &[f64]) -> Vec<Passage> {
    let pieces = pieces(&document.text);
    let mut passages = Vec::new();
    let mut first = 0;
    while first < pieces.len() {
        let start = pieces[first].start;
        let mut last = first;
        while last + 1 < pieces.len() && pieces[last + 1].end - start <= PASSAGE_BYTES {
            last += 1;
        }
        let range = start..pieces[last].end;
        let score: f64 = bytes[range.clone()].iter().sum();
        if score > 0.0 {
            let of = |piece: &Range<usize>| bytes[piece.clone()].iter().sum::<f64>();
            let best = pieces[first..=last].iter().max_by(|a, b| of(a).total_cmp(&of(b)));
            let best = best.cloned().unwrap_or_else(|| range.clone());
            passages.push(Passage {
                document: document.name.clone(),
                document_number: number,
                place: document.describe(&trimmed(&document.text, &range)),
                quotation: quotation(&document.text, &best, bytes),
                range: trimmed(&document.text, &range),
                share: score,
            });
        }
        first = last + 1;
    }
    passages
}

/// Sentences and lines of a text, which it is made of.
fn pieces(text: &str) -> Vec<Range<usize>> {
    let bytes = text.as_bytes();
    let mut pieces = Vec::new();
    let mut start = 0;
    for (at, byte) in bytes.iter().enumerate() {
        let ends_sentence = || {
            let before = at.checked_sub(1).map(|before| bytes[before]);
            matches!(before, Some(b'.' | b'!' | b'?' | b'"' | b')'))
        };
        let is_end = match byte {
            b'\n' => true,
            b' ' => ends_sentence() || at - start >= QUOTATION_BYTES,
            // A text without spaces is cut between characters.
            _ => at - start >= PASSAGE_BYTES && text.is_char_boundary(at + 1),
        };
        if is_end {
            pieces.push(start..at + 1);
            start = at + 1;
        }
    }
    if start < bytes.len() {
        pieces.push(start..bytes.len());
    }
    pieces.retain(|piece| !text[piece.clone()].trim().is_empty());
    pieces
}

/// A range without the white space at its ends.
fn trimmed(text: &str, range: &Range<usize>) -> Range<usize> {
    let part = &text[range.clone()];
    let start = range.start + (part.len() - part.trim_start().len());
    start..start + part.trim().len()
}

/// A piece on one line; of a long one the part around its heaviest byte.
fn quotation(text: &str, piece: &Range<usize>, bytes: &[f64]) -> String {
    let piece = trimmed(text, piece);
    let mut range = piece.clone();
    if piece.len() > QUOTATION_BYTES {
        let heaviest = piece
            .clone()
            .max_by(|a, b| bytes[*a].total_cmp(&bytes[*b]))
            .unwrap_or(piece.start);
        let start = heaviest.saturating_sub(QUOTATION_BYTES / 2).max(piece.start);
        range = start..(start + QUOTATION_BYTES).min(piece.end);
        while !text.is_char_boundary(range.start) {
            range.start += 1;
        }
        while !text.is_char_boundary(range.end) {
            range.end -= 1;
        }
    }
    let words: Vec<&str> = text[range.clone()].split_whitespace().collect();
    let (before, behind) = (range.start > piece.start, range.end < piece.end);
    format!(
        "{}{}{}",
        if before { "…" } else { "" },
        words.join(" "),
        if behind { "…" } else { "" }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_at_sentences_and_lines() {
        let text = "One two. Three!\n\nFour five\nsix";
        let cut: Vec<&str> = pieces(text).into_iter().map(|piece| &text[piece]).collect();
        assert_eq!(cut, ["One two. ", "Three!\n", "Four five\n", "six"]);
        let long = "é".repeat(1000);
        let cut = pieces(&long);
        assert!(cut.len() > 1 && cut.iter().all(|piece| long.get(piece.clone()).is_some()));
        assert!(pieces(" \n\n").is_empty());
    }

    #[test]
    fn a_long_sentence_is_quoted_around_what_weighs_most() {
        let text = "word ".repeat(100);
        let mut bytes = vec![0.0; text.len()];
        bytes[250] = 1.0;
        let quoted = quotation(&text, &(0..text.len()), &bytes);
        assert!(
            quoted.starts_with('…') && quoted.ends_with('…') && quoted.len() < 210,
            "{quoted}"
        );
        assert_eq!(quotation(&text, &(0..10), &bytes), "word word");
    }
}
