//! Reads untrusted documents: the result must be a text within its limits, or an error of one line.

use std::path::Path;
use std::time::Duration;

use riffle_documents::{DocumentError, Limits, read};

/// File names of the inputs; the first byte of an input selects one.
pub const NAMES: [&str; 5] = ["a.pdf", "a.epub", "a.docx", "a.html", "a.md"];

/// Reads a document from the bytes after the first, through a file in `folder`, and checks the result. Returns the
/// index of its name and true for a text; `None` for an empty input.
pub fn read_document(folder: &Path, input: &[u8]) -> Option<(usize, bool)> {
    let (first, bytes) = input.split_first()?;
    let number = usize::from(*first) % NAMES.len();
    let name = NAMES[number];
    let path = folder.join(name);
    std::fs::write(&path, bytes).expect("the folder can be written");
    let limits = Limits {
        expanded_bytes: 4 << 20,
        time: Duration::from_secs(10),
        ..Limits::default()
    };
    let read = read(&[&path], &limits);
    match &read {
        Ok(collection) => {
            for document in &collection.documents {
                let text = &document.text;
                assert!(text.len() <= 8 << 20, "{} bytes of text", text.len());
                let is_clean = |c: char| c == '\n' || c == '\t' || !c.is_control();
                assert!(text.chars().all(is_clean), "control characters in the text");
                for place in &document.places {
                    assert!(
                        text.get(place.range.clone()).is_some(),
                        "a place outside of the text: {:?}",
                        place.range
                    );
                }
                document.describe(&(0..text.len()));
            }
        }
        Err(error) => {
            assert!(!matches!(error, DocumentError::TimedOut { .. }), "{error}");
            let line = error.to_string();
            assert!(line.lines().count() == 1 && line.contains(name), "{line:?}");
        }
    }
    Some((number, read.is_ok()))
}
