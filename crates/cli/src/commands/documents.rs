//! Reads the documents of the command line, and lists the skipped files.

use std::path::Path;

use riffle_documents::{Collection, Document, LeftOut, Limits};

use crate::failure::Failure;
use crate::{console, shown};

/// Limit on the named files that a folder skipped; the others are counted.
const NAMED_FAILURES: usize = 5;

/// Reads files and folders within the limits of every command and within the user's memory limit.
pub(crate) fn read_documents(paths: &[impl AsRef<Path>], memory_bytes: Option<u64>) -> Result<Collection, Failure> {
    let limits = Limits {
        memory_bytes,
        ..Limits::default()
    };
    Ok(riffle_documents::read(paths, &limits)?)
}

/// Lists the skipped files of folders, and the lost parts of documents.
pub(crate) fn note_documents(documents: &[Document], left_out: &LeftOut) {
    if left_out.count() > 0 {
        let failures = left_out.failures.len();
        console::note(format!(
            "left out of folders: {} without text, {} empty, {failures} that cannot be read",
            left_out.binary, left_out.empty
        ));
        left_out.failures.iter().take(NAMED_FAILURES).for_each(console::note);
    }
    for document in documents {
        for warning in &document.warnings {
            console::note(format!("{}: {warning}", shown::name(&document.name)));
        }
    }
}
