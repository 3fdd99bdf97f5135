//! Damaged files end with a text or an error, within time and without a panic of the process.

use std::time::Duration;

use riffle_documents::{DocumentError, Limits};

use crate::make::{docx, epub, pdf};
use crate::read_within;

const MUTANTS: u64 = 300;

/// A small generator of numbers, the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % most.max(1)
    }
}

/// A file with some bytes changed, moved, doubled or cut off.
fn mutant(file: &[u8], numbers: &mut Numbers) -> Vec<u8> {
    let mut bytes = file.to_vec();
    for _ in 0..=numbers.below(6) {
        let at = numbers.below(bytes.len());
        match numbers.below(6) {
            0 => bytes.truncate(at),
            1 => bytes[at] = numbers.below(256) as u8,
            2 => bytes[at] ^= 1 << numbers.below(8),
            3 => {
                let end = (at + numbers.below(64)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                let to = numbers.below(bytes.len());
                bytes.splice(to..to, piece);
            }
            4 => {
                let end = (at + numbers.below(200)).min(bytes.len());
                bytes.drain(at..end);
            }
            _ => {
                // Numbers in the file become others: lengths, offsets, object numbers.
                if let Some(digit) = bytes[at..].iter().position(u8::is_ascii_digit) {
                    bytes[at + digit] = b'0' + numbers.below(10) as u8;
                }
            }
        }
        if bytes.is_empty() {
            break;
        }
    }
    bytes
}

fn damaged_files_end_well(name: &str, file: &[u8]) {
    let limits = Limits {
        expanded_bytes: 16 << 20,
        time: Duration::from_secs(20),
        ..Limits::default()
    };
    let whole = read_within(name, file, &limits).unwrap();
    let mut numbers = Numbers(17);
    let (mut texts, mut errors) = (0, 0);
    for at in 0..MUTANTS {
        let bytes = mutant(file, &mut numbers);
        match read_within(name, &bytes, &limits) {
            Ok(document) => {
                texts += 1;
                assert!(document.text.len() < whole.text.len() + (1 << 20));
                let is_clean = |c: char| c == '\n' || c == '\t' || !c.is_control();
                assert!(document.text.chars().all(is_clean), "mutant {at} of {name}");
                assert!(
                    document
                        .places
                        .iter()
                        .all(|place| document.text.get(place.range.clone()).is_some())
                );
            }
            Err(error) => {
                errors += 1;
                assert!(
                    !matches!(error, DocumentError::TimedOut { .. }),
                    "mutant {at} of {name}: {error}"
                );
                let line = error.to_string();
                assert!(line.lines().count() == 1 && line.contains(name), "mutant {at}: {line}");
            }
        }
    }
    assert!(texts > 0 && errors > 0, "{name}: {texts} texts, {errors} errors");
}

#[test]
fn damaged_pdf_files_end_with_a_text_or_an_error() {
    damaged_files_end_well("a.pdf", &pdf(&["The ship sails.\nFrom Nantucket.", "The whale waits."]));
}

#[test]
fn damaged_epub_files_end_with_a_text_or_an_error() {
    damaged_files_end_well(
        "a.epub",
        &epub(&[("One", "Call me Ishmael."), ("Two", "There she blows!")]),
    );
}

#[test]
fn damaged_docx_files_end_with_a_text_or_an_error() {
    damaged_files_end_well("a.docx", &docx("Ships", &["One two.", "Three."]));
}

#[test]
fn damaged_pages_and_texts_end_with_a_text_or_an_error() {
    let page = b"<html><head><title>T</title></head><body><h1>A</h1><p>caf\xc3\xa9<table><tr><td>1</table><pre>x</pre>";
    let limits = Limits::default();
    let mut numbers = Numbers(5);
    for _ in 0..MUTANTS {
        let bytes = mutant(page, &mut numbers);
        for name in ["a.html", "a.md", "a.txt"] {
            if let Err(error) = read_within(name, &bytes, &limits) {
                assert!(error.to_string().contains(name), "{error}");
            }
        }
    }
}
