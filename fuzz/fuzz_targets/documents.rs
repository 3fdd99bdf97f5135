//! PDF, EPUB, DOCX, HTML and Markdown files: each is a text or refused in one line, in time and within its limits.

#![no_main]

use libfuzzer_sys::fuzz_target;
use riffle_fuzz::{folder, read_document, without_panic};

fuzz_target!(|input: &[u8]| without_panic(|| {
    read_document(&folder(), input);
}));
