//! Normalises letters: resolves ligatures, presentation forms of Arabic letters, and separate accents.

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::compose;

/// The text of pieces, each of one or a few letters.
pub(super) fn cleaned(pieces: &[String]) -> String {
    let mut text = String::new();
    for c in pieces.iter().flat_map(|piece| piece.chars()) {
        if is_compatible(c) {
            text.extend(c.nfkc());
        } else {
            text.push(c);
        }
    }
    if text.is_ascii() { text } else { text.nfc().collect() }
}

/// True for a separate accent.
pub(super) fn is_accent(text: &str) -> bool {
    let mut letters = text.chars();
    letters.next().and_then(combining).is_some() && letters.next().is_none()
}

/// The letter from two that were drawn over one another, if one is an accent, as in TeX's older fonts.
pub(super) fn accented(one: &str, other: &str) -> Option<String> {
    let lone = |text: &str| {
        let mut letters = text.chars();
        letters.next().filter(|_| letters.next().is_none())
    };
    // Letters lose their dot below an accent.
    let dotted = |c: char| match c {
        'ı' => 'i',
        'ȷ' => 'j',
        c => c,
    };
    let (one, other) = (dotted(lone(one)?), dotted(lone(other)?));
    let whole = match (combining(one), combining(other)) {
        (Some(mark), None) => compose(other, mark),
        (None, Some(mark)) => compose(one, mark),
        _ => None,
    };
    whole.map(String::from)
}

/// The combining mark for a separate accent.
fn combining(c: char) -> Option<char> {
    Some(match c {
        '`' => '\u{300}',
        '^' => '\u{302}',
        '~' => '\u{303}',
        '\u{a8}' => '\u{308}',
        '\u{af}' => '\u{304}',
        '\u{b4}' => '\u{301}',
        '\u{b8}' => '\u{327}',
        '\u{2c6}' => '\u{302}',
        '\u{2c7}' => '\u{30c}',
        '\u{2d8}' => '\u{306}',
        '\u{2d9}' => '\u{307}',
        '\u{2da}' => '\u{30a}',
        '\u{2dc}' => '\u{303}',
        '\u{2dd}' => '\u{30b}',
        _ => return None,
    })
}

/// True for characters that only differ in typography. Exponents, fractions and wide commas have their own meaning.
fn is_compatible(c: char) -> bool {
    matches!(c,
        '\u{fb00}'..='\u{fb4f}' | '\u{fb50}'..='\u{fdff}' | '\u{fe70}'..='\u{fefc}' | '\u{2e80}'..='\u{2fdf}'
        | '\u{f900}'..='\u{faff}' | '\u{fe30}'..='\u{fe4f}' | '\u{2126}' | '\u{212a}' | '\u{212b}' | '\u{1d400}'..='\u{1d7ff}'
        | '\u{132}' | '\u{133}' | '\u{2f800}'..='\u{2fa1f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ligatures_and_radicals_become_letters_and_exponents_stay() {
        let pieces = ["ﬁ", "x", "²", "⽉", "ﻻ", "¨", "7"].map(str::to_owned);
        assert_eq!(cleaned(&pieces), "fix²月لا¨7");
    }

    #[test]
    fn accents_over_letters_become_one_letter() {
        assert_eq!(accented("´", "e").as_deref(), Some("é"));
        assert_eq!(accented("u", "¨").as_deref(), Some("ü"));
        assert_eq!(accented("¨", "ı").as_deref(), Some("ï"));
        assert_eq!(accented("´", "7"), None);
    }
}
