//! Parts of documents, for a text that exceeds the context.

mod chooser;
mod cut;
mod fusion;
mod ranking;
mod words;

use std::ops::Range;

use riffle_documents::{Document, PlaceError};
use serde::Serialize;

use crate::AskError;
pub(crate) use chooser::PartChooser;
pub(crate) use cut::cut;
pub(crate) use fusion::{fused, order};
pub(crate) use ranking::{EARLIER_SHARE, Ranking, best};

/// Amount of the documents to read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Amount {
    /// The whole text if it fits in the context and the memory; otherwise the parts that share words with each
    /// question.
    #[default]
    Fitting,
    /// The whole text. The context is stretched beyond the model's own if the model allows it.
    Whole,
    /// The parts that share words with each question.
    Parts,
}

/// The ranking that found the parts for a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FoundBy {
    /// The words in common with the question.
    Words,
    /// These words, and the likeness in meaning.
    WordsAndMeaning,
}

/// A selection of the documents' text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// Pages by label or number, including the first and the last.
    Pages(String, String),
    /// A chapter, or a part with a heading, by words of its title.
    Chapter(String),
}

/// A part of a document in a prompt.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Part {
    /// Number of the document, from 0.
    #[serde(rename = "document_number")]
    pub document: usize,
    /// First byte of the part.
    pub start: usize,
    /// End of the part: the byte after the last one.
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

    /// True if the part is its whole document.
    pub(crate) fn is_whole(&self, documents: &[Document]) -> bool {
        self.start == 0 && self.end >= documents[self.document].text.trim_end().len()
    }
}

/// The text of the scopes, or the whole text; in reading order.
///
/// # Errors
/// [`AskError::Place`] if no document has the pages or the chapter.
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
        // One of several documents must have the pages or the chapter.
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

/// A part without trailing white space.
fn trimmed(documents: &[Document], document: usize, range: Range<usize>) -> Part {
    let text = &documents[document].text[range.clone()];
    Part {
        document,
        start: range.start,
        end: range.start + text.trim_end().len(),
    }
}
