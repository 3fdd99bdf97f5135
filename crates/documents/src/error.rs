//! Errors of reading documents.

use std::time::Duration;

use crate::DocumentKind;

/// The reason a file did not become a text: one line with the file's name and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DocumentError {
    /// The file could not be opened or read.
    #[error("{name}: {reason}")]
    Unreadable {
        /// The file.
        name: String,
        /// The system's reason.
        reason: String,
    },
    /// The file exceeds the size limit.
    #[error("{name}: more than {limit_bytes} bytes, the most that is read of one file; split it")]
    TooLarge {
        /// The file.
        name: String,
        /// [`Limits::file_bytes`](crate::Limits::file_bytes).
        limit_bytes: u64,
    },
    /// The unpacked file is larger than the limit.
    #[error(
        "{name}: holds more than {limit_bytes} bytes when it is unpacked, which no document of its kind needs; do not trust it"
    )]
    TooMuchInside {
        /// The file.
        name: String,
        /// [`Limits::expanded_bytes`](crate::Limits::expanded_bytes).
        limit_bytes: u64,
    },
    /// Reading the file takes more work than any document of its kind. An example is nested forms that draw one another
    /// ten times each.
    #[error("{name}: reading it takes more work than any document of its kind; do not trust it")]
    TooMuchWork {
        /// The file.
        name: String,
    },
    /// Reading the file needs more memory than documents may use.
    #[error(
        "{name}: reading it takes more memory than the {memory_bytes} bytes left for documents; allow more, or split the file"
    )]
    TooMuchMemory {
        /// The file.
        name: String,
        /// Remaining bytes of [`Limits::memory_bytes`](crate::Limits::memory_bytes).
        memory_bytes: u64,
    },
    /// The text of all documents together exceeds the limit.
    #[error("more than {limit_bytes} bytes of text in all, from {name} on; give fewer files")]
    TooMuchText {
        /// The first file beyond the limit.
        name: String,
        /// [`Limits::text_bytes`](crate::Limits::text_bytes).
        limit_bytes: u64,
    },
    /// A folder or an archive exceeds the limit on files.
    #[error("{name}: more than {limit} files; name the folders or files that matter")]
    TooManyFiles {
        /// The folder or the archive.
        name: String,
        /// [`Limits::files`](crate::Limits::files).
        limit: usize,
    },
    /// Bytes that are not text in a supported encoding.
    #[error("{name}: not UTF-8 text (byte {at} is wrong): convert it first, e.g. with iconv -t UTF-8")]
    NotUtf8 {
        /// The file.
        name: String,
        /// The first invalid byte.
        at: usize,
    },
    /// Bytes that are not text and not a supported kind.
    #[error(
        "{name}: this is no text and no document that riffle reads; give text, Markdown, HTML, PDF, EPUB, DOCX or a folder"
    )]
    Binary {
        /// The file.
        name: String,
    },
    /// A document of an unsupported kind.
    #[error("{name}: this is {kind}, which riffle does not read; save it as {save_as}, then try again")]
    OtherKind {
        /// The file.
        name: String,
        /// Kind of the file, such as `a spreadsheet`.
        kind: &'static str,
        /// A supported kind for saving the document.
        save_as: &'static str,
    },
    /// The file needs a password.
    #[error("{name}: this {kind} file is encrypted; remove the password with the program that set it, then try again")]
    Encrypted {
        /// The file.
        name: String,
        /// Kind of the file.
        kind: DocumentKind,
    },
    /// An Office file from before 2007, or an encrypted one: both have the same outer format.
    #[error("{name}: an old or an encrypted Office file; save it as .docx without a password, then try again")]
    OldOffice {
        /// The file.
        name: String,
    },
    /// The pages of the file are pictures.
    #[error(
        "{name}: its {pages} pages hold no text, only pictures of it perhaps; make it searchable first, e.g. with ocrmypdf"
    )]
    NoText {
        /// The file.
        name: String,
        /// Pages of the file.
        pages: usize,
    },
    /// The file's content contradicts its kind.
    #[error("{name}: this {kind} file is damaged ({reason}); get it again, or save it as plain text")]
    Damaged {
        /// The file.
        name: String,
        /// Kind that the file claims to be.
        kind: DocumentKind,
        /// Reason for calling the file damaged.
        reason: String,
    },
    /// The parser took too long.
    #[error("{name}: not read within {} s; save it as plain text", limit.as_secs())]
    TimedOut {
        /// The file.
        name: String,
        /// [`Limits::time`](crate::Limits::time).
        limit: Duration,
    },
    /// The file holds no text.
    #[error("{name}: it holds no text; leave it out, or check that it is the right file")]
    Empty {
        /// The file.
        name: String,
    },
    /// A folder without a readable file.
    #[error(
        "{name}: no file in this folder can be read ({left_out} left out); give a folder with documents, check its .gitignore and .ignore, or name the files"
    )]
    EmptyFolder {
        /// The folder.
        name: String,
        /// Number of skipped files.
        left_out: usize,
    },
    /// No file was named.
    #[error("no document was given: name at least one file or folder")]
    NothingNamed,
}

impl DocumentError {
    /// A damaged file; only the first line of a long reason is kept.
    pub(crate) fn damaged(name: &str, kind: DocumentKind, reason: impl ToString) -> Self {
        let reason = reason.to_string();
        let line = reason.lines().next().unwrap_or_default().trim();
        let reason = match line.char_indices().nth(120) {
            Some((end, _)) => format!("{}…", &line[..end]),
            None if line.is_empty() => "its parser gives up".to_owned(),
            None => line.to_owned(),
        };
        Self::Damaged {
            name: name.to_owned(),
            kind,
            reason,
        }
    }
}
