//! A text with the places of its parts.

use std::ops::Range;

use serde::Serialize;

use crate::DocumentKind;

/// A document in the form that a model reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Document {
    /// Name of the file; for a file of a folder, the folder's name and the path in it. Documents that would share a
    /// name have their given paths.
    pub name: String,
    /// Kind of the file.
    pub kind: DocumentKind,
    /// The text: UTF-8, lines end with `\n`, no control characters except `\n` and tabs.
    pub text: String,
    /// Places of the text, sorted by their first byte. Places of different kinds overlap: a heading is on a page.
    pub places: Vec<DocumentPlace>,
    /// Unreadable parts of the file, one line each.
    pub warnings: Vec<String>,
}

/// A part of a text that a person can find.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DocumentPlace {
    /// Bytes of the text.
    pub range: Range<usize>,
    /// Kind of the place, with its name or number.
    pub kind: PlaceKind,
}

/// Kind of a [`DocumentPlace`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PlaceKind {
    /// A page of the file, from 1.
    Page(usize),
    /// The label of a page, if it differs from its number, such as `iv`.
    Label(String),
    /// A chapter, by its title.
    Chapter(String),
    /// Text under a heading, up to the next heading of any level.
    Heading {
        /// The heading.
        title: String,
        /// Depth below chapters, from 1.
        level: usize,
    },
}

impl PlaceKind {
    /// A heading of a level, from 1.
    pub(crate) fn heading(title: &str, level: usize) -> Self {
        Self::Heading {
            title: title.to_owned(),
            level: level.max(1),
        }
    }
}

impl Document {
    /// Describes the source of bytes `range` of the text for people: `pages 3–4`, `chapter "Loomings"`,
    /// `lines 12–20, under "Install"`. Empty if no place is known.
    pub fn describe(&self, range: &Range<usize>) -> String {
        let mut parts = Vec::new();
        let last = range.end.max(range.start + 1) - 1;
        let page = |at: usize| {
            self.at(at).find_map(|place| match place {
                PlaceKind::Page(page) => Some(*page),
                _ => None,
            })
        };
        if let Some(first) = page(range.start) {
            parts.push(numbers("page", first, page(last).unwrap_or(first)));
        }
        let label = self.at(range.start).find_map(|place| match place {
            PlaceKind::Label(label) => Some(label),
            _ => None,
        });
        parts.extend(label.map(|label| format!("labelled {label}")));
        let chapter = self.at(range.start).find_map(|place| match place {
            PlaceKind::Chapter(title) => Some(title),
            _ => None,
        });
        parts.extend(chapter.map(|title| format!("chapter \"{title}\"")));
        if self.kind.has_lines() {
            let (first, last) = self.lines(range);
            parts.push(numbers("line", first, last));
        }
        let heading = self.at(range.start).find_map(|place| match place {
            PlaceKind::Heading { title, .. } if Some(title) != chapter => Some(title),
            _ => None,
        });
        parts.extend(heading.map(|title| format!("under \"{title}\"")));
        parts.join(", ")
    }

    /// The first and the last line of bytes `range` of the text, from 1.
    pub fn lines(&self, range: &Range<usize>) -> (usize, usize) {
        let bytes = self.text.as_bytes();
        let count = |end: usize| {
            let before = &bytes[..end.min(bytes.len())];
            before.iter().filter(|byte| **byte == b'\n').count() + 1
        };
        let last = range.end.max(range.start + 1) - 1;
        (count(range.start), count(last))
    }

    /// Kinds of the places around a byte of the text, the innermost first.
    fn at(&self, byte: usize) -> impl Iterator<Item = &PlaceKind> {
        let before = self.places.partition_point(|place| place.range.start <= byte);
        let here = self.places[..before].iter().rev();
        here.filter(move |place| place.range.contains(&byte))
            .map(|place| &place.kind)
    }
}

fn numbers(what: &str, first: usize, last: usize) -> String {
    if first == last {
        format!("{what} {first}")
    } else {
        format!("{what}s {first}–{last}")
    }
}
