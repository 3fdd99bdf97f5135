//! From lines to paragraphs: joins full lines with the next one, and hyphenated words.

use std::collections::HashMap;

/// A line of text on its page.
#[derive(Debug, Clone)]
pub(super) struct TextLine {
    pub(super) text: String,
    pub(super) left: f32,
    pub(super) right: f32,
    pub(super) base: f32,
    pub(super) size: f32,
    pub(super) region: usize,
    /// True if the line is a row of a table.
    pub(super) is_table: bool,
}

/// How a line follows the previous one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Joint {
    /// A new paragraph.
    Paragraph,
    /// A new line of the paragraph.
    Line,
    /// The same sentence continues.
    Flow,
}

/// Word counts of a document, for joining words at line ends.
#[derive(Debug, Default)]
pub(super) struct Hyphens {
    counts: HashMap<String, usize>,
}

/// Line ends of a region that reach this share of its width are full.
const FULL: f32 = 0.86;

/// Lines of a column narrower than this many letters are not prose.
const NARROW: f32 = 14.0;

/// How each line of a page follows the previous one.
pub(super) fn joints(lines: &[TextLine], is_rtl: bool) -> Vec<Joint> {
    let mut joints = Vec::with_capacity(lines.len());
    let mut edges: HashMap<usize, (f32, f32)> = HashMap::new();
    for line in lines.iter().filter(|line| !line.is_table) {
        let (left, right) = edges.entry(line.region).or_insert((line.left, line.right));
        (*left, *right) = (left.min(line.left), right.max(line.right));
    }
    let mut start = 0;
    for at in 0..lines.len() {
        let is_new = at == 0 || is_new_paragraph(lines, at);
        joints.push(if is_new { Joint::Paragraph } else { Joint::Line });
        if is_new {
            flow(&lines[start..at], &mut joints[start..], &edges, is_rtl);
            start = at;
        }
    }
    flow(&lines[start..], &mut joints[start..], &edges, is_rtl);
    joints
}

fn is_new_paragraph(lines: &[TextLine], at: usize) -> bool {
    let (before, line) = (&lines[at - 1], &lines[at]);
    if before.region != line.region || before.is_table != line.is_table {
        return true;
    }
    if line.is_table {
        return false;
    }
    let size = before.size.max(line.size);
    let pitch = before.base - line.base;
    if pitch < 0.2 * size {
        return true;
    }
    // The distance of neighbouring lines in the same region.
    let near = |from: usize| {
        let (one, other) = (lines.get(from)?, lines.get(from + 1)?);
        let pitch = one.base - other.base;
        (one.region == line.region && other.region == line.region && pitch > 0.2 * size).then_some(pitch)
    };
    let around = [at.checked_sub(2).and_then(near), near(at)];
    let usual = around.into_iter().flatten().fold(f32::INFINITY, f32::min);
    pitch > 1.9 * size || pitch > 1.35 * usual || before.size > 1.2 * line.size || line.size > 1.2 * before.size
}

/// Marks lines of a paragraph that continue in the next one.
fn flow(block: &[TextLine], joints: &mut [Joint], edges: &HashMap<usize, (f32, f32)>, is_rtl: bool) {
    let Some(first) = block.first().filter(|first| block.len() > 1 && !first.is_table) else {
        return;
    };
    let Some((left, right)) = edges.get(&first.region).copied() else {
        return;
    };
    let width = right - left;
    if width < NARROW * first.size {
        return;
    }
    let is_full = |line: &TextLine| {
        let end = if is_rtl { right - line.left } else { line.right - left };
        end >= FULL * width
    };
    let full = block[..block.len() - 1].iter().filter(|line| is_full(line)).count();
    if full * 5 < (block.len() - 1) * 3 {
        return;
    }
    for at in 1..block.len() {
        let indent = block[at].left - block[at - 1].left;
        let is_indented = !is_rtl && indent > 0.8 * first.size && at > 1;
        if is_full(&block[at - 1]) && !is_indented {
            joints[at] = Joint::Flow;
        }
    }
}

