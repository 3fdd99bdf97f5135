//! Decodes bytes to text.

use encoding_rs::{Encoding, UTF_8, UTF_16BE, UTF_16LE};

use crate::DocumentError;

/// The byte order mark of UTF-8.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// Bytes at the start of a web page in which it may name its encoding.
const META_BYTES: usize = 4096;

/// Bytes examined for UTF-16 without a byte order mark.
const LOOKED_AT_BYTES: usize = 512;

/// Text in UTF-8, or in UTF-16.
pub(crate) fn decode(name: &str, mut bytes: Vec<u8>) -> Result<String, DocumentError> {
    let wrong = |at| DocumentError::NotUtf8 {
        name: name.to_owned(),
        at,
    };
    if let Some(encoding) = wide(&bytes) {
        let (text, _, is_wrong) = encoding.decode(&bytes);
        return if is_wrong { Err(wrong(0)) } else { Ok(text.into_owned()) };
    }
    if bytes.starts_with(MARK) {
        bytes.drain(..MARK.len());
    }
    String::from_utf8(bytes).map_err(|error| wrong(error.utf8_error().valid_up_to()))
}

/// A web page or a part of a book: in its declared encoding, otherwise UTF-8, otherwise the browsers' default.
pub(crate) fn decode_markup(bytes: Vec<u8>) -> String {
    let bytes = match String::from_utf8(bytes) {
        Ok(text) if wide(text.as_bytes()).is_none() => return without_mark(text),
        Ok(text) => text.into_bytes(),
        Err(error) => error.into_bytes(),
    };
    decode_bytes(&bytes)
}

fn without_mark(mut text: String) -> String {
    if text.starts_with('\u{feff}') {
        text.drain(..MARK.len());
    }
    text
}

fn decode_bytes(bytes: &[u8]) -> String {
    if let Some(encoding) = wide(bytes) {
        return encoding.decode(bytes).0.into_owned();
    }
    let encoding = named(&bytes[..bytes.len().min(META_BYTES)]).unwrap_or(encoding_rs::WINDOWS_1252);
    encoding.decode(bytes).0.into_owned()
}

/// UTF-16 with a byte order mark, or recognised by content: every other byte of Latin text is zero.
pub(crate) fn wide(bytes: &[u8]) -> Option<&'static Encoding> {
    if let Some((encoding, _)) = Encoding::for_bom(bytes) {
        return Some(encoding).filter(|encoding| *encoding != UTF_8);
    }
    let start = &bytes[..bytes.len().min(LOOKED_AT_BYTES) & !1];
    let zeros = |first: usize| start.iter().skip(first).step_by(2).filter(|byte| **byte == 0).count();
    let (even, odd) = (zeros(0), zeros(1));
    let most = |many: usize, few: usize| few == 0 && many * 10 >= start.len() * 4 && start.len() >= 8;
    match (most(odd, even), most(even, odd)) {
        (true, _) => Some(UTF_16LE),
        (_, true) => Some(UTF_16BE),
        _ => None,
    }
}

/// The encoding declared at the start of a page: `charset=…` or `encoding="…"`.
fn named(start: &[u8]) -> Option<&'static Encoding> {
    let start: String = start.iter().map(|byte| char::from(byte.to_ascii_lowercase())).collect();
    let value = |key: &str| {
        let (_, behind) = start.split_once(key)?;
        let behind = behind.trim_start_matches([' ', '"', '\'']);
        let end = behind.find(|c: char| !c.is_ascii_alphanumeric() && !"-_:".contains(c))?;
        Encoding::for_label(&behind.as_bytes()[..end])
    };
    let found = value("charset=").or_else(|| value("encoding="))?;
    // A page that declares UTF-16 in single bytes is not in UTF-16.
    Some(if found == UTF_16LE || found == UTF_16BE {
        UTF_8
    } else {
        found
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utf_16_is_read_where_it_says_so() {
        let wide: Vec<u8> = "\u{feff}Größe".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!(decode("a", wide).unwrap(), "Größe");
        let wide: Vec<u8> = "\u{feff}Größe".encode_utf16().flat_map(u16::to_be_bytes).collect();
        assert_eq!(decode("a", wide).unwrap(), "Größe");
        let wide: Vec<u8> = "Text of it".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!(decode("a", wide).unwrap(), "Text of it");
        assert_eq!(decode("a", "\u{feff}x".into()).unwrap(), "x");
    }

    #[test]
    fn other_bytes_are_refused_with_their_place() {
        let error = decode("a.txt", b"Gr\xf6\xdfe".to_vec()).unwrap_err();
        assert!(
            error.to_string().starts_with("a.txt: not UTF-8 text (byte 2 is wrong)"),
            "{error}"
        );
    }

    #[test]
    fn a_page_is_read_in_the_encoding_that_it_names() {
        let page = b"<html><head><meta charset=\"iso-8859-2\"></head>\xb9</html>";
        assert!(decode_markup(page.to_vec()).contains('š'));
        let page = b"<?xml version='1.0' encoding='koi8-r'?><p>\xc1</p>";
        assert!(decode_markup(page.to_vec()).contains('а'));
        assert!(decode_markup(b"caf\xe9".to_vec()).contains("café"));
    }
}
