//! Builds a text: normalises white space, and records places by their first byte.

use crate::{DocumentPlace, PlaceKind};

/// Maximum number of headings that become places; further ones are only text.
pub(crate) const HEADINGS: usize = 100_000;

/// Collects the text of a document whose markup gives paragraphs and places.
#[derive(Debug, Default)]
pub(crate) struct TextBuilder {
    text: String,
    marks: Vec<(usize, PlaceKind)>,
    /// Headings and chapters so far.
    headings: usize,
    /// True if white space precedes the next text.
    space: bool,
    /// Number of line ends before the next text.
    breaks: usize,
    /// Text before the next text of a line, such as a list's dash.
    prefix: String,
    /// Open lines without breaks, such as rows of a table.
    lines: usize,
}

impl TextBuilder {
    /// Adds text of a line; runs of white space become one space.
    pub(crate) fn flow(&mut self, text: &str) {
        for word in text.split_inclusive(is_space) {
            let trimmed = word.trim_end_matches(is_space);
            if !trimmed.is_empty() {
                self.begin();
                clean_into(&mut self.text, trimmed);
            }
            self.space |= trimmed.len() < word.len();
        }
    }

    /// Adds text unchanged, including line ends.
    pub(crate) fn verbatim(&mut self, text: &str) {
        if self.lines > 0 {
            self.flow(text);
        } else if !text.is_empty() {
            self.begin();
            clean_into(&mut self.text, text);
        }
    }

    /// Requires at least `count` line ends before the next text.
    pub(crate) fn end_line(&mut self, count: usize) {
        if self.lines > 0 {
            self.space = true;
            return;
        }
        self.breaks = self.breaks.max(count);
    }

    /// Turns line ends into spaces until the line is finished.
    pub(crate) fn begin_line(&mut self) {
        self.lines += 1;
    }

    pub(crate) fn finish_line(&mut self) {
        self.lines = self.lines.saturating_sub(1);
    }

    /// Puts `prefix` before the next text.
    pub(crate) fn prefix(&mut self, prefix: String) {
        self.prefix = prefix;
    }

    /// Begins a place with the next text. Returns its number from 1, for naming it; 0 for a heading beyond the limit.
    pub(crate) fn mark(&mut self, kind: PlaceKind) -> usize {
        if matches!(kind, PlaceKind::Heading { .. } | PlaceKind::Chapter(_)) {
            self.headings += 1;
            if self.headings > HEADINGS {
                return 0;
            }
        }
        let at = if self.text.is_empty() || self.breaks == 0 {
            self.text.len()
        } else {
            // The line ends belong to the previous text.
            self.write_breaks();
            self.text.len()
        };
        self.marks.push((at, kind));
        self.marks.len()
    }

    /// Names a chapter or a heading. A heading without a name is not a place.
    pub(crate) fn name(&mut self, number: usize, name: String) {
        let mark = number.checked_sub(1).and_then(|at| self.marks.get_mut(at));
        if let Some((_, PlaceKind::Chapter(title) | PlaceKind::Heading { title, .. })) = mark {
            *title = name;
        }
    }

    /// Bytes written so far.
    pub(crate) fn len(&self) -> usize {
        self.text.len()
    }

    /// The text with its places. A place ends where the next place of its kind begins.
    pub(crate) fn finish(mut self) -> (String, Vec<DocumentPlace>) {
        let kept = self.text.trim_end().len();
        self.text.truncate(kept);
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.marks
            .retain(|(_, kind)| !matches!(kind, PlaceKind::Heading { title, .. } if title.is_empty()));
        let places = places(&self.marks, self.text.len());
        (self.text, places)
    }

    fn begin(&mut self) {
        self.write_breaks();
        if self.space && !self.text.is_empty() && !self.text.ends_with('\n') && !self.text.ends_with(is_space) {
            self.text.push(' ');
        }
        self.space = false;
        self.text.push_str(&std::mem::take(&mut self.prefix));
    }

    fn write_breaks(&mut self) {
        let breaks = std::mem::take(&mut self.breaks);
        if breaks == 0 {
            return;
        }
        self.space = false;
        if self.text.is_empty() {
            return;
        }
        let there = self
            .text
            .bytes()
            .rev()
            .take(breaks)
            .take_while(|byte| *byte == b'\n')
            .count();
        for _ in there..breaks {
            self.text.push('\n');
        }
    }
}

