//! PDF files: the text of each page.

use std::io::Read;
use std::sync::Arc;

use flate2::read::ZlibDecoder;
use pdf_extract::encryption::DecryptionError;
use pdf_extract::{Document as PdfDocument, Error as PdfError, PlainTextOutput, output_doc_page};

use crate::builder::TextBuilder;
use crate::guard::caught;
use crate::{Document, DocumentError, DocumentKind, Limits, PlaceKind};

/// Streams within streams that are looked into.
const STREAM_DEPTH: usize = 3;

/// Pages named in the warning about pages that were not read.
const NAMED_PAGES: usize = 5;

/// The document of a file; called on a thread of [`guard`](crate::guard).
pub(crate) fn read(name: &str, bytes: &[u8], limits: &Limits) -> Result<Document, DocumentError> {
    // The parser unpacks what a stream says it holds, however much that is: so it is measured before.
    if unpacked_bytes(bytes, limits.expanded_bytes) > limits.expanded_bytes {
        return Err(too_much(name, limits));
    }
    let pdf = load(name, bytes)?;
    let numbers: Vec<u32> = pdf.get_pages().into_keys().collect();
    if numbers.is_empty() {
        return Err(DocumentError::damaged(name, DocumentKind::Pdf, "it has no pages"));
    }
    let mut builder = TextBuilder::default();
    let mut lost = Vec::new();
    for number in &numbers {
        let mut text = String::new();
        let page = caught(|| output_doc_page(&pdf, &mut PlainTextOutput::new(&mut text as &mut String), *number));
        // What a page gave before its parser failed is kept, and said to be incomplete.
        if !matches!(page, Ok(Ok(()))) {
            lost.push(*number);
        }
        builder.end_line(2);
        builder.mark(PlaceKind::Page(*number as usize));
        add_page(&mut builder, &text);
        if builder.len() as u64 > limits.expanded_bytes {
            return Err(too_much(name, limits));
        }
    }
    let (text, places) = builder.finish();
    if text.is_empty() {
        return Err(if lost.len() == numbers.len() {
            DocumentError::damaged(name, DocumentKind::Pdf, "no page of it can be parsed")
        } else {
            DocumentError::NoText {
                name: name.to_owned(),
                pages: numbers.len(),
            }
        });
    }
    Ok(Document {
        name: name.to_owned(),
        kind: DocumentKind::Pdf,
        text,
        places,
        warnings: warning(&lost, numbers.len()).into_iter().collect(),
    })
}

fn too_much(name: &str, limits: &Limits) -> DocumentError {
    DocumentError::TooMuchInside {
        name: name.to_owned(),
        limit_bytes: limits.expanded_bytes,
    }
}

/// The parsed file, decrypted where that takes no password.
fn load(name: &str, bytes: &[u8]) -> Result<Arc<PdfDocument>, DocumentError> {
    let failed = |error: PdfError| match error {
        PdfError::Decryption(DecryptionError::IncorrectPassword) | PdfError::InvalidPassword => {
            DocumentError::Encrypted {
                name: name.to_owned(),
                kind: DocumentKind::Pdf,
            }
        }
        error => DocumentError::damaged(name, DocumentKind::Pdf, error),
    };
    let mut pdf = PdfDocument::load_mem(bytes).map_err(failed)?;
    if pdf.is_encrypted() {
        pdf.decrypt("").map_err(failed)?;
    }
    Ok(Arc::new(pdf))
}

/// Adds the lines of a page; empty lines part paragraphs.
fn add_page(builder: &mut TextBuilder, text: &str) {
    for line in text.lines() {
        if line.trim().is_empty() {
            builder.end_line(2)
        } else {
            builder.flow(line);
            builder.end_line(1);
        }
    }
}

fn warning(lost: &[u32], pages: usize) -> Option<String> {
    if lost.is_empty() {
        return None;
    }
    let named: Vec<String> = lost.iter().take(NAMED_PAGES).map(u32::to_string).collect();
    let more = if lost.len() > NAMED_PAGES { " and others" } else { "" };
    Some(format!(
        "{} of {pages} pages could not be read whole: {}{more}",
        lost.len(),
        named.join(", ")
    ))
}

/// Bytes that all compressed streams of a file unpack to, as far as `most`.
fn unpacked_bytes(bytes: &[u8], most: u64) -> u64 {
    const KEYWORD: &[u8] = b"stream";
    let mut total = 0u64;
    let mut at = 0;
    while let Some(found) = find(&bytes[at..], KEYWORD) {
        at += found + KEYWORD.len();
        let data = match &bytes[at..] {
            [b'\r', b'\n', data @ ..] | [b'\n' | b'\r', data @ ..] => data,
            data => data,
        };
        total = total.saturating_add(unpacked(data, most - total.min(most), STREAM_DEPTH));
        if total > most {
            break;
        }
    }
    total
}

/// Bytes of one stream, and of what is compressed within it.
fn unpacked(data: &[u8], most: u64, depth: usize) -> u64 {
    if depth == 0 || !is_zlib(data) {
        return 0;
    }
    let mut stream = ZlibDecoder::new(data);
    let mut start = Vec::new();
    let mut total = 0u64;
    let mut block = vec![0; 64 << 10];
    // What can be unpacked of a damaged stream counts.
    while let Ok(count @ 1..) = stream.read(&mut block) {
        total += count as u64;
        if start.is_empty() {
            start.extend_from_slice(&block[..count.min(2)]);
        }
        if total > most {
            return total;
        }
    }
    if is_zlib(&start) {
        let mut inner = Vec::new();
        let _ = ZlibDecoder::new(data).take(most).read_to_end(&mut inner);
        total = total.saturating_add(unpacked(&inner, most - total.min(most), depth - 1));
    }
    total
}

fn is_zlib(data: &[u8]) -> bool {
    matches!(data, [first, second, ..] if first & 0x0f == 8 && (u16::from(*first) * 256 + u16::from(*second)).is_multiple_of(31))
}

fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = bytes[from..].iter().position(|byte| *byte == pattern[0]) {
        if bytes[from + at..].starts_with(pattern) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}
