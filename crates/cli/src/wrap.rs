//! Breaks lines between words for terminals, in streamed answers and whole texts.

use std::borrow::Cow;

use unicode_width::UnicodeWidthChar;

/// Begins and ends a block of code, whose lines stay unbroken.
const FENCE: &str = "```";
/// Maximum width of a label with text to its right.
const LABEL_COLUMNS: usize = 44;
/// Columns to the next tab stop.
const TAB_COLUMNS: usize = 8;
/// Characters that must not begin a line: they end a phrase or a bracket.
const CLOSING: &str = "、。，．・：；？！」』）】〕》〉”’…ー々,.;:!?)]}%";

/// The lines of an answer, broken while its pieces arrive. A word is withheld until it is complete. Blocks of code
/// between fences stay unbroken.
#[derive(Debug, Default)]
pub(crate) struct ReplyLines {
    line: Line,
    /// Beginning of a line of code, to find the closing fence; `None` outside of code.
    code: Option<String>,
}

/// The current line, and the unfinished word after it.
#[derive(Debug, Default)]
struct Line {
    column: usize,
    /// Indentation of continued lines.
    indent: usize,
    /// White space before the word.
    gap: String,
    word: String,
    is_begun: bool,
}

impl ReplyLines {
    pub(crate) const fn new() -> Self {
        Self {
            line: Line {
                column: 0,
                indent: 0,
                gap: String::new(),
                word: String::new(),
                is_begun: false,
            },
            code: None,
        }
    }

    /// Adds a piece of the answer. Returns the text to show on a terminal of `width` columns.
    pub(crate) fn push(&mut self, piece: &str, width: usize) -> String {
        let mut shown = String::with_capacity(piece.len() + 2);
        for c in piece.chars() {
            if let Some(head) = &mut self.code {
                shown.push(c);
                if c != '\n' {
                    head.push(c);
                } else if head.trim_start().starts_with(FENCE) {
                    self.code = None;
                } else {
                    head.clear();
                }
                continue;
            }
            if c == '\n' || is_space(c) {
                self.end_word(&mut shown, width);
            } else if self.line.may_break_before(c) {
                self.line.put_word(&mut shown, width);
            }
            match (&mut self.code, c) {
                (Some(_), _) => shown.push(c),
                (None, '\n') => {
                    shown.push(c);
                    self.line = Line::default();
                }
                (None, c) if is_space(c) => self.line.gap.push(c),
                (None, c) => self.line.word.push(c),
            }
            if c == '\n'
                && let Some(head) = &mut self.code
            {
                // This fence opened the block.
                head.clear();
            }
        }
        shown
    }

    /// Ends the answer. Returns the withheld word.
    pub(crate) fn finish(&mut self, width: usize) -> String {
        let mut shown = String::new();
        self.line.put_word(&mut shown, width);
        *self = Self::new();
        shown
    }

    /// True if a word is held back.
    pub(crate) fn holds_word(&self) -> bool {
        !self.line.word.is_empty()
    }

    fn end_word(&mut self, shown: &mut String, width: usize) {
        let info = self.line.word.trim_start_matches('`');
        // Backticks after the fence close inline code.
        let opens_code = !self.line.is_begun && self.line.word.starts_with(FENCE) && !info.contains('`');
        let marker = list_marker(&self.line);
        self.line.put_word(shown, width);
        if opens_code {
            self.line = Line::default();
            self.code = Some(String::new());
        } else if let Some(indent) = marker {
            self.line.indent = indent.min(width / 2);
        }
    }
}

impl Line {
    /// True if a line may break before `c` without white space, as in Chinese and Japanese.
    fn may_break_before(&self, c: char) -> bool {
        let is_wide = |c: char| c.width() == Some(2);
        let after_wide = self.word.chars().next_back().is_some_and(is_wide);
        (is_wide(c) || after_wide && c.width() != Some(0)) && !self.word.is_empty() && !CLOSING.contains(c)
    }

    /// Writes the word, after a line break if it does not fit.
    fn put_word(&mut self, shown: &mut String, width: usize) {
        if self.word.is_empty() {
            return;
        }
        let gap = columns(&self.gap, self.column);
        let word = columns(&self.word, 0);
        if self.is_begun && self.column + gap + word > width {
            shown.push('\n');
            shown.extend(std::iter::repeat_n(' ', self.indent));
            self.column = self.indent;
        } else {
            if !self.is_begun {
                self.indent = gap.min(width / 2);
            }
            shown.push_str(&self.gap);
            self.column += gap;
        }
        shown.push_str(&self.word);
        self.column += word;
        // The terminal breaks a word that is longer than a line.
        if self.column > width {
            self.column = (self.column - 1) % width.max(1) + 1;
        }
        self.is_begun = true;
        self.gap.clear();
        self.word.clear();
    }
}

/// A text with lines of at most `width` columns, broken between words. A line with a label and two spaces continues
/// to the right of the label; other lines keep their own indentation.
pub(crate) fn wrapped(text: &str, width: usize) -> Cow<'_, str> {
    if text.lines().all(|line| columns(line, 0) <= width) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + text.len() / 16);
    for line in text.split_inclusive('\n') {
        let (content, end) = match line.strip_suffix('\n') {
            Some(content) => (content, "\n"),
            None => (line, ""),
        };
        if columns(content, 0) <= width {
            shown.push_str(content);
        } else {
            let beside = text_column(content).filter(|column| *column <= width / 2 + 4);
            wrap_line(&mut shown, content, beside, width);
        }
        shown.push_str(end);
    }
    Cow::Owned(shown)
}

