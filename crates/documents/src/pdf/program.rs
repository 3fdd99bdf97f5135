//! Embedded font programs: their letters for glyphs that the PDF does not map.

use std::collections::HashMap;

use ttf_parser::{Face, GlyphId, cff};

use super::encoding::text_of;
use super::file::File;
use super::object::{Dict, Object};
use super::xref::positions;

/// Bytes of a Type 1 program that may contain its encoding.
const CLEAR_BYTES: usize = 64 << 10;

/// Last code looked up in a TrueType program: two planes of Unicode and the ideographs of the third.
const LAST_CODE: u32 = 0x2_fa20;

/// Maximum number of code tables of one TrueType program.
const SUBTABLES: usize = 4;

/// Maximum number of glyphs whose names are looked up; each name costs a walk over earlier ones.
const NAMES: u16 = 2048;

/// Texts of codes and glyphs from a font's program.
#[derive(Debug, Default)]
pub(super) struct Program {
    of_code: HashMap<u8, String>,
    of_glyph: HashMap<u16, String>,
    of_name: HashMap<String, String>,
}

impl Program {
    /// Reads the program of a font's descriptor.
    pub(super) fn read(file: &File, font: &Dict) -> Self {
        let descriptor = file.get_dict(font, "FontDescriptor").unwrap_or_default();
        let bytes = |key: &str| match file.get(&descriptor, key) {
            Some(Object::Stream(stream)) => file.data(&stream).ok(),
            _ => None,
        };
        let mut program = Self::default();
        if let Some(bytes) = bytes("FontFile") {
            program.read_type1(&bytes[..bytes.len().min(CLEAR_BYTES)]);
        } else if let Some(bytes) = bytes("FontFile2") {
            program.read_face(&bytes);
        } else if let Some(bytes) = bytes("FontFile3") {
            match Face::parse(&bytes, 0) {
                Ok(_) => program.read_face(&bytes),
                Err(_) => program.read_cff(&bytes),
            }
        }
        program
    }

    /// The text of a code by the program's own encoding.
    pub(super) fn text_of_code(&self, code: u8) -> Option<String> {
        self.of_code.get(&code).cloned()
    }

    pub(super) fn text_of_glyph(&self, glyph: u16) -> Option<String> {
        self.of_glyph.get(&glyph).cloned()
    }

    /// The text of a glyph whose name gives none.
    pub(super) fn text_of_name(&self, name: &str) -> Option<String> {
        self.of_name.get(name).cloned()
    }

    /// The encoding at the start of a Type 1 program: `dup 65 /A put`.
    fn read_type1(&mut self, bytes: &[u8]) {
        let Some(start) = positions(bytes, b"/Encoding").first().copied() else {
            return;
        };
        let end = positions(&bytes[start..], b"eexec")
            .first()
            .map_or(bytes.len(), |end| start + end);
        let text = String::from_utf8_lossy(&bytes[start..end]);
        let mut words = text.split_ascii_whitespace();
        while let Some(word) = words.next() {
            if word == "def" && !self.of_code.is_empty() {
                break;
            }
            if word != "dup" {
                continue;
            }
            let code = words.next().and_then(|code| code.parse::<u8>().ok());
            let name = words.next().and_then(|name| name.strip_prefix('/'));
            if let (Some(code), Some(text)) = (code, name.and_then(text_of)) {
                self.of_code.insert(code, text);
            }
        }
    }

    fn read_cff(&mut self, bytes: &[u8]) {
        let Some(table) = cff::Table::parse(bytes) else { return };
        self.read_names(table.number_of_glyphs(), &|glyph| table.glyph_name(glyph));
        for code in 0..=255u8 {
            let name = table.glyph_index(code).and_then(|glyph| table.glyph_name(glyph));
            if let Some(text) = name.and_then(text_of) {
                self.of_code.insert(code, text);
            }
        }
    }

    fn read_names<'a>(&mut self, glyphs: u16, name: &dyn Fn(GlyphId) -> Option<&'a str>) {
        for glyph in 0..glyphs.min(NAMES) {
            if let Some(text) = name(GlyphId(glyph)).and_then(text_of) {
                self.of_glyph.entry(glyph).or_insert(text);
            }
        }
    }

    fn read_face(&mut self, bytes: &[u8]) {
        let Ok(face) = Face::parse(bytes, 0) else { return };
        let subtables = face.tables().cmap.into_iter().flat_map(|cmap| cmap.subtables);
        let mut glyphs_of_codes = HashMap::new();
        for subtable in subtables.into_iter().take(SUBTABLES) {
            let is_unicode = subtable.is_unicode();
            // The ranges of a table are not trusted: each code is looked up.
            for code in (0..LAST_CODE).filter(|code| is_unicode || *code < 0x100 || *code >> 8 == 0xf0) {
                let Some(GlyphId(glyph)) = subtable.glyph_index(code) else {
                    continue;
                };
                let c = char::from_u32(code).filter(|c| is_unicode && !('\u{e000}'..='\u{f8ff}').contains(c));
                match c {
                    Some(c) => {
                        // The plain letter takes precedence over its compatible forms.
                        self.of_glyph.entry(glyph).or_insert_with(|| c.to_string());
                    }
                    None => {
                        // Symbol fonts have their codes at U+F000.
                        glyphs_of_codes.entry((code & 0xff) as u8).or_insert(glyph);
                    }
                }
            }
        }
        if let Some(table) = face.tables().cff {
            self.read_names(table.number_of_glyphs(), &|glyph| table.glyph_name(glyph));
        }
        self.read_names(face.number_of_glyphs(), &|glyph| face.glyph_name(glyph));
        for glyph in 0..face.number_of_glyphs().min(NAMES) {
            if let (Some(name), Some(text)) = (face.glyph_name(GlyphId(glyph)), self.of_glyph.get(&glyph)) {
                self.of_name.insert(name.to_owned(), text.clone());
            }
        }
        for (code, glyph) in glyphs_of_codes {
            if let Some(text) = self.of_glyph.get(&glyph) {
                self.of_code.insert(code, text.clone());
            }
        }
    }
}
