//! Splits texts into parts of some sentences, at paragraphs and headings.

use riffle_documents::{Document, PlaceKind};

use crate::parts::Part;

/// Limit on the bytes of a part, except for a line that cannot be split.
const PART_BYTES: usize = 1600;

/// Bytes after which a part ends with its paragraph.
const ENOUGH_BYTES: usize = 900;

/// Splits a part into smaller ones, in order. A part begins at a chapter or heading, and ends with a paragraph, line
/// or sentence.
pub(crate) fn cut(documents: &[Document], whole: &Part) -> Vec<Part> {
    let document = &documents[whole.document];
    let headings: Vec<usize> = document
        .places
        .iter()
        .filter(|place| matches!(place.kind, PlaceKind::Chapter(_) | PlaceKind::Heading { .. }))
        .map(|place| place.range.start)
        .collect();
    let text = &document.text;
    let (mut parts, mut start, mut at) = (Vec::new(), whole.start, whole.start);
    let mut end_part = |start: &mut usize, end: usize| {
        if !text[*start..end].trim().is_empty() {
            parts.push(Part {
                document: whole.document,
                start: *start,
                end,
            });
        }
        *start = end;
    };
    while at < whole.end {
        let piece = piece_end(&text[..whole.end], at);
        let begins_section = headings.binary_search(&at).is_ok();
        if at > start && (begins_section || piece - start > PART_BYTES) {
            end_part(&mut start, at);
        }
        let is_paragraph_end = text[at..piece].trim().is_empty();
        at = piece;
        if is_paragraph_end && at - start >= ENOUGH_BYTES {
            end_part(&mut start, at);
        }
    }
    end_part(&mut start, whole.end);
    parts
}

/// The end of the line at `at`, or of its last sentence or word that fits in a part.
fn piece_end(text: &str, at: usize) -> usize {
    let rest = &text[at..];
    let line = rest.find('\n').map_or(rest.len(), |end| end + 1);
    if line <= PART_BYTES {
        return at + line;
    }
    let most = (0..=PART_BYTES)
        .rev()
        .find(|end| rest.is_char_boundary(*end))
        .unwrap_or(line);
    let window = &rest[..most];
    let ends_sentence = |(place, sign): (usize, char)| {
        let behind = place + sign.len_utf8();
        match sign {
            '.' | '!' | '?' => window[behind..].starts_with(' ').then_some(behind + 1),
            '。' | '！' | '？' => Some(behind),
            _ => None,
        }
    };
    let sentence = window.char_indices().rev().find_map(ends_sentence);
    let word = || window.rfind(' ').map(|place| place + 1);
    at + sentence.or_else(word).filter(|end| *end > 0).unwrap_or(most)
}

#[cfg(test)]
mod tests {
    use riffle_documents::{DocumentKind, DocumentPlace};

    use super::*;

    fn document(text: &str, headings: &[usize]) -> Document {
        let place = |start: &usize| DocumentPlace {
            range: *start..text.len(),
            kind: PlaceKind::Chapter("A chapter".to_owned()),
        };
        Document {
            name: "a.txt".to_owned(),
            kind: DocumentKind::Text,
            text: text.to_owned(),
            places: headings.iter().map(place).collect(),
            warnings: Vec::new(),
        }
    }

    fn texts(text: &str, headings: &[usize]) -> Vec<String> {
        let documents = [document(text, headings)];
        let whole = Part {
            document: 0,
            start: 0,
            end: text.len(),
        };
        let parts = cut(&documents, &whole);
        parts.iter().map(|part| part.text(&documents).to_owned()).collect()
    }

    #[test]
    fn parts_hold_all_of_the_text_and_no_more_than_they_may() {
        let lines = "A line of some words that ends here.\n".repeat(400);
        let sentences = "A sentence of some words. ".repeat(400);
        let signs = "字".repeat(4000);
        let paragraphs = format!("{}\n\n", "Words in a paragraph. ".repeat(50)).repeat(20);
        for text in [lines, sentences, signs, paragraphs] {
            let parts = texts(&text, &[]);
            assert_eq!(parts.concat(), text);
            assert!(parts.len() > 3);
            assert!(parts.iter().all(|part| part.len() <= PART_BYTES), "{parts:?}");
        }
    }

    #[test]
    fn a_chapter_begins_a_part() {
        let text = "Short end of a chapter.\nNext chapter\nIts text.\n";
        let next = text.find("Next").unwrap();
        assert_eq!(
            texts(text, &[next]),
            ["Short end of a chapter.\n", "Next chapter\nIts text.\n"]
        );
    }

    #[test]
    fn a_part_ends_with_a_paragraph() {
        let paragraph = "Words of one paragraph, and more of them.\n".repeat(30);
        let text = format!("{paragraph}\n{paragraph}");
        let parts = texts(&text, &[]);
        assert_eq!(parts.len(), 2);
        assert_eq!(parts[1], paragraph);
    }
}
