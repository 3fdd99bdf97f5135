//! Letters as people write them: without ligatures, forms of Arabic letters, and accents that stand alone.

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::compose;

/// The text of pieces, each a letter or a few.
pub(super) fn cleaned(pieces: &[String]) -> String {
    let mut text = String::new();
    let mut accent: Option<char> = None;
    for piece in pieces {
        // TeX's older fonts draw an accent and then its letter.
        let mut letters = piece.chars();
        if let (Some(c), None) = (letters.next(), letters.next()) {
            if let Some(mark) = accent.take() {
                match compose(c, mark) {
                    Some(whole) => {
                        text.push(whole);
                        continue;
                    }
                    None => text.push(alone(mark)),
                }
            }
            if let Some(mark) = combining(c) {
                accent = Some(mark);
                continue;
            }
        } else if let Some(mark) = accent.take() {
            text.push(alone(mark));
        }
        for c in piece.chars() {
            if is_compatible(c) {
                text.extend(c.nfkc());
            } else {
                text.push(c);
            }
        }
    }
    text.extend(accent.map(alone));
    if text.is_ascii() { text } else { text.nfc().collect() }
}

/// The mark above or below a letter that an accent on its own stands for.
fn combining(c: char) -> Option<char> {
    Some(match c {
        '\u{a8}' => '\u{308}',
        '\u{b4}' => '\u{301}',
        '\u{b8}' => '\u{327}',
        '\u{2c6}' => '\u{302}',
        '\u{2c7}' => '\u{30c}',
        '\u{2d8}' => '\u{306}',
        '\u{2d9}' => '\u{307}',
        '\u{2da}' => '\u{30a}',
        '\u{2dc}' => '\u{303}',
        _ => return None,
    })
}

fn alone(mark: char) -> char {
    let accents = [
        '\u{a8}', '\u{b4}', '\u{b8}', '\u{2c6}', '\u{2c7}', '\u{2d8}', '\u{2d9}', '\u{2da}', '\u{2dc}',
    ];
    accents
        .into_iter()
        .find(|c| combining(*c) == Some(mark))
        .unwrap_or(mark)
}

/// True for characters that stand for others on paper alone. Exponents, fractions and wide commas say something of their own.
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
    fn ligatures_radicals_and_lone_accents_become_letters_and_exponents_stay() {
        let pieces = ["ﬁ", "x", "²", "⽉", "´", "e", "ﻻ", "¨", "7"].map(str::to_owned);
        assert_eq!(cleaned(&pieces), "fix²月éلا¨7");
    }
}
