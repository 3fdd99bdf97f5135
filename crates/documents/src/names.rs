//! Names of documents: short, and independent of the files' location.

use std::collections::HashMap;
use std::path::Path;

use crate::Document;

/// Gives the documents of `path`, as given by the user, short names: for a file its file name, for a file of a folder
/// the folder's name and the path in it. Prompts contain these names, so a document has the same text from any
/// working folder.
pub(crate) fn shorten(documents: &mut [Document], path: &Path) {
    for document in documents {
        let typed = Path::new(&document.name);
        let above = match path.file_name() {
            Some(_) => path.parent().unwrap_or(path),
            // Paths without a name, such as `.` and `..`.
            None => path,
        };
        if let Ok(short) = typed.strip_prefix(above)
            && short.file_name().is_some()
        {
            document.name = with_slashes(short);
        }
    }
}

/// A relative path with `/` between its parts on every system, so that prompts and saved answers are the same
/// everywhere.
fn with_slashes(path: &Path) -> String {
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    parts.join("/")
}

/// Restores the paths of documents with equal names. `typed` has the paths of all documents.
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
