//! Glyph names, encodings of simple fonts and widths of the standard fonts, from their makers' tables.

use std::collections::HashMap;
use std::sync::LazyLock;

use unicode_normalization::UnicodeNormalization;

/// Characters of glyphs, by name.
static GLYPHS: LazyLock<HashMap<&str, String>> = LazyLock::new(|| {
    let lines = include_str!("../../data/glyphs.txt")
        .lines()
        .filter(|line| !line.starts_with('#'));
    let of_line = |line: &'static str| {
        let mut words = line.split(' ');
        let name = words.next()?;
        let text: Option<String> = words
            .map(|code| char::from_u32(u32::from_str_radix(code, 16).ok()?))
            .collect();
        Some((name, text?))
    };
    lines.filter_map(of_line).collect()
});

/// Glyph names by code, for each encoding.
static ENCODINGS: LazyLock<HashMap<&str, HashMap<u8, &str>>> = LazyLock::new(|| {
    let mut encodings: HashMap<&str, HashMap<u8, &str>> = HashMap::new();
    let mut current = "";
    for line in include_str!("../../data/encodings.txt").lines() {
        if let Some(name) = line.strip_prefix('[') {
            current = name.trim_end_matches(']');
        } else if let Some((code, name)) = line.split_once(' ')
            && let Ok(code) = code.parse()
        {
            encodings.entry(current).or_default().insert(code, name);
        }
    }
    encodings
});

/// Widths of the characters from space to tilde, by font.
static WIDTHS: LazyLock<HashMap<&str, Vec<f32>>> = LazyLock::new(|| {
    let lines = include_str!("../../data/widths.txt")
        .lines()
        .filter(|line| !line.starts_with('#'));
    let of_line = |line: &'static str| {
        let (name, widths) = line.split_once(' ')?;
        Some((name, widths.split(' ').filter_map(|width| width.parse().ok()).collect()))
    };
    lines.filter_map(of_line).collect()
});

/// The name of a code's glyph in one of the encodings `Standard`, `MacRoman`, `WinAnsi`, `MacExpert`, `Symbol`,
/// `ZapfDingbats`.
pub(super) fn glyph_of(encoding: &str, code: u8) -> Option<&'static str> {
    ENCODINGS.get(encoding)?.get(&code).copied()
}

/// The text of a glyph by its name, according to the Adobe Glyph List.
pub(super) fn text_of(name: &str) -> Option<String> {
    let stem = name.split('.').next().filter(|stem| !stem.is_empty())?;
    let parts: Option<Vec<String>> = stem.split('_').map(text_of_part).collect();
    Some(parts?.concat())
}

fn text_of_part(name: &str) -> Option<String> {
    if let Some(text) = GLYPHS.get(name) {
        return Some(text.chars().filter_map(of_private_use).collect()).filter(|text: &String| !text.is_empty());
    }
    let code = |digits: &str| char::from_u32(u32::from_str_radix(digits, 16).ok()?);
    let is_hex = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    if let Some(digits) = name
        .strip_prefix("uni")
        .filter(|digits| digits.len() >= 4 && is_hex(digits))
    {
        let units = digits
            .as_bytes()
            .chunks_exact(4)
            .filter_map(|unit| std::str::from_utf8(unit).ok());
        let units: Vec<u16> = units.filter_map(|unit| u16::from_str_radix(unit, 16).ok()).collect();
        return String::from_utf16(&units).ok();
    }
    let digits = name
        .strip_prefix('u')
        .filter(|digits| (4..=6).contains(&digits.len()) && is_hex(digits))?;
    code(digits).map(String::from)
}

/// The text of a glyph of a bitmap font by a name such as `a65`. The number is the glyph's code in one of TeX's
/// encodings.
pub(super) fn text_of_bitmap(name: &str, code: u8) -> Option<String> {
    let digits = name.trim_start_matches(|c: char| c.is_ascii_alphabetic());
    let is_code = digits.len() < name.len() && digits.parse::<u32>().ok() == Some(u32::from(code));
    if !is_code {
        return None;
    }
    let text = match code {
        0x10 => "“",
        0x11 => "”",
        0x12 => "„",
        0x13 => "«",
        0x14 => "»",
        0x15 => "–",
        0x16 => "—",
        0x0b | 0x1b => "ff",
        0x0c | 0x1c => "fi",
        0x0d | 0x1d => "fl",
        0x0e | 0x1e => "ffi",
        0x0f | 0x1f => "ffl",
        0x27 => "’",
        0x60 => "‘",
        0x20..=0x7e => return Some(char::from(code).to_string()),
        0x80.. => return CORK.chars().nth(usize::from(code - 0x80)).map(String::from),
        _ => return None,
    };
    Some(text.to_owned())
}

