//! Finds the kind of a file.

use std::fmt;
use std::path::Path;

use serde::Serialize;

/// A kind of document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DocumentKind {
    /// Plain text, source code among it.
    Text,
    /// Markdown: plain text whose headings are known.
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

/// Bytes at the beginning of a file that decide its kind.
const LOOKED_AT_BYTES: usize = 8 << 10;

/// Kind of a file as its content shows it.
pub(crate) enum Sniffed {
    Kind(DocumentKind),
    /// A ZIP archive; its parts decide the kind of the document.
    Archive,
    /// An OLE file: an old Office document, or an encrypted new one.
    Ole,
    /// Bytes that are no text.
    Binary,
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

/// Finds the kind of a file by its content, and by its name if the content leaves it open.
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
    let is_wide = start.starts_with(b"\xff\xfe") || start.starts_with(b"\xfe\xff");
    if !is_wide && start.contains(&0) {
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

/// A text that speaks of PDF files is no PDF file: the header stands first, or the name says so.
fn is_pdf_name_or_start(name: &str, start: &[u8]) -> bool {
    start.starts_with(b"%PDF-") || extension(name) == "pdf"
}

fn begins_as_html(start: &[u8]) -> bool {
    let start = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start).trim_ascii_start();
    let begins = |tag: &str| start.len() >= tag.len() && start[..tag.len()].eq_ignore_ascii_case(tag.as_bytes());
    begins("<!doctype html") || begins("<html")
}
