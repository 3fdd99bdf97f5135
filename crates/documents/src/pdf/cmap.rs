//! CMaps: map the bytes of a string to codes, codes to glyphs of a collection, and codes to text.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use hayro_cmap::{BfString, CMap as Collection, CMapName, load_embedded};

use super::object::{ContentToken, Object, Parser};

/// Maximum number of ranges of one CMap; a valid one has at most one per two-byte code.
const RANGES: usize = 1 << 17;

/// Longest text of one code in bytes.
const TEXT_BYTES: usize = 512;

/// A range of codes of one length.
#[derive(Debug, Clone)]
struct Codes<T> {
    first: u32,
    last: u32,
    value: T,
}

/// A CMap of the file.
#[derive(Debug, Default)]
pub(super) struct CMap {
    /// Lengths of codes, and the first and the last code of each range.
    spaces: Vec<(usize, u32, u32)>,
    texts: Vec<Codes<Vec<u16>>>,
    glyphs: Vec<Codes<u32>>,
    /// Units of the longest text.
    longest_text: usize,
    /// The predefined CMap that this one extends.
    pub(super) base: Option<String>,
}

impl CMap {
    /// Reads a CMap as ranges, independent of their length.
    pub(super) fn read(bytes: &[u8]) -> Self {
        let mut map = Self::default();
        let mut parser = Parser::of_content(bytes);
        let mut operands: Vec<Object> = Vec::new();
        while let Some(part) = parser.part() {
            match part {
                ContentToken::Operand(object) if operands.len() < RANGES => operands.push(object),
                ContentToken::Operand(_) => {}
                ContentToken::Operator(word) => {
                    map.take(word, &operands);
                    operands.clear();
                }
            }
        }
        map.texts.sort_by_key(|codes| codes.first);
        map.glyphs.sort_by_key(|codes| codes.first);
        map
    }

    fn take(&mut self, word: &[u8], operands: &[Object]) {
        match word {
            b"usecmap" => self.base = operands.last().and_then(Object::name).map(str::to_owned),
            b"endcodespacerange" => {
                for pair in operands.chunks_exact(2) {
                    if let (Some(first), Some(last)) = (pair[0].text(), pair[1].text())
                        && self.spaces.len() < 256
                        && !first.is_empty()
                    {
                        self.spaces.push((first.len().min(4), code(first), code(last)));
                    }
                }
            }
            b"endbfchar" => {
                for pair in operands.chunks_exact(2) {
                    self.add_text(&pair[0], &pair[0], &pair[1]);
                }
            }
            b"endbfrange" => {
                for range in operands.chunks_exact(3) {
                    self.add_text(&range[0], &range[1], &range[2]);
                }
            }
            b"endcidchar" => {
                for pair in operands.chunks_exact(2) {
                    self.add_glyphs(&pair[0], &pair[0], &pair[1]);
                }
            }
            b"endcidrange" => {
                for range in operands.chunks_exact(3) {
                    self.add_glyphs(&range[0], &range[1], &range[2]);
                }
            }
            _ => {}
        }
    }

    fn add_text(&mut self, first: &Object, last: &Object, to: &Object) {
        let (Some(first), Some(last)) = (first.text().map(code), last.text().map(code)) else {
            return;
        };
        let mut add = |first, last, units: Vec<u16>| {
            self.longest_text = self.longest_text.max(units.len());
            if self.texts.len() < RANGES && units.len() * 2 <= TEXT_BYTES {
                self.texts.push(Codes {
                    first,
                    last,
                    value: units,
                });
            }
        };
        match to {
            Object::Text(text) => add(first, last, units(text)),
            Object::Name(name) => {
                let text = super::encoding::text_of(name).unwrap_or_default();
                add(first, first, text.encode_utf16().collect());
            }
            Object::Array(texts) => {
                for (code, text) in (first..=last).zip(texts) {
                    add(code, code, text.text().map(units).unwrap_or_default());
                }
            }
            _ => {}
        }
    }

    fn add_glyphs(&mut self, first: &Object, last: &Object, to: &Object) {
        if let (Some(first), Some(last), Some(value)) = (first.text(), last.text(), to.index())
            && self.glyphs.len() < RANGES
        {
            self.glyphs.push(Codes {
                first: code(first),
                last: code(last),
                value: value as u32,
            });
        }
    }

