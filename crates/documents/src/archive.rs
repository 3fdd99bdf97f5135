//! Parts of ZIP archives, within limits.

use std::borrow::Cow;
use std::io::{Cursor, Read};

use zip::ZipArchive;
use zip::result::ZipError;

use crate::kind::{OtherKind, other_archive};
use crate::{DocumentError, DocumentKind, Limits};

/// Largest part in bytes: a text of 10,000 pages takes half of it.
const PART_BYTES: u64 = 96 << 20;

/// Largest page of a book in bytes.
const PAGE_BYTES: u64 = 32 << 20;

/// An archive whose parts can be read until their total exceeds the limit.
pub(crate) struct Archive<'a> {
    name: &'a str,
    kind: DocumentKind,
    limits: &'a Limits,
    zip: ZipArchive<Cursor<&'a [u8]>>,
    left_bytes: u64,
}

impl<'a> Archive<'a> {
    /// Opens the archive of a file that claims to be of `kind`.
    pub(crate) fn open(
        name: &'a str,
        kind: DocumentKind,
        bytes: &'a [u8],
        limits: &'a Limits,
    ) -> Result<Self, DocumentError> {
        let zip = ZipArchive::new(Cursor::new(bytes)).map_err(|error| DocumentError::damaged(name, kind, error))?;
        if zip.len() > limits.files {
            return Err(DocumentError::TooManyFiles {
                name: name.to_owned(),
                limit: limits.files,
            });
        }
        Ok(Self {
            name,
            kind,
            limits,
            zip,
            left_bytes: limits.expanded_bytes,
        })
    }

    /// True if there is a part of this name.
    pub(crate) fn has(&self, part: &str) -> bool {
        self.zip.index_for_name(part).is_some()
    }

    /// Names of all parts.
    pub(crate) fn names(&self) -> impl Iterator<Item = Cow<'_, str>> {
        self.zip.file_names().flatten()
    }

    /// A part's bytes; `None` if it does not exist.
    pub(crate) fn part(&mut self, part: &str) -> Result<Option<Vec<u8>>, DocumentError> {
        self.part_within(part, PART_BYTES)
    }

    /// A page's bytes, to be parsed as a tree; `None` if it does not exist.
    pub(crate) fn page(&mut self, part: &str) -> Result<Option<Vec<u8>>, DocumentError> {
        self.part_within(part, PAGE_BYTES)
    }

    fn part_within(&mut self, part: &str, most: u64) -> Result<Option<Vec<u8>>, DocumentError> {
        let Some(index) = self.zip.index_for_name(part) else {
            return Ok(None);
        };
        let (name, kind) = (self.name, self.kind);
        let damaged = |reason: String| DocumentError::damaged(name, kind, reason);
        let encrypted = self.encrypted();
        let file = match self.zip.by_index(index) {
            Ok(file) => file,
            Err(ZipError::InvalidPassword) => return Err(encrypted),
            Err(ZipError::UnsupportedArchive(why)) if why == ZipError::PASSWORD_REQUIRED => return Err(encrypted),
            Err(error) => return Err(damaged(error.to_string())),
        };
        let mut bytes = Vec::new();
        // The declared size is not trusted.
        let most = most.min(self.left_bytes);
        let read = file.take(most.saturating_add(1)).read_to_end(&mut bytes);
        read.map_err(|error| damaged(format!("{part}: {error}")))?;
        if bytes.len() as u64 > most {
            return Err(DocumentError::TooMuchInside {
                name: self.name.to_owned(),
                limit_bytes: self.limits.expanded_bytes.min(most),
            });
        }
        self.left_bytes -= bytes.len() as u64;
        Ok(Some(bytes))
    }

    /// A required part.
    pub(crate) fn needed(&mut self, part: &str) -> Result<Vec<u8>, DocumentError> {
        let bytes = self.part(part)?;
        bytes.ok_or_else(|| self.damaged(format!("{part} is missing")))
    }

    pub(crate) fn damaged(&self, reason: impl ToString) -> DocumentError {
        DocumentError::damaged(self.name, self.kind, reason)
    }

    pub(crate) fn encrypted(&self) -> DocumentError {
        DocumentError::Encrypted {
            name: self.name.to_owned(),
            kind: self.kind,
        }
    }
}

/// Kind of the document in an archive; `None` if riffle reads no archive of this kind.
pub(crate) fn kind_of(name: &str, bytes: &[u8]) -> Result<Option<DocumentKind>, DocumentError> {
    let by_name = match name.to_ascii_lowercase() {
        lower if lower.ends_with(".epub") => Some(DocumentKind::Epub),
        lower if lower.ends_with(".docx") => Some(DocumentKind::Docx),
        _ => None,
    };
    let Ok(zip) = ZipArchive::new(Cursor::new(bytes)) else {
        // The file name gives the kind of a damaged archive.
        return match by_name {
            Some(kind) => Err(DocumentError::damaged(
                name,
                kind,
                "no list of its parts at the end of the file",
            )),
            None => Ok(None),
        };
    };
    let has = |part: &str| zip.index_for_name(part).is_some();
    Ok(match () {
        () if has("META-INF/container.xml") => Some(DocumentKind::Epub),
        () if zip.file_names().flatten().any(|part| part.starts_with("word/document")) => Some(DocumentKind::Docx),
        () => match other_archive(has) {
            Some(OtherKind { name: kind, save_as }) => {
                return Err(DocumentError::OtherKind {
                    name: name.to_owned(),
                    kind,
                    save_as,
                });
            }
            None => by_name,
        },
    })
}
