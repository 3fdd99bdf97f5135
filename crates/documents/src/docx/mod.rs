//! Word documents: paragraphs, headings, lists, tables, notes and comments.

mod formula;
mod package;
mod styles;
mod text;

use std::collections::HashSet;

use crate::archive::Archive;
use crate::encoding::decode_markup;
use crate::{Document, DocumentError, DocumentKind, Limits};
use package::{Relation, main_part, parts_of, relations_of};
use styles::{Numbering, Styles};
use text::{LeftOut, Paragraphs};

/// The main part of most files.
const MAIN: &str = "word/document.xml";

pub(crate) fn read(name: &str, bytes: &[u8], limits: &Limits) -> Result<Document, DocumentError> {
    let mut archive = Archive::open(name, DocumentKind::Docx, bytes, limits)?;
    let main = main_part(&mut archive)?.unwrap_or_else(|| MAIN.to_owned());
    let text = archive.needed(&main)?;
    let mut related = relations_of(&mut archive, &main)?;
    if related.is_empty() {
        let usual = ["styles", "numbering", "footnotes", "endnotes", "comments"].map(|kind| Relation {
            id: String::new(),
            kind: kind.to_owned(),
            part: format!("word/{kind}.xml"),
        });
        related.extend(usual);
    }
    let mut paragraphs = Paragraphs::new(limits);
    for part in parts_of(&related, "styles") {
        if let Some(part) = archive.part(part)? {
            paragraphs.styles = Styles::read(part).map_err(|why| archive.damaged(why))?;
        }
    }
    for part in parts_of(&related, "numbering") {
        if let Some(part) = archive.part(part)? {
            paragraphs.numbering = Numbering::read(part).map_err(|why| archive.damaged(why))?;
        }
    }
    for chunk in related.iter().filter(|relation| relation.kind == "aFChunk") {
        let is_page = [".htm", ".html", ".xhtml", ".txt"]
            .iter()
            .any(|end| chunk.part.ends_with(end));
        if let Some(part) = archive.part(&chunk.part)?.filter(|_| is_page) {
            paragraphs.chunks.insert(chunk.id.clone(), decode_markup(part));
        }
    }
    let is_whole = is_whole(&text);
    paragraphs.take(text).map_err(|why| archive.damaged(why))?;
    // Diagrams, notes and comments are read after the text.
    for kind in ["diagramData", "footnotes", "endnotes", "comments"] {
        for part in parts_of(&related, kind) {
            if let Some(notes) = archive.part(part)? {
                paragraphs.take(notes).map_err(|why| archive.damaged(why))?;
            }
        }
    }
    add_margins(&mut archive, &related, &mut paragraphs)?;
    let mut warnings = Vec::new();
    if !is_whole {
        warnings.push("its text ends in the middle: the rest is missing in the file".to_owned());
    }
    warnings.extend(paragraphs.left_out.warnings(&related));
    let (text, places) = paragraphs.builder.finish();
    Ok(Document {
        name: name.to_owned(),
        kind: DocumentKind::Docx,
        text,
        places,
        warnings,
    })
}

/// Adds headers and footers, each once, after the text.
fn add_margins(
    archive: &mut Archive<'_>,
    related: &[Relation],
    paragraphs: &mut Paragraphs<'_>,
) -> Result<(), DocumentError> {
    let mut known: HashSet<String> = HashSet::new();
    for (kind, label) in [("header", "Header"), ("footer", "Footer")] {
        for part in parts_of(related, kind) {
            let Some(part) = archive.part(part)? else { continue };
            let mut margin = Paragraphs::new(paragraphs.limits);
            margin.take(part).map_err(|why| archive.damaged(why))?;
            let text = margin.builder.finish().0;
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            // A number alone is a page number.
            if text.chars().any(char::is_alphabetic) && known.insert(text.clone()) {
                paragraphs.builder.end_line(2);
                paragraphs.builder.flow(&format!("[{label}: {text}]"));
            }
        }
    }
    Ok(())
}

/// True if the last tag of a part ends its document.
fn is_whole(part: &[u8]) -> bool {
    let last = part.iter().rposition(|byte| *byte == b'<').map(|at| &part[at..]);
    let name = last.and_then(|last| last.strip_prefix(b"</")).unwrap_or_default();
    let name = name.split(|byte| *byte == b'>').next().unwrap_or_default().trim_ascii();
    // A part in UTF-16 has zero bytes. It counts as whole without a check.
    name.ends_with(b"document") || part.contains(&0)
}

impl LeftOut {
    /// One line about each kind of part that is left out.
    fn warnings(&self, related: &[Relation]) -> Vec<String> {
        let mut warnings = Vec::new();
        for (count, what) in [
            (
                self.deletions,
                "deletions of tracked changes are left out: the changes count as accepted",
            ),
            (self.charts, "charts are left out: only their captions are text"),
            (
                self.embedded,
                "embedded files are left out; save them on their own to read them",
            ),
            (
                self.symbols,
                "signs are left out, whose fonts do not tell what they are",
            ),
        ] {
            if count > 0 {
                warnings.push(format!("{count} {what}"));
            }
        }
        for id in self.chunks.iter().take(5) {
            let part = related.iter().find(|relation| relation.id == *id);
            let part = part.map_or(id.as_str(), |relation| &relation.part);
            warnings.push(format!(
                "{part} within the document is left out; save the document anew with its text"
            ));
        }
        warnings
    }
}
