//! Parts of documents: what is read of a text that is longer than the context.

mod chooser;
mod cut;
mod ranking;
mod words;

use std::ops::Range;

use riffle_documents::{Document, PlaceError};
use serde::Serialize;

use crate::AskError;
pub(crate) use chooser::PartChooser;
pub(crate) use cut::cut;
pub(crate) use ranking::{Ranking, best};

/// How much of the documents is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Amount {
    /// All of it where the model and memory hold it, else the parts that share words with each question.
    #[default]
    Fitting,
    /// All of it. A context beyond the one that the model was made for is stretched where the model allows.
    Whole,
    /// The parts that share words with each question.
    Parts,
}

/// A choice of the documents' text by its places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// Pages, by the labels that they carry or by their numbers, the first and the last included.
    Pages(String, String),
    /// A chapter, or a part with a heading, by words of its title.
    Chapter(String),
}

/// A part of a document that stands in a prompt.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Part {
    /// Number of the document, from 0.
    #[serde(rename = "document_number")]
    pub document: usize,
    /// First byte of its text.
    pub start: usize,
    /// The byte behind it.
    pub end: usize,
}

impl Part {
    /// Bytes of the document's text.
    pub fn range(&self) -> Range<usize> {
        self.start..self.end
    }

    pub(crate) fn text<'a>(&self, documents: &'a [Document]) -> &'a str {
        &documents[self.document].text[self.range()]
    }

    /// True if it is all of its document.
    pub(crate) fn is_whole(&self, documents: &[Document]) -> bool {
        self.start == 0 && self.end >= documents[self.document].text.trim_end().len()
    }
}

/// The text that the scopes name, or all of it; in reading order.
///
/// # Errors
/// [`AskError::Place`] where no document has such pages or such a chapter.
pub(crate) fn named(documents: &[Document], scopes: &[Scope]) -> Result<Vec<Part>, AskError> {
    if scopes.is_empty() {
        let whole = |(number, document): (usize, &Document)| trimmed(documents, number, 0..document.text.len());
        return Ok(documents.iter().enumerate().map(whole).collect());
    }
    let mut parts: Vec<Part> = Vec::new();
    for scope in scopes {
        let found: Vec<Result<Part, PlaceError>> = documents
            .iter()
            .enumerate()
            .map(|(number, document)| Ok(trimmed(documents, number, scope.range(document)?)))
            .collect();
        // One of several documents that has the place is enough.
        if let (Some(Err(error)), false) = (found.first(), found.iter().any(Result::is_ok)) {
            return Err(AskError::Place(error.clone()));
        }
        parts.extend(found.into_iter().flatten());
    }
    parts.sort();
    parts.dedup_by(|next, before| {
        let overlap = next.document == before.document && next.start <= before.end;
        if overlap {
            before.end = before.end.max(next.end);
        }
        overlap
    });
    Ok(parts)
}

impl Scope {
    fn range(&self, document: &Document) -> Result<Range<usize>, PlaceError> {
        match self {
            Self::Pages(first, last) => document.labelled_pages_range(first, last),
            Self::Chapter(title) => document.chapter_range(title),
        }
    }
}

/// A part without the white space at its end.
fn trimmed(documents: &[Document], document: usize, range: Range<usize>) -> Part {
    let text = &documents[document].text[range.clone()];
    Part {
        document,
        start: range.start,
        end: range.start + text.trim_end().len(),
    }
}