fn wrap_line(shown: &mut String, content: &str, beside: Option<usize>, width: usize) {
    let mut line = Line::default();
    for c in content.chars() {
        if is_space(c) || line.may_break_before(c) {
            line.put_word(shown, width);
        }
        line.indent = beside.unwrap_or(line.indent);
        if is_space(c) {
            line.gap.push(c);
        } else {
            line.word.push(c);
        }
    }
    line.put_word(shown, width);
    shown.push_str(&line.gap);
}

/// The column of the text after a line's label, if the line has one.
fn text_column(line: &str) -> Option<usize> {
    let content = line.trim_start_matches(' ');
    let leading = line.len() - content.len();
    let gap = content.find("  ")?;
    let text = content[gap..].trim_start_matches(' ');
    let column = leading + columns(&content[..gap], 0) + (content.len() - gap - text.len());
    (column <= LABEL_COLUMNS && !text.is_empty()).then_some(column)
}

/// The column of a list item's text, if the line begins with a marker.
fn list_marker(line: &Line) -> Option<usize> {
    let number = line.word.strip_suffix(['.', ')']);
    let is_number = number
        .is_some_and(|number| (1..=3).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit()));
    let is_marker = is_number || matches!(&*line.word, "-" | "*" | "+" | "•");
    (!line.is_begun && is_marker).then(|| columns(&line.gap, 0) + columns(&line.word, 0) + 1)
}

/// White space between words; a no-break space is part of a word.
fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t')
}

/// Columns of a text that starts at a column.
fn columns(text: &str, from: usize) -> usize {
    let end = text.chars().fold(from, |column, c| match c {
        '\t' => (column / TAB_COLUMNS + 1) * TAB_COLUMNS,
        c => column + c.width().unwrap_or(0),
    });
    end - from
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer as a terminal shows it, from pieces of `piece` characters.
    fn reply(text: &str, width: usize, piece: usize) -> String {
        let mut lines = ReplyLines::new();
        let characters: Vec<char> = text.chars().collect();
        let mut shown = String::new();
        for piece in characters.chunks(piece) {
            shown += &lines.push(&piece.iter().collect::<String>(), width);
        }
        shown + &lines.finish(width)
    }

    #[track_caller]
    fn assert_reply(text: &str, width: usize, expected: &str) {
        for piece in [1, 2, 3, 7, 1000] {
            assert_eq!(reply(text, width, piece), expected, "in pieces of {piece}");
        }
    }

    #[test]
    fn an_answer_is_broken_between_words_however_it_arrives() {
        assert_reply("one two three four", 9, "one two\nthree\nfour");
        assert_reply("exactly ten", 11, "exactly ten");
        assert_reply("exactly ten", 10, "exactly\nten");
        assert_reply("a line\nand another one", 11, "a line\nand another\none");
        assert_reply("one\n\n  two three four\n", 11, "one\n\n  two three\n  four\n");
        assert_reply(
            "a verylongword that fits nowhere",
            8,
            "a\nverylongword\nthat\nfits\nnowhere",
        );
    }

    #[test]
    fn words_are_whole_at_the_widths_of_terminals() {
        let text = "It was the best of times, it was the worst of times, it was the age of wisdom. ".repeat(20);
        for width in [20, 80, 120] {
            let shown = reply(&text, width, 5);
            assert!(
                shown.lines().all(|line| line.len() <= width && !line.ends_with(' ')),
                "{shown}"
            );
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(words(&shown), words(&text));
            // Lines must be filled before they break.
            let lines: Vec<&str> = shown.lines().collect();
            for pair in lines.windows(2) {
                let next = pair[1].split(' ').next().expect("a word");
                assert!(pair[0].len() + 1 + next.len() > width, "{pair:?}");
            }
        }
    }

    #[test]
    fn items_of_lists_go_on_beside_their_markers() {
        assert_reply("- one two three\n- four", 10, "- one two\n  three\n- four");
        assert_reply("12. one two three", 12, "12. one two\n    three");
        assert_reply("2024. one two three", 14, "2024. one two\nthree");
    }

    #[test]
    fn code_stays_as_it_is_and_text_behind_it_is_broken_again() {
        let code = "```python\nif a and b and c and d:\n    pass\n```\n";
        assert_reply(&format!("{code}one two three"), 9, &format!("{code}one two\nthree"));
        let open = "text\n```\na very long line of code\n";
        assert_reply(open, 9, open);
        assert_reply("``` is a fence\nx y z\n", 4, "``` is a fence\nx y z\n");
        assert_reply("```a``` b c", 9, "```a``` b\nc");
    }

    #[test]
    fn wide_characters_count_twice_and_need_no_spaces() {
        assert_reply("漢字仮名交じり文", 8, "漢字仮名\n交じり文");
        assert_reply("漢字仮名。交じり", 8, "漢字仮\n名。交じ\nり");
        assert_reply("e\u{301}e\u{301} e\u{301}", 4, "e\u{301}e\u{301} e\u{301}");
        assert_reply("漢字abc def", 7, "漢字abc\ndef");
    }

    #[test]
    fn notes_go_on_beside_their_labels() {
        assert_eq!(wrapped("short\nlines", 10), "short\nlines");
        assert_eq!(wrapped("one two three four", 10), "one two\nthree four");
        assert_eq!(
            wrapped("name   one two three\nx", 14),
            "name   one two\n       three\nx"
        );
        assert_eq!(wrapped("  name one two three", 12), "  name one\n  two three");
        assert_eq!(wrapped("a b c\n", 3), "a b\nc\n");
    }
}