/// Letters of TeX's T1 encoding from code 0x80 on.
const CORK: &str = "ĂĄĆČĎĚĘĞĹĽŁŃŇŊŐŔŘŚŠŞŤŢŰŮŸŹŽŻĲİđ§ăąćčďěęğĺľłńňŋőŕřśšşťţűůÿźžżĳ¡¿£\
    ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑÒÓÔÕÖŒØÙÚÛÜÝÞẞàáâãäåæçèéêëìíîïðñòóôõöœøùúûüýþß";

/// Small capitals and old-style digits of Adobe's corporate use area, as plain letters.
fn of_private_use(c: char) -> Option<char> {
    match u32::from(c) {
        code @ 0xf730..=0xf739 => char::from_u32(code - 0xf700),
        code @ 0xf761..=0xf77a => char::from_u32(code - 0xf720),
        0xe000..=0xf8ff => None,
        _ => Some(c),
    }
}

/// The text of a sign by the name of its font and its code, possibly in Unicode's private use area.
pub(crate) fn symbol(font: &str, code: u32) -> Option<String> {
    let byte = match code {
        0xf000..=0xf0ff => (code - 0xf000) as u8,
        0x20..=0xff => code as u8,
        0xe000..=0xf8ff => return None,
        _ => return char::from_u32(code).map(String::from),
    };
    let font = font.to_ascii_lowercase();
    if font.starts_with("wingdings") {
        let found = WINGDINGS.iter().find(|(known, _)| *known == byte);
        return found.filter(|_| font == "wingdings").map(|(_, sign)| sign.to_string());
    }
    let encoding = match &*font {
        "symbol" => "Symbol",
        font if font.contains("dingbats") => "ZapfDingbats",
        _ => return (code < 0x100).then(|| char::from(byte).to_string()),
    };
    text_of(glyph_of(encoding, byte)?)
}

/// Common signs of Wingdings.
const WINGDINGS: [(u8, char); 30] = [
    (0x21, '✏'),
    (0x22, '✂'),
    (0x28, '☎'),
    (0x2a, '✉'),
    (0x3c, '💾'),
    (0x4a, '☺'),
    (0x4c, '☹'),
    (0x4e, '☠'),
    (0x6c, '●'),
    (0x6e, '■'),
    (0x6f, '□'),
    (0x71, '❑'),
    (0x72, '❒'),
    (0x73, '⬧'),
    (0x74, '⧫'),
    (0x75, '◆'),
    (0x76, '❖'),
    (0x9f, '•'),
    (0xa1, '○'),
    (0xa7, '▪'),
    (0xa8, '◻'),
    (0xb0, '⌑'),
    (0xd8, '➢'),
    (0xdf, '←'),
    (0xe0, '→'),
    (0xe8, '➔'),
    (0xfb, '✗'),
    (0xfc, '✓'),
    (0xfd, '☒'),
    (0xfe, '☑'),
];

/// The width of a character in thousandths of the size, in a standard or similar font.
pub(super) fn width_of(font: &str, c: char) -> f32 {
    let lower = font.to_ascii_lowercase();
    if lower.contains("courier") || lower.contains("mono") {
        return 600.0;
    }
    let is_bold = lower.contains("bold") || lower.contains("black");
    let is_italic = lower.contains("italic") || lower.contains("oblique");
    let is_serif = ["times", "serif", "roman", "garamond", "georgia"]
        .iter()
        .any(|part| lower.contains(part));
    let name = match (is_serif && !lower.contains("sans"), is_bold, is_italic) {
        (true, true, true) => "Times-BoldItalic",
        (true, true, false) => "Times-Bold",
        (true, false, true) => "Times-Italic",
        (true, false, false) => "Times-Roman",
        (false, true, _) => "Helvetica-Bold",
        (false, false, _) => "Helvetica",
    };
    // An accent makes no letter wider.
    let base = c.nfkd().next().unwrap_or(c);
    let at = u32::from(base).wrapping_sub(32) as usize;
    WIDTHS
        .get(name)
        .and_then(|widths| widths.get(at))
        .copied()
        .unwrap_or(556.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_glyphs_become_text_by_the_rules_of_their_list() {
        for (name, text) in [
            ("eacute", "é"),
            ("uni00DF", "ß"),
            ("uni00410042", "AB"),
            ("u1F600", "😀"),
            ("f_f_i", "ffi"),
            ("a.sc", "a"),
            ("Asmall", "A"),
            ("a20", "✔"),
        ] {
            assert_eq!(text_of(name).as_deref(), Some(text), "{name}");
        }
        for name in ["g123", ".notdef", "cid_7", ""] {
            assert_eq!(text_of(name), None, "{name}");
        }
        assert_eq!(glyph_of("WinAnsi", 0x80), Some("Euro"));
        assert_eq!(width_of("Helvetica", 'i'), 222.0);
    }
}
