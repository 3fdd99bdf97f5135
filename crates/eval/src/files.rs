//! Kinds of files that this crate writes atomically.

use std::fs;
use std::io::Write;
use std::path::Path;

use riffle_kv::{FileKind, OutputFile};

use crate::EvalError;

pub(crate) const LOGITS: FileKind = FileKind {
    name: "a file of riffle eval logits",
    // The header follows its length.
    matches: |begin| begin.get(8..).is_some_and(|head| head.starts_with(b"{\"logits\":")),
};

pub(crate) const RECORD: FileKind = FileKind {
    name: "a record of riffle eval or riffle bench",
    // Records without a schema begin with their name.
    matches: |begin| {
        let begins = begin.starts_with(b"{\n  \"schema\": ") || begin.starts_with(b"{\n  \"name\": \"");
        begins && holds(begin, b"\n  \"name\": \"") && holds(begin, b"\n  \"version\": \"")
    },
};

pub(crate) const SVG: FileKind = FileKind {
    name: "a picture of riffle eval",
    matches: |begin| begin.starts_with(b"<svg ") && holds(begin, b" class=\"picture\" "),
};

#[cfg(feature = "png")]
pub(crate) const PNG: FileKind = FileKind {
    name: "a PNG picture",
    matches: |begin| begin.starts_with(b"\x89PNG\r\n\x1a\n"),
};

pub(crate) const REPORT: FileKind = FileKind {
    name: "a page of riffle eval report",
    matches: |begin| begin.starts_with(b"<!DOCTYPE html>") && holds(begin, b"<title>Riffle: what was measured</title>"),
};

fn holds(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Writes a file atomically and creates its folders.
pub(crate) fn write_file(path: &Path, kind: FileKind, bytes: &[u8]) -> Result<(), EvalError> {
    make_folder(path)?;
    OutputFile::new(path, kind)?.write(|file| file.write_all(bytes))?;
    Ok(())
}

/// Checks before the work that [`write_file`] can write the file, and creates its folders.
pub(crate) fn check_file(path: &Path, kind: FileKind) -> Result<(), EvalError> {
    make_folder(path)?;
    OutputFile::check(path, kind)?;
    Ok(())
}

fn make_folder(path: &Path) -> Result<(), EvalError> {
    match path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        Some(folder) => fs::create_dir_all(folder).map_err(|error| EvalError::file(folder, &error)),
        None => Ok(()),
    }
}
