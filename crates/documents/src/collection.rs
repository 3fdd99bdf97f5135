//! Reads documents from paths.

use std::path::Path;
use std::sync::Arc;

use riffle_files::FileError;
use serde::Serialize;

use crate::guard::{self, Fault};
use crate::kind::{OtherKind, Sniffed, sniff};
use crate::{Document, DocumentError, DocumentKind, Limits, archive, docx, epub, folder, html, names, pdf, plain};

/// Documents in the order of the given files, and the skipped files of folders.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Collection {
    /// The documents.
    pub documents: Vec<Document>,
    /// Files of folders that are not documents, or damaged.
    pub left_out: LeftOut,
}

/// Skipped files of folders. Files that are given directly are read or refused.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Files without text.
    pub binary: usize,
    /// Empty files.
    pub empty: usize,
    /// Problems of the other files, one line each.
    pub failures: Vec<String>,
}

impl LeftOut {
    /// Number of skipped files.
    pub fn count(&self) -> usize {
        self.binary + self.empty + self.failures.len()
    }
}

/// Reads files and folders.
///
/// # Errors
/// A [`DocumentError`] for the first given file that is unreadable, and for a folder without a readable file. Also if
/// the limits on files or text are exceeded. Unreadable files of folders are counted in [`Collection::left_out`].
pub fn read(paths: &[impl AsRef<Path>], limits: &Limits) -> Result<Collection, DocumentError> {
    if paths.is_empty() {
        return Err(DocumentError::NothingNamed);
    }
    let mut collection = Collection::default();
    let mut text_bytes = 0;
    let mut typed = Vec::new();
    for path in paths {
        let path = path.as_ref();
        let name = path.display().to_string();
        let before = collection.documents.len();
        if path.is_dir() {
            read_folder(&name, path, limits, &mut collection, &mut text_bytes)?;
        } else {
            let document = not_empty(read_file(&name, path, limits, text_bytes)?)?;
            add(&mut collection, document, limits, &mut text_bytes)?;
        }
        let added = &mut collection.documents[before..];
        typed.extend(added.iter().map(|document| document.name.clone()));
        names::shorten(added, path);
    }
    names::tell_apart(&mut collection.documents, typed);
    Ok(collection)
}

/// Reads a file in memory. `name` is its file name, which decides if the content is ambiguous.
///
/// # Errors
/// A [`DocumentError`] for a file without text, of another kind, damaged, or beyond the limits.
pub fn read_bytes(name: &str, bytes: Vec<u8>, limits: &Limits) -> Result<Document, DocumentError> {
    let own = Arc::new(limits.after(0));
    if bytes.len() as u64 > own.file_bytes {
        return Err(narrowed(
            DocumentError::TooLarge {
                name: name.to_owned(),
                limit_bytes: own.file_bytes,
            },
            &own,
            limits,
        ));
    }
    let document = parse(name, bytes, &own).map_err(|error| narrowed(error, &own, limits))?;
    not_empty(document)
}

fn not_empty(document: Document) -> Result<Document, DocumentError> {
    if document.text.trim().is_empty() {
        return Err(DocumentError::Empty { name: document.name });
    }
    Ok(document)
}

fn add(
    collection: &mut Collection,
    document: Document,
    limits: &Limits,
    text_bytes: &mut u64,
) -> Result<(), DocumentError> {
    *text_bytes += document.text.len() as u64;
    if *text_bytes > limits.text_bytes {
        return Err(DocumentError::TooMuchText {
            name: document.name,
            limit_bytes: limits.text_bytes,
        });
    }
    collection.documents.push(document);
    Ok(())
}

fn read_folder(
    name: &str,
    folder: &Path,
    limits: &Limits,
    collection: &mut Collection,
    text_bytes: &mut u64,
) -> Result<(), DocumentError> {
    let (documents_before, left_out_before) = (collection.documents.len(), collection.left_out.count());
    let (files, too_deep) = folder::files(name, folder, limits)?;
    collection.left_out.failures.extend(too_deep);
    if collection.documents.len() + files.len() > limits.files {
        return Err(DocumentError::TooManyFiles {
            name: name.to_owned(),
            limit: limits.files,
        });
    }
    for path in files {
        let file_name = path.display().to_string();
        match read_file(&file_name, &path, limits, *text_bytes) {
            Ok(document) if document.text.trim().is_empty() => collection.left_out.empty += 1,
            Ok(document) => add(collection, document, limits, text_bytes)?,
            Err(DocumentError::Binary { .. } | DocumentError::OldOffice { .. }) => {
                collection.left_out.binary += 1;
            }
            Err(error) => collection.left_out.failures.push(error.to_string()),
        }
    }
    if collection.documents.len() > documents_before {
        Ok(())
    } else {
        Err(DocumentError::EmptyFolder {
            name: name.to_owned(),
            left_out: collection.left_out.count() - left_out_before,
        })
    }
}

