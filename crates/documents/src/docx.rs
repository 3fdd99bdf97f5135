//! Word documents: paragraphs, headings, tables and notes.

use crate::archive::Archive;
use crate::builder::{TextBuilder, title};
use crate::xml::{self, XmlEvent, attribute};
use crate::{Document, DocumentError, DocumentKind, Limits, PlaceKind};

/// Parts with notes, read behind the text.
const NOTES: [&str; 2] = ["word/footnotes.xml", "word/endnotes.xml"];

pub(crate) fn read(name: &str, bytes: &[u8], limits: &Limits) -> Result<Document, DocumentError> {
    let mut archive = Archive::open(name, DocumentKind::Docx, bytes, limits)?;
    let main = archive.needed("word/document.xml")?;
    let mut paragraphs = Paragraphs::default();
    paragraphs.take(&main).map_err(|why| archive.damaged(why))?;
    for part in NOTES {
        if archive.has(part) {
            let notes = archive.needed(part)?;
            paragraphs.take(&notes).map_err(|why| archive.damaged(why))?;
        }
    }
    let (text, places) = paragraphs.builder.finish();
    Ok(Document {
        name: name.to_owned(),
        kind: DocumentKind::Docx,
        text,
        places,
        warnings: Vec::new(),
    })
}

#[derive(Default)]
struct Paragraphs {
    builder: TextBuilder,
    in_text: bool,
    /// Open elements that repeat, for old programs, what stands before them.
    fallback: usize,
    /// Whether the paragraph has a heading's style, and what it says.
    heading: Option<String>,
    in_table: usize,
    cells: usize,
}

impl Paragraphs {
    fn take(&mut self, bytes: &[u8]) -> Result<(), String> {
        xml::each(bytes, &mut |event| match event {
            XmlEvent::Start("Fallback", _) => self.fallback += 1,
            XmlEvent::End("Fallback") => self.fallback = self.fallback.saturating_sub(1),
            _ if self.fallback > 0 => {}
            XmlEvent::Start(name, element) => match name {
                "pStyle" => {
                    let style = attribute(element, "val").unwrap_or_default().to_ascii_lowercase();
                    if (style.starts_with("heading") || style == "title") && self.heading.is_none() {
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
