//! Fonts: map the bytes of a string to letters and their widths.

use std::cell::{LazyCell, OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use hayro_cmap::CMap as Collection;

use super::cmap::{CMap, Predefined, text_in};
use super::encoding::{glyph_of, text_of, text_of_bitmap, width_of};
use super::file::File;
use super::object::{Dict, Object};
use super::program::Program;

/// Maximum number of letters of a ligature in a living script.
const LIGATURE: usize = 4;

/// A letter of a string.
#[derive(Debug, Clone)]
pub(super) struct Letter {
    /// Text of the letter; `None` if no part of the font gives it.
    pub(super) text: Option<Rc<str>>,
    /// Advance width of the letter, relative to the font size.
    pub(super) advance: f32,
    /// True for the single byte 32, which word spacing widens.
    pub(super) is_space_code: bool,
}

/// A font of a page.
#[derive(Debug)]
pub(super) struct Font {
    kind: FontKind,
    /// True if lines run from top to bottom.
    pub(super) is_vertical: bool,
}

#[derive(Debug)]
enum FontKind {
    /// A letter for each byte.
    Simple(Box<[Letter; 256]>),
    Composite(Box<Composite>),
}

#[derive(Debug)]
struct Composite {
    codes: Codes,
    to_unicode: Option<CMap>,
    /// Map from glyphs of one of Adobe's collections to text.
    collection: Option<Rc<Collection>>,
    /// The font program, read on first use, and the dictionary that refers to it.
    program: OnceCell<Program>,
    descendant: Dict,
    /// Map from the collection's glyphs to the font program's, two bytes each.
    glyph_map: Option<Rc<[u8]>>,
    widths: Widths,
    known: RefCell<HashMap<(usize, u32), Letter>>,
}

/// Maps bytes to codes and codes to glyphs.
#[derive(Debug)]
enum Codes {
    Identity,
    Predefined { map: Rc<Collection>, is_unicode: bool },
    Own { map: CMap, base: Option<Rc<Collection>> },
}

/// Widths of glyphs in thousandths.
#[derive(Debug, Default)]
struct Widths {
    default: f32,
    /// First and last glyph of each range.
    ranges: Vec<(u32, u32, f32)>,
}

impl Font {
    /// A replacement for a missing font.
    pub(super) fn missing(file: &File) -> Self {
        let encoding = Object::Name("WinAnsiEncoding".to_owned());
        let dict = Dict::from([("Encoding".to_owned(), encoding)]);
        Self::read(file, &dict, &Predefined::default())
    }

    /// A font by its dictionary.
    pub(super) fn read(file: &File, dict: &Dict, predefined: &Predefined) -> Self {
        if file.get_name(dict, "Subtype").as_deref() == Some("Type0") {
            Self::composite(file, dict, predefined)
        } else {
            Self {
                kind: FontKind::Simple(Box::new(simple(file, dict))),
                is_vertical: false,
            }
        }
    }

    fn composite(file: &File, dict: &Dict, predefined: &Predefined) -> Self {
        let descendants = file.get_array(dict, "DescendantFonts").unwrap_or_default();
        let descendant = descendants.first().map(|font| file.resolved(font));
        let descendant = descendant.as_ref().and_then(Object::dict).cloned().unwrap_or_default();
        let (codes, is_vertical) = codes(file, dict, predefined);
        let system = file.get_dict(&descendant, "CIDSystemInfo").unwrap_or_default();
        let ordering = file.get(&system, "Ordering");
        let ordering = ordering.as_ref().and_then(Object::text).unwrap_or_default();
        let ordering = String::from_utf8_lossy(ordering).into_owned();
        let glyph_map = match file.get(&descendant, "CIDToGIDMap") {
            Some(Object::Stream(stream)) => file.data(&stream).ok(),
            _ => None,
        };
        let composite = Composite {
            codes,
            to_unicode: to_unicode(file, dict),
            collection: predefined.get(&format!("Adobe-{ordering}-UCS2")),
            program: OnceCell::new(),
            glyph_map,
            widths: Widths::read(file, &descendant),
            descendant,
            known: RefCell::default(),
        };
        Self {
            kind: FontKind::Composite(Box::new(composite)),
            is_vertical,
        }
    }

    /// Calls `each` with every letter of a string.
    pub(super) fn letters(&self, file: &File, bytes: &[u8], each: &mut dyn FnMut(Letter)) {
        match &self.kind {
            FontKind::Simple(letters) => {
                for byte in bytes {
                    each(letters[usize::from(*byte)].clone());
                }
            }
            FontKind::Composite(font) => {
                let mut rest = bytes;
                while !rest.is_empty() {
                    let (length, code) = font.code(rest);
                    each(font.letter(file, (length, code), self.is_vertical));
                    rest = &rest[length.min(rest.len())..];
                }
            }
        }
    }
}

impl Composite {
    /// The length and the number of the first code in the bytes.
    fn code(&self, bytes: &[u8]) -> (usize, u32) {
        let of_length = |length: usize| {
            let length = length.min(bytes.len());
            (length, super::cmap::code(&bytes[..length]))
        };
        match &self.codes {
            Codes::Identity => of_length(2),
            Codes::Own { map, .. } => map.code(bytes).unwrap_or_else(|| of_length(2)),
            Codes::Predefined { map, is_unicode } => {
                let is_known = |length: &usize| map.lookup_cid_code(of_length(*length).1, *length as u8).is_some();
                let longest = bytes.len().min(4);
                of_length((1..=longest).find(is_known).unwrap_or(if *is_unicode { 2 } else { 1 }))
            }
        }
    }

    fn letter(&self, file: &File, (length, code): (usize, u32), is_vertical: bool) -> Letter {
        if let Some(letter) = self.known.borrow().get(&(length, code)) {
            return letter.clone();
        }
        let glyph = self.glyph(length, code);
        let letter = Letter {
            text: self.text(file, (length, code), glyph).map(Rc::from),
            advance: if is_vertical {
                1.0
            } else {
                self.widths.width(glyph) / 1000.0
            },
            is_space_code: length == 1 && code == 32,
        };
        self.known.borrow_mut().insert((length, code), letter.clone());
        letter
    }

    fn glyph(&self, length: usize, code: u32) -> u32 {
        let in_map = |map: &Collection| map.lookup_cid_code(code, length as u8);
        match &self.codes {
            Codes::Identity => code,
            Codes::Predefined { map, .. } => in_map(map).unwrap_or(0),
            Codes::Own { map, base } => {
                let own = map.glyph(code);
                own.or_else(|| base.as_deref().and_then(in_map)).unwrap_or(code)
            }
        }
    }

    fn text(&self, file: &File, (length, code): (usize, u32), glyph: u32) -> Option<String> {
        let told = self.to_unicode.as_ref().and_then(|map| map.text(code));
        // Some programs assign whole words to one letter; their texts for pairs are not trusted either.
        let has_words = self.to_unicode.as_ref().is_some_and(|map| map.has_words(LIGATURE));
        let most = if has_words { 1 } else { LIGATURE };
        let is_word = |text: &String| text.chars().count() > most;
        if told.is_some() && !told.as_ref().is_some_and(is_word) {
            return told;
        }
        self.text_without_map(file, (length, code), glyph).or(told)
    }

    /// The text of a glyph by the font's collection or program.
    fn text_without_map(&self, file: &File, (length, code): (usize, u32), glyph: u32) -> Option<String> {
        if let Codes::Predefined { is_unicode: true, .. } = self.codes {
            return match length {
                2 => char::from_u32(code).map(String::from),
                _ => String::from_utf16(&[(code >> 16) as u16, code as u16]).ok(),
            };
        }
        if let Some(text) = self.collection.as_ref().and_then(|map| text_in(map, glyph)) {
            return Some(text);
        }
        let glyph = match &self.glyph_map {
            Some(map) => {
                let at = glyph as usize * 2;
                map.get(at..at + 2).map(super::cmap::code)?
            }
            None => glyph,
        };
        let program = self.program.get_or_init(|| Program::read(file, &self.descendant));
        program.text_of_glyph(u16::try_from(glyph).ok()?)
    }
}

impl Widths {
    fn read(file: &File, font: &Dict) -> Self {
        let mut widths = Self {
            default: file.get_number(font, "DW").unwrap_or(1000.0) as f32,
            ranges: Vec::new(),
        };
        let array = file.get_array(font, "W").unwrap_or_default();
        let mut at = 0;
        while let Some(first) = array.get(at).map(|first| file.resolved(first)) {
            let Some(first) = first.index() else { break };
            let first = first as u32;
            match array.get(at + 1).map(|second| file.resolved(second)) {
                Some(Object::Array(list)) => {
                    for (glyph, width) in (first..).zip(&list) {
                        let width = file.resolved(width).number().unwrap_or(0.0);
                        widths.ranges.push((glyph, glyph, width as f32));
                    }
                    at += 2;
                }
                Some(Object::Number(last)) => {
                    let width = array.get(at + 2).and_then(|width| file.resolved(width).number());
                    widths.ranges.push((first, last as u32, width.unwrap_or(0.0) as f32));
                    at += 3;
                }
                _ => break,
            }
        }
        widths.ranges.sort_by_key(|range| range.0);
        widths
    }

    fn width(&self, glyph: u32) -> f32 {
        let before = self.ranges.partition_point(|range| range.0 <= glyph);
        let last = before.checked_sub(1).map(|at| self.ranges[at]);
        last.filter(|range| glyph <= range.1)
            .map_or(self.default, |range| range.2)
    }
}

/// The mapping of a composite font's bytes to glyphs, and true if it is vertical.
fn codes(file: &File, dict: &Dict, predefined: &Predefined) -> (Codes, bool) {
    match file.get(dict, "Encoding") {
        Some(Object::Name(name)) => {
            let is_vertical = name.ends_with("-V") || name == "V";
            let map = if name.starts_with("Identity") {
                None
            } else {
                predefined.get(&name)
            };
            let is_unicode = name.contains("-UCS2-") || name.contains("-UTF16-");
            let codes = map.map_or(Codes::Identity, |map| Codes::Predefined { map, is_unicode });
            (codes, is_vertical)
        }
        Some(Object::Stream(stream)) => {
            let map = CMap::read(&file.data(&stream).unwrap_or_default());
            let base = file.get_name(&stream.dict, "UseCMap").or_else(|| map.base.clone());
            let base = base.and_then(|name| predefined.get(&name));
            let is_vertical = file.get_number(&stream.dict, "WMode") == Some(1.0);
            (Codes::Own { map, base }, is_vertical)
        }
        _ => (Codes::Identity, false),
    }
}

fn to_unicode(file: &File, dict: &Dict) -> Option<CMap> {
    let Some(Object::Stream(stream)) = file.get(dict, "ToUnicode") else {
        return None;
    };
    let map = CMap::read(&file.data(&stream).ok()?);
    map.has_texts().then_some(map)
}

/// The letters of a font with codes of one byte.
fn simple(file: &File, dict: &Dict) -> [Letter; 256] {
    let base_font = file.get_name(dict, "BaseFont").unwrap_or_default();
    let descriptor = file.get_dict(dict, "FontDescriptor").unwrap_or_default();
    let is_type3 = file.get_name(dict, "Subtype").as_deref() == Some("Type3");
    // A Type 3 font has its own scale.
    let scale = match file.get_numbers(dict, "FontMatrix").filter(|_| is_type3).as_deref() {
        Some([scale, ..]) => scale.abs() as f32,
        _ => 0.001,
    };
    let to_unicode = to_unicode(file, dict);
    let names = names(file, dict, &base_font);
    let program = LazyCell::new(|| Program::read(file, dict));
    let first = file.get_number(dict, "FirstChar").unwrap_or(0.0) as i64;
    let widths = file.get_numbers(dict, "Widths");
    let missing = file.get_number(&descriptor, "MissingWidth");
    std::array::from_fn(|code| {
        let byte = code as u8;
        let own = to_unicode.as_ref().and_then(|map| map.text(u32::from(byte)));
        let text = own.or_else(|| match &names.0[code] {
            Some(name) => {
                let bitmap = is_type3.then(|| text_of_bitmap(name, byte)).flatten();
                let known = bitmap.or_else(|| text_of(name));
                known.or_else(|| program.text_of_name(name))
            }
            None => program.text_of_code(byte).or_else(|| {
                let name = glyph_of(names.1, byte)?;
                text_of(name)
            }),
        });
        // Line ends in a string show nothing.
        let text = text.or_else(|| matches!(byte, b'\t' | b'\n' | b'\r').then(String::new));
        let at = usize::try_from(code as i64 - first).ok();
        let width = widths
            .as_ref()
            .and_then(|widths| at.and_then(|at| widths.get(at)).copied());
        let width = width.or(missing.filter(|_| widths.is_some())).map(|width| width as f32);
        let width = width.unwrap_or_else(|| {
            width_of(
                &base_font,
                text.as_ref().and_then(|text| text.chars().next()).unwrap_or('n'),
            )
        });
        Letter {
            text: text.map(Rc::from),
            advance: width * scale,
            is_space_code: byte == 32,
        }
    })
}

/// Glyph names that the font's dictionary assigns to codes, and the encoding of the others if its program has none.
fn names(file: &File, dict: &Dict, base_font: &str) -> (Vec<Option<String>>, &'static str) {
    let mut names: Vec<Option<String>> = vec![None; 256];
    let fallback = match base_font {
        font if font.contains("Dingbats") => "ZapfDingbats",
        font if font.ends_with("Symbol") => "Symbol",
        _ => "Standard",
    };
    let encoding = file.get(dict, "Encoding");
    let base = match &encoding {
        Some(Object::Name(name)) => Some(name.clone()),
        Some(Object::Dict(encoding)) => file.get_name(encoding, "BaseEncoding"),
        _ => None,
    };
    let base = base.as_deref().and_then(|name| name.strip_suffix("Encoding"));
    if let Some(base) = base {
        for (code, name) in names.iter_mut().enumerate() {
            *name = glyph_of(base, code as u8).map(str::to_owned);
        }
    }
    let differences = match &encoding {
        Some(Object::Dict(encoding)) => file.get_array(encoding, "Differences").unwrap_or_default(),
        _ => Vec::new(),
    };
    let mut code = 0;
    for item in &differences {
        match file.resolved(item) {
            Object::Number(number) => code = number.max(0.0) as usize,
            Object::Name(name) => {
                if let Some(slot) = names.get_mut(code) {
                    *slot = Some(name);
                }
                code = code.saturating_add(1);
            }
            _ => {}
        }
    }
    (names, fallback)
}
