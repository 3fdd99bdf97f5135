//! Generated documents, whole and damaged, become texts with places or errors of one line.

mod damage;
mod kinds;
mod office;
mod pages;
mod tables;
mod trees;

use std::fs;
use std::path::PathBuf;

use riffle_documents::{Document, DocumentError, Limits, read};

/// A file of a temporary folder.
struct Made {
    folder: tempfile::TempDir,
}

impl Made {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().expect("a folder"),
        }
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, bytes).expect("a file");
        path
    }
}

/// Reads `bytes` as a file of this name.
fn read_one(name: &str, bytes: &[u8]) -> Result<Document, DocumentError> {
    read_within(name, bytes, &Limits::default())
}

fn read_within(name: &str, bytes: &[u8], limits: &Limits) -> Result<Document, DocumentError> {
    let made = Made::new();
    let path = made.file(name, bytes);
    let mut collection = read(&[path], limits)?;
    Ok(collection.documents.remove(0))
}

/// Formats the kind and the place of a part of a document's text.
fn place(document: &Document, piece: &str) -> String {
    let at = document
        .text
        .find(piece)
        .unwrap_or_else(|| panic!("{piece:?} in {:?}", document.text));
    document.describe(&(at..at + piece.len()))
}
