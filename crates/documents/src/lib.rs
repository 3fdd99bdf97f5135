//! Turns files into texts for a language model, with the place of each part of a text.
//!
//! Plain text, Markdown, HTML, PDF, EPUB and DOCX files, and folders: source trees with their ignore rules. A file's
//! kind follows from its content first and from its name second. Each document comes with [`DocumentPlace`]s, which
//! map ranges of its text to places that a person can find: a page, a chapter, a heading, a line.
//!
//! Files are untrusted. Everything is read within [`Limits`]: bytes of a file, bytes after decompression, numbers of
//! files and parts, depth of folders, time. Third-party parsers run on a separate thread. If one panics or does not
//! end, the result is a [`DocumentError`], one line with the file's name and the remedy.
//!
//! ```
//! use riffle_documents::{Limits, read};
//!
//! # let folder = std::env::temp_dir().join(format!("riffle-documents-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! let path = folder.join("notes.md");
//! std::fs::write(&path, "# Ships\n\nThe *Pequod* sails from Nantucket.\n")?;
//!
//! let collection = read(&[&path], &Limits::default())?;
//! let document = &collection.documents[0];
//! let at = document.text.find("Nantucket").unwrap();
//! assert_eq!(document.describe(&(at..at + 9)), "line 3, under \"Ships\"");
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod archive;
mod builder;
mod collection;
mod document;
mod docx;
mod encoding;
mod epub;
mod error;
mod folder;
mod framing;
mod guard;
mod html;
mod kind;
mod limits;
mod names;
mod numerals;
mod pdf;
mod plain;
mod section;
mod xml;

pub use collection::{Collection, LeftOut, read, read_bytes};
pub use document::{Document, DocumentPlace, PlaceKind};
pub use error::DocumentError;
pub use framing::framed;
pub use kind::DocumentKind;
pub use limits::Limits;
pub use section::{PlaceError, Section};
