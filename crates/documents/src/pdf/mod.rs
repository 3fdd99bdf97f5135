//! PDF files: letters placed on pages become lines, columns, paragraphs and chapters.

mod annotations;
mod bidi;
mod cmap;
mod columns;
mod content;
mod crypt;
mod drawn;
mod encoding;
mod file;
mod filters;
mod font;
mod grid;
mod lines;
mod normal;
mod object;
mod outline;
mod pages;
mod paragraphs;
mod program;
mod reader;
mod rules;
mod running;
mod strings;
mod tables;
mod vertical;
mod xref;

pub(crate) use encoding::symbol;
pub(crate) use reader::read;
