//! Word documents: paragraphs, headings, tables and notes.

use std::collections::BTreeSet;

use crate::archive::Archive;
use crate::builder::{TextBuilder, title};
use crate::xml::{self, XmlEvent, attribute};
use crate::{Document, DocumentError, DocumentKind, Limits, PlaceKind};

/// The main part of most files.
const MAIN: &str = "word/document.xml";

/// A part that another names, and the last word of the type of their relation.
struct Relation {
    kind: String,
    part: String,
}

pub(crate) fn read(name: &str, bytes: &[u8], limits: &Limits) -> Result<Document, DocumentError> {
    let mut archive = Archive::open(name, DocumentKind::Docx, bytes, limits)?;
    let main = main_part(&mut archive)?.unwrap_or_else(|| MAIN.to_owned());
    let text = archive.needed(&main)?;
    let (folder, file) = main.rsplit_once('/').unwrap_or(("", &main));
    let mut related = relations(&mut archive, &format!("{folder}/_rels/{file}.rels"), folder)?;
    if related.is_empty() {
        let usual = ["styles", "footnotes", "endnotes"].map(|kind| Relation {
            kind: kind.to_owned(),
            part: format!("word/{kind}.xml"),
        });
        related.extend(usual);
    }
    let mut paragraphs = Paragraphs::default();
    for styles in parts_of(&related, "styles") {
        if let Some(styles) = archive.part(styles)? {
            paragraphs.headings = headings(&styles).map_err(|why| archive.damaged(why))?;
        }
    }
    paragraphs.take(&text).map_err(|why| archive.damaged(why))?;
    // Notes are read behind the text.
    for part in parts_of(&related, "footnotes").chain(parts_of(&related, "endnotes")) {
        if let Some(notes) = archive.part(part)? {
            paragraphs.take(&notes).map_err(|why| archive.damaged(why))?;
        }
    }
    let warning = (!is_whole(&text)).then(|| "its text ends in the middle: the rest is missing in the file".to_owned());
    let (text, places) = paragraphs.builder.finish();
    Ok(Document {
        name: name.to_owned(),
        kind: DocumentKind::Docx,
        text,
        places,
        warnings: warning.into_iter().collect(),
    })
}

/// True if the last tag of a part ends its document.
fn is_whole(part: &[u8]) -> bool {
    let last = part.iter().rposition(|byte| *byte == b'<').map(|at| &part[at..]);
    let name = last.and_then(|last| last.strip_prefix(b"</")).unwrap_or_default();
    let name = name.split(|byte| *byte == b'>').next().unwrap_or_default().trim_ascii();
    // Parts in UTF-16 are not looked into.
    name.ends_with(b"document") || part.contains(&0)
}

/// The part with the text, as the package says; `None` where it says nothing.
fn main_part(archive: &mut Archive<'_>) -> Result<Option<String>, DocumentError> {
    let package = relations(archive, "_rels/.rels", "")?;
    let found = parts_of(&package, "officeDocument").next().map(str::to_owned);
    Ok(found.filter(|part| archive.has(part)))
}

fn parts_of<'r>(relations: &'r [Relation], kind: &'r str) -> impl Iterator<Item = &'r str> {
    let wanted = relations.iter().filter(move |relation| relation.kind == kind);
    wanted.map(|relation| relation.part.as_str())
}

/// The relations that a part lists; places are counted from `folder`.
fn relations(archive: &mut Archive<'_>, part: &str, folder: &str) -> Result<Vec<Relation>, DocumentError> {
    let Some(bytes) = archive.part(part)? else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    let read = xml::each(&bytes, &mut |event| {
        let XmlEvent::Start("Relationship", element) = event else {
            return;
        };
        let (kind, target) = (attribute(element, "Type"), attribute(element, "Target"));
        let is_outside = attribute(element, "TargetMode").is_some_and(|mode| mode == "External");
        if let (Some(kind), Some(target), false) = (kind, target, is_outside) {
            found.push(Relation {
                kind: kind.rsplit('/').next().unwrap_or_default().to_owned(),
                part: place(folder, &target),
            });
        }
    });
    read.map_err(|why| archive.damaged(why))?;
    Ok(found)
}