/// Places by their first byte, in a text of `end` bytes.
pub(crate) fn places(marks: &[(usize, PlaceKind)], end: usize) -> Vec<DocumentPlace> {
    let is_same = |a: &PlaceKind, b: &PlaceKind| std::mem::discriminant(a) == std::mem::discriminant(b);
    // The start of the next place of each kind; marks are visited from the end.
    let mut next: Vec<(&PlaceKind, usize)> = Vec::new();
    let mut places: Vec<DocumentPlace> = Vec::with_capacity(marks.len());
    for (start, kind) in marks.iter().rev() {
        // Pages without text are places too, so that pages can be counted.
        let is_page = matches!(kind, PlaceKind::Page(_) | PlaceKind::Label(_));
        let start = &(*start).min(end);
        if *start == end && !is_page {
            continue;
        }
        let known = next.iter_mut().find(|(other, _)| is_same(other, kind));
        let stop = known.as_ref().map_or(end, |(_, at)| *at);
        match known {
            Some((_, at)) => *at = *start,
            None => next.push((kind, *start)),
        }
        if *start < stop || is_page {
            places.push(DocumentPlace {
                range: *start..stop,
                kind: kind.clone(),
            });
        }
    }
    places.reverse();
    places
}

/// True if a character separates words. A no-break space does too, because models know the plain space better.
fn is_space(c: char) -> bool {
    c.is_whitespace()
}

/// Adds text without control characters; line ends become `\n`.
pub(crate) fn clean_into(out: &mut String, text: &str) {
    out.reserve(text.len());
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '\n' | '\t' => out.push(c),
            '\r' => {
                if characters.peek() != Some(&'\n') {
                    out.push('\n');
                }
            }
            // A form feed ends a page of plain text.
            '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}' => out.push('\n'),
            // Soft hyphens, byte order marks, and noncharacters.
            '\u{ad}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => {}
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
}

/// Text without control characters; clean texts are returned without a copy.
pub(crate) fn cleaned(text: String) -> String {
    let is_kept = |c: char| match c {
        '\n' | '\t' => true,
        '\u{2028}' | '\u{2029}' | '\u{ad}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => false,
        c => !c.is_control(),
    };
    let Some(first) = text.find(|c| !is_kept(c)) else {
        return text;
    };
    let mut clean = String::with_capacity(text.len());
    clean.push_str(&text[..first]);
    clean_into(&mut clean, &text[first..]);
    clean
}

/// A title on one line, of at most 120 characters.
pub(crate) fn title(text: &str) -> String {
    let mut clean = String::new();
    clean_into(&mut clean, text);
    let words: Vec<&str> = clean.split_whitespace().collect();
    let title = words.join(" ");
    match title.char_indices().nth(120) {
        Some((end, _)) => format!("{}…", &title[..end]),
        None => title,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_becomes_spaces_and_paragraphs() {
        let mut builder = TextBuilder::default();
        builder.end_line(2);
        builder.flow("  one \n two");
        builder.flow("three ");
        builder.end_line(1);
        builder.prefix("- ".to_owned());
        builder.flow(" four");
        builder.end_line(2);
        builder.end_line(1);
        builder.mark(PlaceKind::Page(2));
        builder.flow("five\u{0}\u{1b}[31m");
        let (text, places) = builder.finish();
        assert_eq!(text, "one twothree\n- four\n\nfive[31m\n");
        assert_eq!(&text[places[0].range.clone()], "five[31m\n");
    }

    #[test]
    fn places_end_where_the_next_of_their_kind_begins() {
        let heading = |name: &str| PlaceKind::heading(name, 1);
        let marks = [
            (0, PlaceKind::Page(1)),
            (3, heading("a")),
            (5, PlaceKind::Page(2)),
            (9, heading("b")),
        ];
        let ranges: Vec<_> = places(&marks, 12).into_iter().map(|place| place.range).collect();
        assert_eq!(ranges, [0..5, 3..9, 5..12, 9..12]);
    }

    #[test]
    fn control_characters_are_left_out_and_line_ends_are_one_kind() {
        let mut text = String::new();
        clean_into(&mut text, "a\r\nb\rc\u{c}d\u{7}\u{9b}e\u{ad}\u{feff}\tf");
        assert_eq!(text, "a\nb\nc\nde\tf");
    }
}