/// Reads one file; `held` is the number of bytes of text kept so far.
fn read_file(name: &str, path: &Path, usual: &Limits, held: u64) -> Result<Document, DocumentError> {
    let limits = Arc::new(usual.after(held));
    let bytes = riffle_files::read(path, limits.file_bytes).map_err(|error| match error {
        FileError::TooLarge { limit_bytes } => DocumentError::TooLarge {
            name: name.to_owned(),
            limit_bytes,
        },
        error if error.kind() == std::io::ErrorKind::NotFound => DocumentError::Unreadable {
            name: name.to_owned(),
            reason: "no such file; check the path".to_owned(),
        },
        error => DocumentError::Unreadable {
            name: name.to_owned(),
            reason: error.to_string(),
        },
    });
    let document = bytes.and_then(|bytes| parse(name, bytes, &limits));
    document.map_err(|error| narrowed(error, &limits, usual))
}

/// Returns the error. If memory has narrowed the limits, the error names memory.
fn narrowed(error: DocumentError, limits: &Limits, usual: &Limits) -> DocumentError {
    match (error, limits.memory_bytes) {
        (
            DocumentError::TooLarge { name, .. }
            | DocumentError::TooMuchInside { name, .. }
            | DocumentError::TooMuchWork { name },
            Some(memory_bytes),
        ) if limits.are_narrower(usual) => DocumentError::TooMuchMemory { name, memory_bytes },
        (error, _) => error,
    }
}

/// Parses a file's bytes.
fn parse(name: &str, bytes: Vec<u8>, limits: &Arc<Limits>) -> Result<Document, DocumentError> {
    match sniff(name, &bytes) {
        Sniffed::Binary => Err(DocumentError::Binary { name: name.to_owned() }),
        Sniffed::Other(OtherKind { name: kind, save_as }) => Err(DocumentError::OtherKind {
            name: name.to_owned(),
            kind,
            save_as,
        }),
        Sniffed::Ole => Err(DocumentError::OldOffice { name: name.to_owned() }),
        Sniffed::Kind(kind @ (DocumentKind::Text | DocumentKind::Markdown)) => plain::read(name, kind, bytes),
        Sniffed::Kind(kind) => guarded(name, kind, bytes, limits),
        Sniffed::Archive => {
            // The parser also runs when an archive is opened to find the kind of the document.
            guarded(name, DocumentKind::Epub, bytes, limits)
        }
    }
}

/// Parses on a separate thread.
fn guarded(name: &str, kind: DocumentKind, bytes: Vec<u8>, limits: &Arc<Limits>) -> Result<Document, DocumentError> {
    let (owned, shared) = (name.to_owned(), Arc::clone(limits));
    let parsed = guard::run(limits.time, move || match kind {
        DocumentKind::Html => html::read(&owned, bytes, &shared),
        DocumentKind::Pdf => pdf::read(&owned, bytes, &shared),
        _ => match archive::kind_of(&owned, &bytes)? {
            Some(DocumentKind::Epub) => epub::read(&owned, &bytes, &shared),
            Some(_) => docx::read(&owned, &bytes, &shared),
            None => Err(DocumentError::Binary { name: owned }),
        },
    });
    match parsed {
        Ok(document) => document,
        Err(Fault::TimedOut) => Err(DocumentError::TimedOut {
            name: name.to_owned(),
            limit: limits.time,
        }),
        Err(Fault::Panicked) => Err(DocumentError::damaged(name, kind, "its parser gives up")),
        Err(Fault::NoThread(reason)) => Err(DocumentError::Unreadable {
            name: name.to_owned(),
            reason,
        }),
    }
}
