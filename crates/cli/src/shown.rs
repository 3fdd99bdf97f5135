//! Escapes untrusted texts, so that none reaches a terminal as a control sequence.

use std::borrow::Cow;

/// Limit on the characters of a name.
const NAME_CHARACTERS: usize = 300;
/// Limit on the characters of an error message.
const MESSAGE_CHARACTERS: usize = 1000;

/// A text of several lines. Characters that control a terminal or are invisible appear as `\u{1b}`.
pub(crate) fn shown(text: &str) -> Cow<'_, str> {
    escaped(text, |c| {
        !matches!(c, '\n' | '\t') && (c.is_control() || is_invisible(c))
    })
}

/// An untrusted file's name on one line; a long name is cut, with its length.
pub(crate) fn name(text: &str) -> String {
    cut(&escaped(text, |c| c.is_control() || is_invisible(c)), NAME_CHARACTERS).into_owned()
}

/// An error message on one line; long words are cut like names.
pub(crate) fn line(text: &str) -> String {
    let words: Vec<String> = text.split_whitespace().map(name).collect();
    cut(&words.join(" "), MESSAGE_CHARACTERS).into_owned()
}

/// A piece of an answer: unchanged for a file or a pipe, without control characters for a terminal. Invisible joiners
/// stay, because languages need them.
pub(crate) fn answer(text: &str, to_terminal: bool) -> Cow<'_, str> {
    if to_terminal {
        escaped(text, |c| !matches!(c, '\n' | '\t') && c.is_control())
    } else {
        Cow::Borrowed(text)
    }
}

/// JSON with escaped control characters in its strings.
pub(crate) fn json(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    for c in text.chars() {
        // Line ends between tokens stay; serde_json has escaped those in strings.
        if c != '\n' && (c.is_control() || is_invisible(c)) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                result += &format!("\\u{unit:04x}");
            }
        } else {
            result.push(c);
        }
    }
    result
}

fn escaped(text: &str, hides: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&hides) {
        return Cow::Borrowed(text);
    }
    let mut result = String::with_capacity(text.len());
    for c in text.chars() {
        if hides(c) {
            result.extend(c.escape_unicode());
        } else {
            result.push(c);
        }
    }
    Cow::Owned(result)
}

fn cut(text: &str, most: usize) -> Cow<'_, str> {
    match text.char_indices().nth(most) {
        None => Cow::Borrowed(text),
        Some((end, _)) => Cow::Owned(format!("{}… ({} characters)", &text[..end], text.chars().count())),
    }
}

/// Zero-width characters, and characters that change the direction of others.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_steer_a_terminal_are_shown_escaped() {
        assert_eq!(shown("a\tb\nc é 😀"), "a\tb\nc é 😀");
        assert_eq!(
            shown("\u{1b}[31m \r \u{7f} \u{9b} \u{202e} \u{200b}"),
            "\\u{1b}[31m \\u{d} \\u{7f} \\u{9b} \\u{202e} \\u{200b}"
        );
        assert_eq!(name("a\nb\tc"), "a\\u{a}b\\u{9}c");
        assert_eq!(line("two\n lines\u{1b}]0;title\u{7}"), "two lines\\u{1b}]0;title\\u{7}");
    }

    #[test]
    fn long_names_are_cut_and_their_length_is_said() {
        let long = "é".repeat(100_000);
        assert_eq!(
            name(&long),
            format!("{}… (100000 characters)", "é".repeat(NAME_CHARACTERS))
        );
        assert!(line(&format!("tensor {long} is missing")).ends_with("… (100000 characters) is missing"));
        assert!(line(&"word ".repeat(100_000)).len() < 2 * MESSAGE_CHARACTERS);
    }

    #[test]
    fn an_answer_keeps_every_byte_unless_a_terminal_shows_it() {
        let text = "a\u{1b}[2J\r\n\tb\u{9b}\u{200d}";
        assert_eq!(answer(text, false), text);
        assert_eq!(answer(text, true), "a\\u{1b}[2J\\u{d}\n\tb\\u{9b}\u{200d}");
    }

    #[test]
    fn json_says_the_same_with_escapes() {
        let value = serde_json::json!({"name": "a\u{1b}\u{7f}\u{9b}\u{202e}\u{e0041}\n"});
        let plain = serde_json::to_string_pretty(&value).expect("JSON");
        let safe = json(&plain);
        assert!(
            !safe.contains(|c: char| c != '\n' && (c.is_control() || is_invisible(c))),
            "{safe}"
        );
        assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).expect("JSON"), value);
    }
}
