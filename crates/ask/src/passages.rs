//! The passages of documents with the most attention of an answer.

use std::ops::Range;

use riffle_documents::Document;
use riffle_engine::{AttentionWatch, WatchedHead};
use serde::Serialize;

use crate::Part;
use crate::prompt::Prompt;

/// Approximate bytes of a passage: some sentences.
const PASSAGE_BYTES: usize = 320;
/// Limit on the bytes of a quotation.
const QUOTATION_BYTES: usize = 200;
/// Passages of an answer at most.
const MOST_PASSAGES: usize = 3;
/// A passage needs at least this share of the best score.
const LEAST_SHARE: f64 = 0.25;
/// The best passage needs at least this share of all scores.
const STANDS_OUT: f64 = 0.1;
/// First tokens of a prompt, which get attention for every question (sinks).
const SINK_TOKENS: usize = 16;

/// A part of a document with high attention during an answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Passage {
    /// The document's name.
    pub document: String,
    /// Index of the document, from 0.
    pub document_number: usize,
    /// Bytes of the document's text.
    pub range: Range<usize>,
    /// Position of the quotation for a person: a page, a chapter, lines. Empty if unknown.
    pub place: String,
    /// The part with the most attention.
    pub quotation: String,
    /// Share of the question's attention to the documents, above the usual attention.
    pub share: f64,
}

/// A part of a document, and its score.
struct Candidate {
    document: usize,
    range: Range<usize>,
    /// The sentence or line with the highest score.
    best: Range<usize>,
    score: f64,
}

/// The passages with the most attention, best first; empty if no passage stands out. `watches` are from the question
/// and the answer; `usual` is from the tokens before every question.
pub(crate) fn passages(
    documents: &[Document],
    prompt: &Prompt,
    usual: &AttentionWatch,
    watches: &[&AttentionWatch],
) -> Vec<Passage> {
    let scores = token_scores(prompt, usual, watches);
    let mut found: Vec<Candidate> = Vec::new();
    // Documents outside the prompt have no passages.
    let mut parts: Vec<&(Part, Range<usize>)> = prompt.parts.iter().collect();
    parts.sort_by_key(|(part, _)| part.document);
    for of_document in parts.chunk_by(|(part, _), (next, _)| part.document == next.document) {
        let number = of_document[0].0.document;
        let document = &documents[number];
        let mut bytes = vec![0.0; document.text.len()];
        for (part, place) in of_document {
            add_byte_scores(&mut bytes[part.range()], place, prompt, &scores);
        }
        found.extend(candidates(document, number, &bytes));
    }
    let total: f64 = found.iter().map(|candidate| candidate.score).sum();
    found.sort_by(|a, b| b.score.total_cmp(&a.score));
    let best = found.first().map_or(0.0, |candidate| candidate.score);
    if best < STANDS_OUT * total {
        return Vec::new();
    }
    found.truncate(MOST_PASSAGES);
    found.retain(|candidate| candidate.score >= LEAST_SHARE * best);
    let shown = found.into_iter().map(|candidate| {
        let document = &documents[candidate.document];
        Passage {
            document: document.name.clone(),
            document_number: candidate.document,
            place: document.describe(&trimmed(&document.text, &candidate.best)),
            quotation: quotation(&document.text, &candidate.best),
            range: trimmed(&document.text, &candidate.range),
            share: candidate.score / total,
        }
    });
    shown.collect()
}

/// Attention of each token of the documents above its usual share.
///
/// Each head contributes its mean mass on a token, minus a multiple of its mean over all document tokens. Even mass,
/// mass near the end and mass on line separators then count nothing. Mass of one head on a few tokens counts in full.
fn token_scores(prompt: &Prompt, usual: &AttentionWatch, watches: &[&AttentionWatch]) -> Vec<f64> {
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
            let floor = EVEN_SHARES * total / inside.len() as f64 / queries;
            let usual_of = usual_mass(usual, head);
            for (token, mass) in (SINK_TOKENS.min(end)..).zip(inside) {
                let beyond = f64::from(*mass) / queries - floor.max(usual_of(token));
                scores[token] += beyond.max(0.0);
            }
        }
    }
    scores
}

/// The usual mass of a token in a head, per query.
fn usual_mass<'a>(usual: &'a AttentionWatch, head: &WatchedHead) -> impl Fn(usize) -> f64 + 'a {
    let (layer, kv_head) = (head.layer, head.kv_head);
    let same = usual
        .heads()
        .iter()
        .find(|other| (other.layer, other.kv_head) == (layer, kv_head));
    let queries = usual.queries().max(1) as f64;
    move |token| {
        let mass = same.and_then(|head| head.mass.get(token));
        mass.map_or(0.0, |mass| f64::from(*mass) / queries)
    }
}

/// Threshold of special mass, as a multiple of an even distribution's mass per token.
const EVEN_SHARES: f64 = 8.0;

/// Distributes the scores of tokens over the bytes of a part. The part is at `place` in the prompt.
fn add_byte_scores(bytes: &mut [f64], place: &Range<usize>, prompt: &Prompt, scores: &[f64]) {
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
}

/// Passages of one document with a score.
fn candidates(document: &Document, number: usize, bytes: &[f64]) -> Vec<Candidate> {
    let pieces = pieces(&document.text);
    let mut candidates = Vec::new();
    let mut first = 0;
    while first < pieces.len() {
        let start = pieces[first].start;
        let mut last = first;
        while last + 1 < pieces.len() && pieces[last + 1].end - start <= PASSAGE_BYTES {
            last += 1;
        }
        let range = start..pieces[last].end;
        let score: f64 = bytes[range.clone()].iter().sum();
        let of = |piece: &Range<usize>| bytes[piece.clone()].iter().sum::<f64>();
        let best = pieces[first..=last].iter().max_by(|a, b| of(a).total_cmp(&of(b)));
        if let (true, Some(best)) = (score > 0.0, best) {
            candidates.push(Candidate {
                document: number,
                range,
                best: best.clone(),
                score,
            });
        }
        first = last + 1;
    }
    candidates
}

/// Splits a text into sentences and lines.
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

/// A range without white space at its ends.
fn trimmed(text: &str, range: &Range<usize>) -> Range<usize> {
    let part = &text[range.clone()];
    let start = range.start + (part.len() - part.trim_start().len());
    start..start + part.trim().len()
}

/// A piece as one line; a long piece is shortened.
fn quotation(text: &str, piece: &Range<usize>) -> String {
    let piece = trimmed(text, piece);
    let mut end = piece.end.min(piece.start + QUOTATION_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let words: Vec<&str> = text[piece.start..end].split_whitespace().collect();
    let behind = if end < piece.end { "…" } else { "" };
    words.join(" ") + behind
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
    fn a_long_piece_is_quoted_from_its_beginning() {
        let text = "wörd ".repeat(100);
        let quoted = quotation(&text, &(0..text.len()));
        assert!(
            quoted.starts_with("wörd wörd") && quoted.ends_with('…') && quoted.len() < 210,
            "{quoted}"
        );
        assert_eq!(quotation(&text, &(0..12)), "wörd wörd");
    }
}