    /// The text of a code; empty if the file maps it to no text. `None` if it is not mapped.
    pub(super) fn text(&self, code: u32) -> Option<String> {
        let codes = find(&self.texts, code)?;
        let mut units = codes.value.clone();
        if let Some(last) = units.last_mut() {
            *last = last.wrapping_add((code - codes.first) as u16);
        }
        // Ghostscript swaps the bytes of ligatures.
        if units.len() > 1 && units.iter().all(|unit| unit & 0xff == 0) {
            let letters: Vec<char> = units.iter().map(|unit| char::from((unit >> 8) as u8)).collect();
            return letters
                .iter()
                .all(char::is_ascii_lowercase)
                .then(|| letters.into_iter().collect());
        }
        let text = String::from_utf16_lossy(&units);
        let is_known = text.chars().any(|c| c != '\u{fffd}' && c != '\0');
        is_known.then_some(text)
    }

    /// The glyph of a code.
    pub(super) fn glyph(&self, code: u32) -> Option<u32> {
        find(&self.glyphs, code).map(|codes| codes.value.wrapping_add(code - codes.first))
    }

    /// True if one code maps to more than `most` units of UTF-16.
    pub(super) fn has_words(&self, most: usize) -> bool {
        self.longest_text > most
    }

    pub(super) fn has_texts(&self) -> bool {
        !self.texts.is_empty()
    }

    /// The length and the number of the first code in the bytes.
    pub(super) fn code(&self, bytes: &[u8]) -> Option<(usize, u32)> {
        (1..=bytes.len().min(4)).find_map(|length| {
            let code = code(&bytes[..length]);
            let is_here = |space: &(usize, u32, u32)| space.0 == length && space.1 <= code && code <= space.2;
            self.spaces.iter().any(is_here).then_some((length, code))
        })
    }
}

/// The last range that contains the code.
fn find<T>(ranges: &[Codes<T>], code: u32) -> Option<&Codes<T>> {
    let before = ranges.partition_point(|codes| codes.first <= code);
    // Ranges may overlap. To bound the time, only the eight closest ranges that start at or before the code are tried.
    ranges[..before].iter().rev().take(8).find(|codes| code <= codes.last)
}

/// The number in the bytes, from the last four.
pub(super) fn code(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0u32, |code, byte| code << 8 | u32::from(*byte))
}

fn units(text: &[u8]) -> Vec<u16> {
    match text {
        [one] => vec![u16::from(*one)],
        text => text
            .chunks_exact(2)
            .map(|unit| u16::from_be_bytes([unit[0], unit[1]]))
            .collect(),
    }
}

/// Loaded predefined CMaps, by name.
#[derive(Debug, Default)]
pub(super) struct Predefined {
    loaded: RefCell<HashMap<String, Option<Rc<Collection>>>>,
}

impl Predefined {
    pub(super) fn get(&self, name: &str) -> Option<Rc<Collection>> {
        if let Some(known) = self.loaded.borrow().get(name) {
            return known.clone();
        }
        let loaded = load_embedded(CMapName::from_bytes(name.as_bytes()));
        let map = loaded
            .and_then(|bytes| Collection::parse(bytes, load_embedded))
            .map(Rc::new);
        // Unknown names are untrusted, and may be many.
        if map.is_some() {
            self.loaded.borrow_mut().insert(name.to_owned(), map.clone());
        }
        map
    }
}

/// The text of a glyph in one of Adobe's maps from glyphs to Unicode.
pub(super) fn text_in(map: &Collection, glyph: u32) -> Option<String> {
    match map.lookup_bf_string(glyph)? {
        BfString::Char(c) => Some(c.to_string()),
        BfString::String(text) => Some(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_arrays_and_pairs_of_units_become_text() {
        let map = CMap::read(
            b"1 begincodespacerange <00> <7f> <8000> <ffff> endcodespacerange \
            2 beginbfrange <0000> <FFFFFFFF> <0041> <8001> <8002> [<D83DDE00> <00660069>] endbfrange",
        );
        assert_eq!(map.text(2).as_deref(), Some("C"));
        assert_eq!(map.text(0x8001).as_deref(), Some("😀"));
        assert_eq!(map.text(0x8002).as_deref(), Some("fi"));
        assert_eq!(map.code(b"A\x80"), Some((1, 0x41)));
        assert_eq!(map.code(b"\x80\x01"), Some((2, 0x8001)));
    }

    #[test]
    fn predefined_maps_know_their_collections() {
        let predefined = Predefined::default();
        let map = predefined.get("GBK-EUC-H").expect("a map");
        let glyph = map.lookup_cid_code(0xc4e3, 2).expect("a glyph");
        let texts = predefined.get("Adobe-GB1-UCS2").expect("a map");
        assert_eq!(text_in(&texts, glyph).as_deref(), Some("你"));
    }
}
