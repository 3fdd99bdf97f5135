//! Finds the kind of a file.

use std::fmt;
use std::path::Path;

use serde::Serialize;

use crate::encoding::wide;

/// A kind of document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DocumentKind {
    /// Plain text, including source code.
    Text,
    /// Markdown: plain text with known headings.
    Markdown,
    /// A web page.
    Html,
    /// A PDF file.
    Pdf,
    /// An EPUB book.
    Epub,
    /// A Word document.
    Docx,
}

/// Bytes at the start of a file that determine its kind.
const LOOKED_AT_BYTES: usize = 8 << 10;

/// Kind of a file by its content.
pub(crate) enum Sniffed {
    Kind(DocumentKind),
    /// A ZIP archive; its parts determine the document's kind.
    Archive,
    /// An OLE file: an old Office document, or an encrypted new one.
    Ole,
    /// A document of an unsupported kind.
    Other(OtherKind),
    /// Bytes that are not text.
    Binary,
}

/// An unsupported kind of document, and the kind to save it as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OtherKind {
    pub(crate) name: &'static str,
    pub(crate) save_as: &'static str,
}

/// First bytes of unsupported kinds.
const OTHER_KINDS: [(&[u8], OtherKind); 4] = [
    (b"{\\rtf", other("an RTF document", ".docx")),
    (b"%!PS", other("a PostScript file", "PDF, e.g. with ps2pdf")),
    (
        b"AT&TFORM",
        other("a DjVu document", "PDF, e.g. with ddjvu -format=pdf"),
    ),
    (b"\x1f\x8b", other("a compressed file", "its content, e.g. with gunzip")),
];

/// Parts of archives that identify unsupported kinds.
const OTHER_ARCHIVES: [(&str, OtherKind); 6] = [
    ("ppt/presentation.xml", other("a presentation", "PDF")),
    ("xl/workbook.xml", other("a spreadsheet", "CSV")),
    ("xl/workbook.bin", other("a spreadsheet", "CSV")),
    ("Index/Document.iwa", other("an iWork document", ".docx or PDF")),
    ("content.xml", other("an OpenDocument file", ".docx or PDF")),
    ("FixedDocumentSequence.fdseq", other("an XPS document", "PDF")),
];

const fn other(name: &'static str, save_as: &'static str) -> OtherKind {
    OtherKind { name, save_as }
}

/// The kind of an unsupported archive, by its parts.
pub(crate) fn other_archive(has: impl Fn(&str) -> bool) -> Option<OtherKind> {
    let found = OTHER_ARCHIVES.iter().find(|(part, _)| has(part));
    found.map(|(_, kind)| *kind)
}

impl DocumentKind {
    /// True if lines of the text are lines of the file.
    pub fn has_lines(self) -> bool {
        matches!(self, Self::Text | Self::Markdown)
    }
}

impl fmt::Display for DocumentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Markdown => "Markdown",
            Self::Html => "HTML",
            Self::Pdf => "PDF",
            Self::Epub => "EPUB",
            Self::Docx => "DOCX",
        })
    }
}

/// Finds the kind of a file by its content, and by its name if the content is ambiguous.
pub(crate) fn sniff(name: &str, bytes: &[u8]) -> Sniffed {
    let start = &bytes[..bytes.len().min(LOOKED_AT_BYTES)];
    // Some programs write a few bytes before the header of a PDF.
    let near = &start[..start.len().min(1024)];
    if near.windows(5).any(|window| window == b"%PDF-") && is_pdf_name_or_start(name, near) {
        return Sniffed::Kind(DocumentKind::Pdf);
    }
    if start.starts_with(b"PK\x03\x04") || start.starts_with(b"PK\x05\x06") {
        return Sniffed::Archive;
    }
    if start.starts_with(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1") {
        return Sniffed::Ole;
    }
    if let Some((_, kind)) = OTHER_KINDS.iter().find(|(first, _)| start.starts_with(first)) {
        return Sniffed::Other(*kind);
    }
    if start.get(60..68) == Some(b"BOOKMOBI") {
        return Sniffed::Other(other("a Kindle book", "EPUB, e.g. with Calibre"));
    }
    if wide(start).is_none() && start.contains(&0) {
        return Sniffed::Binary;
    }
    let by_name = match extension(name).as_str() {
        "html" | "htm" | "xhtml" => DocumentKind::Html,
        "md" | "markdown" | "mdown" | "mkd" => DocumentKind::Markdown,
        "pdf" => return Sniffed::Kind(DocumentKind::Pdf),
        "epub" | "docx" => return Sniffed::Archive,
        "" | "txt" if begins_as_html(start) => DocumentKind::Html,
        _ => DocumentKind::Text,
    };
    Sniffed::Kind(by_name)
}

/// The lower-case ending of a file's name, without the dot.
fn extension(name: &str) -> String {
    let ending = Path::new(name).extension().and_then(|ending| ending.to_str());
    ending.unwrap_or_default().to_ascii_lowercase()
}

/// A text about PDF files is not a PDF file: the header must come first, or the name must match.
fn is_pdf_name_or_start(name: &str, start: &[u8]) -> bool {
    start.starts_with(b"%PDF-") || extension(name) == "pdf"
}

fn begins_as_html(start: &[u8]) -> bool {
    let start = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start).trim_ascii_start();
    let begins = |tag: &str| start.len() >= tag.len() && start[..tag.len()].eq_ignore_ascii_case(tag.as_bytes());
    begins("<!doctype html") || begins("<html")
}
