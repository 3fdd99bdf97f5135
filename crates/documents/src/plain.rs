//! Plain text and Markdown: the text unchanged, so that its lines are the file's.

use crate::builder::{HEADINGS, cleaned, places, title};
use crate::encoding::decode;
use crate::{Document, DocumentError, DocumentKind, PlaceKind};

/// A document of text in a supported encoding.
pub(crate) fn read(name: &str, kind: DocumentKind, bytes: Vec<u8>) -> Result<Document, DocumentError> {
    let text = cleaned(decode(name, bytes)?);
    let marks = match kind {
        DocumentKind::Markdown => headings(&text),
        _ => Vec::new(),
    };
    let places = places(&marks, text.len());
    Ok(Document {
        name: name.to_owned(),
        kind,
        text,
        places,
        warnings: Vec::new(),
    })
}

/// Headings with a leading hash, outside fenced code.
fn headings(text: &str) -> Vec<(usize, PlaceKind)> {
    let mut fence: Option<&str> = None;
    let mut at = 0;
    let mut marks = Vec::new();
    for line in text.split_inclusive('\n') {
        if marks.len() == HEADINGS {
            break;
        }
        let trimmed = line.trim();
        let opens = ["```", "~~~"].into_iter().find(|fence| trimmed.starts_with(fence));
        match (fence, opens) {
            (Some(open), Some(here)) if open == here => fence = None,
            (None, Some(here)) => fence = Some(here),
            (None, None) if line.starts_with('#') => {
                let name = trimmed.trim_start_matches('#');
                let level = trimmed.len() - name.len();
                if level <= 6 && name.starts_with(' ') {
                    let name = title(name.trim_end_matches('#'));
                    marks.push((at, PlaceKind::heading(&name, level)));
                }
            }
            _ => {}
        }
        at += line.len();
    }
    marks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_of_markdown_are_places_and_comments_in_code_are_not() {
        let text = b"# One #\r\na\n```sh\n# no\n```\n## Two\nb\n#tag\n".to_vec();
        let document = read("a.md", DocumentKind::Markdown, text).unwrap();
        let titles: Vec<_> = document.places.iter().map(|place| &place.kind).collect();
        assert_eq!(titles, [&PlaceKind::heading("One", 1), &PlaceKind::heading("Two", 2)]);
        let at = document.text.find("b\n#tag").unwrap();
        assert_eq!(document.describe(&(at..at + 3)), "lines 7–8, under \"Two\"");
    }
}