/// A part's name from a target, which counts from the root or from a folder.
fn place(folder: &str, target: &str) -> String {
    let mut steps: Vec<&str> = match target.strip_prefix('/') {
        Some(_) => Vec::new(),
        None => folder.split('/').filter(|step| !step.is_empty()).collect(),
    };
    for step in target.split('/') {
        match step {
            "" | "." => {}
            ".." => drop(steps.pop()),
            step => steps.push(step),
        }
    }
    steps.join("/")
}

/// Ids of the styles that are headings, in whatever language the file was made: their names are English.
fn headings(styles: &[u8]) -> Result<BTreeSet<String>, String> {
    let (mut headings, mut id) = (BTreeSet::new(), None);
    xml::each(styles, &mut |event| match event {
        XmlEvent::Start("style", element) => id = attribute(element, "styleId"),
        XmlEvent::Start("name", element) => {
            let name = attribute(element, "val").unwrap_or_default();
            if let Some(id) = id.take().filter(|_| is_heading(&name)) {
                headings.insert(id);
            }
        }
        _ => {}
    })?;
    Ok(headings)
}

fn is_heading(style: &str) -> bool {
    let style = style.to_ascii_lowercase();
    style.starts_with("heading") || style == "title"
}

#[derive(Default)]
struct Paragraphs {
    builder: TextBuilder,
    in_text: bool,
    /// Styles that are headings, beside those whose ids say so.
    headings: BTreeSet<String>,
    /// Open elements whose text stands elsewhere as well: for old programs, or at the place from which it was moved.
    repeated: usize,
    /// Text of the heading that the paragraph is; `None` for other paragraphs.
    heading: Option<String>,
    in_table: usize,
    cells: usize,
}

impl Paragraphs {
    fn take(&mut self, bytes: &[u8]) -> Result<(), String> {
        xml::each(bytes, &mut |event| match event {
            XmlEvent::Start("Fallback" | "moveFrom", _) => self.repeated += 1,
            XmlEvent::End("Fallback" | "moveFrom") => self.repeated = self.repeated.saturating_sub(1),
            _ if self.repeated > 0 => {}
            XmlEvent::Start(name, element) => match name {
                "pStyle" => {
                    let style = attribute(element, "val").unwrap_or_default();
                    if (self.headings.contains(&style) || is_heading(&style)) && self.heading.is_none() {
                        self.heading = Some(String::new());
                        self.builder.mark(PlaceKind::Heading(String::new()));
                    }
                }
                "p" if self.in_table == 0 => self.builder.end_line(2),
                "t" => self.in_text = true,
                "tab" => self.builder.flow(" "),
                "br" | "cr" => self.builder.end_line(1),
                "noBreakHyphen" => self.text("-"),
                "tbl" => {
                    self.in_table += 1;
                    self.builder.end_line(2);
                }
                "tr" => {
                    self.cells = 0;
                    self.builder.end_line(1);
                }
                "tc" => {
                    if self.cells > 0 {
                        self.builder.flow(" | ");
                    }
                    self.cells += 1;
                }
                _ => {}
            },
            XmlEvent::End(name) => match name {
                "t" => self.in_text = false,
                "p" => self.end_paragraph(),
                "tbl" => {
                    self.in_table = self.in_table.saturating_sub(1);
                    self.builder.end_line(2);
                }
                _ => {}
            },
            XmlEvent::Text(text) if self.in_text => self.text(text),
            XmlEvent::Text(_) => {}
        })
    }

    fn text(&mut self, text: &str) {
        if let Some(heading) = &mut self.heading {
            heading.push_str(text);
        }
        self.builder.flow(text);
    }

    fn end_paragraph(&mut self) {
        if let Some(heading) = self.heading.take() {
            self.builder.name_last(title(&heading));
        }
        match self.in_table {
            0 => self.builder.end_line(2),
            _ => self.builder.flow(" "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::place;

    #[test]
    fn targets_count_from_the_root_or_from_the_part_that_names_them() {
        assert_eq!(place("word", "styles.xml"), "word/styles.xml");
        assert_eq!(place("word", "/word/notes.xml"), "word/notes.xml");
        assert_eq!(place("word/a", "../b/./c.xml"), "word/b/c.xml");
        assert_eq!(place("", "../../word/document2.xml"), "word/document2.xml");
    }
}
