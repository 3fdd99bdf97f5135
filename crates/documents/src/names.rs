//! Names of documents: short, and the same wherever the files lie.

use std::collections::HashMap;
use std::path::Path;

use crate::Document;

/// Gives the documents of `path`, which a user named, their short names: a file its file name, a file of a folder the folder's name and
/// the path in it. Prompts hold these names, so that a document is the same text from whatever folder it is named.
pub(crate) fn shorten(documents: &mut [Document], path: &Path) {
    for document in documents {
        let typed = Path::new(&document.name);
        let above = match path.file_name() {
            Some(_) => path.parent().unwrap_or(path),
            // Such as `.` and `..`: they have no name of their own.
            None => path,
        };
        if let Ok(short) = typed.strip_prefix(above)
            && short.file_name().is_some()
        {
            document.name = short.display().to_string();
        }
    }
}

/// Gives documents that have a name in common their paths back. `typed` holds the paths of all documents.
pub(crate) fn tell_apart(documents: &mut [Document], typed: Vec<String>) {
    let mut counts: HashMap<String, usize> = HashMap::new();
    for document in documents.iter() {
        *counts.entry(document.name.clone()).or_default() += 1;
    }
    for (document, typed) in documents.iter_mut().zip(typed) {
        if counts.get(&document.name).is_some_and(|count| *count > 1) {
            document.name = typed;
        }
    }
}