/// The letters before and after a hyphen at a line end, if both are words.
pub(super) fn parted<'a>(before: &'a str, behind: &'a str) -> Option<(&'a str, &'a str)> {
    let stem = before.strip_suffix(['-', '\u{2010}', '\u{ad}'])?;
    let is_letter = |c: char| c.is_alphabetic();
    let start = stem.char_indices().rev().take_while(|(_, c)| is_letter(*c)).last()?.0;
    let end = behind
        .char_indices()
        .find(|(_, c)| !is_letter(*c))
        .map_or(behind.len(), |(at, _)| at);
    let is_lower = behind.chars().next().is_some_and(char::is_lowercase);
    (is_lower && end > 0).then(|| (&stem[start..], &behind[..end]))
}

impl Hyphens {
    /// Records the words at hyphenated line ends.
    pub(super) fn ask(&mut self, lines: &[TextLine]) {
        for pair in lines.windows(2) {
            if let Some((one, other)) = parted(&pair[0].text, &pair[1].text) {
                self.counts.entry(format!("{one}-{other}").to_lowercase()).or_insert(0);
                self.counts.entry(format!("{one}{other}").to_lowercase()).or_insert(0);
            }
        }
    }

    /// Counts the recorded words.
    pub(super) fn count(&mut self, lines: &[TextLine]) {
        if self.counts.is_empty() {
            return;
        }
        for line in lines {
            for word in line.text.split(|c: char| !c.is_alphabetic() && c != '-') {
                if let Some(count) = self.counts.get_mut(&word.to_lowercase()) {
                    *count += 1;
                }
            }
        }
    }

    /// Joins a line to the text before it.
    pub(super) fn join(&self, text: &mut String, line: &str) {
        if let Some((one, other)) = parted(text, line) {
            let count = |word: String| self.counts.get(&word.to_lowercase()).copied().unwrap_or(0);
            // A compound that the document writes with a hyphen elsewhere keeps it.
            let is_compound = count(format!("{one}-{other}")) > count(format!("{one}{other}"));
            if !is_compound || text.ends_with('\u{ad}') {
                text.pop();
            }
        } else if !(ends_open(text) || ends_wide(text) && line.chars().next().is_some_and(is_wide)) {
            text.push(' ');
        }
        text.push_str(line);
    }
}

/// True if a word continues after a hyphen or a slash.
fn ends_open(text: &str) -> bool {
    let mut last = text.chars().rev();
    matches!(last.next(), Some('-' | '\u{2010}')) && last.next().is_some_and(char::is_alphanumeric)
}

fn ends_wide(text: &str) -> bool {
    text.chars().next_back().is_some_and(is_wide)
}

/// True for letters of scripts without spaces between words.
pub(super) fn is_wide(c: char) -> bool {
    matches!(c, '\u{2e80}'..='\u{30ff}' | '\u{31f0}'..='\u{31ff}' | '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{ff00}'..='\u{ffef}' | '\u{20000}'..='\u{3ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_were_parted_are_joined_and_compounds_keep_their_hyphen() {
        let line = |text: &str| TextLine {
            text: text.to_owned(),
            left: 0.0,
            right: 0.0,
            base: 0.0,
            size: 1.0,
            region: 0,
            is_table: false,
        };
        let lines = ["A well-known exam-", "ple is well-", "known to all"].map(line);
        let mut hyphens = Hyphens::default();
        hyphens.ask(&lines);
        hyphens.count(&lines);
        let mut text = lines[0].text.clone();
        hyphens.join(&mut text, &lines[1].text);
        hyphens.join(&mut text, &lines[2].text);
        hyphens.join(&mut text, "of us");
        assert_eq!(text, "A well-known example is well-known to all of us");
    }
}
