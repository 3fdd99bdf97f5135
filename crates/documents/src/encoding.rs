//! From bytes to text.

use encoding_rs::{Encoding, UTF_8, UTF_16BE, UTF_16LE};

use crate::DocumentError;

/// Bytes at the beginning of a web page in which it may name its encoding.
const META_BYTES: usize = 4096;

/// Text in UTF-8, or in UTF-16 that says so by its first two bytes.
pub(crate) fn decode(name: &str, bytes: &[u8]) -> Result<String, DocumentError> {
    if let Some((encoding, _)) = Encoding::for_bom(bytes)
        && encoding != UTF_8
    {
        let (text, _, is_wrong) = encoding.decode(bytes);
        return if !is_wrong {
            Ok(text.into_owned())
        } else {
            Err(DocumentError::NotUtf8 {
                name: name.to_owned(),
                at: 0,
            })
        };
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(error) => Err(DocumentError::NotUtf8 {
            name: name.to_owned(),
            at: error.valid_up_to(),
        }),
    }
}

/// A web page or a part of a book: in the encoding that it names, else UTF-8, else what browsers take.
pub(crate) fn decode_markup(bytes: &[u8]) -> String {
    if let Some((encoding, _)) = Encoding::for_bom(bytes) {
        return encoding.decode(bytes).0.into_owned();
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        return text.to_owned();
    }
    let encoding = named(&bytes[..bytes.len().min(META_BYTES)]).unwrap_or(encoding_rs::WINDOWS_1252);
    encoding.decode(bytes).0.into_owned()
}

/// The encoding that the beginning of a page names: `charset=…` or `encoding="…"`.
fn named(start: &[u8]) -> Option<&'static Encoding> {
    let start: String = start.iter().map(|byte| char::from(byte.to_ascii_lowercase())).collect();
    let value = |key: &str| {
        let (_, behind) = start.split_once(key)?;
        let behind = behind.trim_start_matches([' ', '"', '\'']);
        let end = behind.find(|c: char| !c.is_ascii_alphanumeric() && !"-_:".contains(c))?;
        Encoding::for_label(&behind.as_bytes()[..end])
    };
    let found = value("charset=").or_else(|| value("encoding="))?;
    // A page that names UTF-16 in single bytes is not in UTF-16.
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
        assert_eq!(decode("a", &wide).unwrap(), "Größe");
        let wide: Vec<u8> = "\u{feff}Größe".encode_utf16().flat_map(u16::to_be_bytes).collect();
        assert_eq!(decode("a", &wide).unwrap(), "Größe");
        assert_eq!(decode("a", "\u{feff}x".as_bytes()).unwrap(), "x");
    }

    #[test]
    fn other_bytes_are_refused_with_their_place() {
        let error = decode("a.txt", b"Gr\xf6\xdfe").unwrap_err();
        assert!(
            error.to_string().starts_with("a.txt: not UTF-8 text (byte 2 is wrong)"),
            "{error}"
        );
    }

    #[test]
    fn a_page_is_read_in_the_encoding_that_it_names() {
        let page = b"<html><head><meta charset=\"iso-8859-2\"></head>\xb9</html>";
        assert!(decode_markup(page).contains('š'));
        let page = b"<?xml version='1.0' encoding='koi8-r'?><p>\xc1</p>";
        assert!(decode_markup(page).contains('а'));
        assert!(decode_markup(b"caf\xe9").contains("café"));
    }
}
