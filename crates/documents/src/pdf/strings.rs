//! Strings of a document's outline, fields and notes.

use encoding_rs::{UTF_16BE, UTF_16LE};

/// Characters of PDFDocEncoding from 0x80 on that differ from Latin-1.
const DOC_ENCODING: [char; 32] = [
    '•', '†', '‡', '…', '—', '–', 'ƒ', '⁄', '‹', '›', '−', '‰', '„', '“', '”', '‘', '’', '‚', '™', 'ﬁ', 'ﬂ', 'Ł', 'Œ',
    'Š', 'Ÿ', 'Ž', 'ı', 'ł', 'œ', 'š', 'ž', '\u{fffd}',
];

/// A string in the encoding of its first bytes: UTF-16, UTF-8, or PDFDocEncoding.
pub(super) fn text_string(bytes: &[u8]) -> String {
    let decoded = match bytes {
        [0xfe, 0xff, text @ ..] => UTF_16BE.decode_without_bom_handling(text).0.into_owned(),
        [0xff, 0xfe, text @ ..] => UTF_16LE.decode_without_bom_handling(text).0.into_owned(),
        [0xef, 0xbb, 0xbf, text @ ..] => String::from_utf8_lossy(text).into_owned(),
        text => text.iter().map(|byte| of_doc_encoding(*byte)).collect(),
    };
    without_language(&decoded)
}

fn of_doc_encoding(byte: u8) -> char {
    match byte {
        0x80..=0x9f => DOC_ENCODING[usize::from(byte - 0x80)],
        0xa0 => '€',
        byte => char::from(byte),
    }
}

/// Text without language marks, which are between two escape characters.
fn without_language(text: &str) -> String {
    let parts = text.split('\u{1b}').step_by(2);
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_decoded_as_their_beginning_says() {
        assert_eq!(text_string(b"caf\xe9 \x84"), "café —");
        assert_eq!(text_string(b"\xfe\xff\0\x1b\0e\0n\0\x1b\x4f\x60"), "你");
        assert_eq!(text_string("\u{feff}ü".as_bytes()), "ü");
    }
}
