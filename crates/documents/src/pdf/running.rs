//! Lines at the top or the bottom of many pages, such as titles and page numbers.

use std::collections::HashMap;

use super::paragraphs::TextLine;

/// A running line occurs on at least this many pages.
const LEAST_PAGES: usize = 3;

/// Share of a page's height that is its top or bottom.
const MARGIN: f32 = 0.12;

/// A running line occurs on one in this many pages, at least, from its first page to its last.
const ONE_IN: usize = 3;

/// Lines on pages of one document.
#[derive(Debug, Default)]
pub(super) struct Running {
    /// For each line, its pages.
    pages: HashMap<Key, Vec<usize>>,
}

/// A line at an edge, with numbers relative to the page number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    is_top: bool,
    text: String,
    offset: Option<i64>,
}

impl Running {
    /// Records the lines at the edges of a page of this height.
    pub(super) fn look(&mut self, page: usize, lines: &[TextLine], height: f32) {
        for (_, key) in edges(page, lines, height) {
            let pages = self.pages.entry(key).or_default();
            if pages.last() != Some(&page) {
                pages.push(page);
            }
        }
    }

    /// Removes running lines from a page; a line with words stays on the first page that has it.
    pub(super) fn take_off(&self, page: usize, lines: &mut Vec<TextLine>, height: f32) {
        let found = edges(page, lines, height);
        let is_off = |key: &Key| {
            let pages = self.pages.get(key).filter(|pages| is_running(pages))?;
            let has_words = key.text.chars().any(char::is_alphabetic);
            (!has_words || pages.first() != Some(&page)).then_some(())
        };
        let mut off: Vec<usize> = found
            .into_iter()
            .filter(|(_, key)| is_off(key).is_some())
            .map(|(at, _)| at)
            .collect();
        // A page that has only such lines keeps them.
        if off.len() == lines.len() {
            return;
        }
        off.sort_unstable();
        for at in off.into_iter().rev() {
            lines.remove(at);
        }
    }

    /// One line about removed lines, if there were any.
    pub(super) fn warning(&self) -> Option<String> {
        let running = self.pages.iter().filter(|(_, pages)| is_running(pages));
        let mut running: Vec<(usize, &str)> = running.map(|(key, pages)| (pages.len(), key.text.as_str())).collect();
        // The most frequent line with words represents all of them.
        let has_words = |text: &str| text.chars().any(char::is_alphabetic);
        running.sort_by_key(|(pages, text)| (!has_words(text), std::cmp::Reverse(*pages), *text));
        let (pages, first) = running.first()?;
        let others = match running.len() {
            1 => String::new(),
            2 => " and one other".to_owned(),
            count => format!(" and {} others", count - 1),
        };
        let first = crate::builder::title(&first.replace('#', "…"));
        Some(format!(
            "running headers and footers are left out: {first:?} on {pages} pages{others}"
        ))
    }
}

fn is_running(pages: &[usize]) -> bool {
    let (Some(first), Some(last)) = (pages.first(), pages.last()) else {
        return false;
    };
    pages.len() >= LEAST_PAGES && pages.len() * ONE_IN > last - first
}

/// Separate lines at the top and the bottom of a page.
fn edges(page: usize, lines: &[TextLine], height: f32) -> Vec<(usize, Key)> {
    let mut by_height: Vec<usize> = (0..lines.len()).collect();
    by_height.sort_by(|a, b| lines[*b].base.total_cmp(&lines[*a].base));
    let mut found = Vec::new();
    for is_top in [true, false] {
        let order: Vec<usize> = if is_top {
            by_height.clone()
        } else {
            by_height.iter().rev().copied().collect()
        };
        // A header may have two lines, with words on the left and on the right.
        let mut edge = Vec::new();
        for (place, at) in order.iter().enumerate().take(4) {
            let line = &lines[*at];
            let share = if is_top {
                (height - line.base) / height
            } else {
                line.base / height
            };
            if share > MARGIN {
                break;
            }
            edge.push(*at);
            let gap = order.get(place + 1).map(|next| (line.base - lines[*next].base).abs());
            let size = line.size;
            if gap.is_none_or(|gap| gap > 1.6 * size) {
                found.extend(edge.drain(..).map(|at| (at, key(page, &lines[at].text, is_top))));
            }
        }
    }
    found
}

/// The text of a line with a placeholder for its page number.
fn key(page: usize, text: &str, is_top: bool) -> Key {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let start = text
        .char_indices()
        .rev()
        .find(|(_, c)| c.is_ascii_digit())
        .map(|(at, _)| at + 1);
    // A page number is at the end of its line, or at the start.
    let last = start.map(|end| {
        let digits = text[..end].bytes().rev().take_while(u8::is_ascii_digit).count();
        (end - digits, end)
    });
    let first = {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        (digits > 0).then_some((0, digits))
    };
    let number = |(start, end): (usize, usize)| text[start..end].parse::<i64>().ok();
    let near = |span: &(usize, usize)| number(*span).is_some_and(|number| (number - page as i64).abs() < 2000);
    match first.into_iter().chain(last).find(near) {
        Some((start, end)) => Key {
            is_top,
            offset: number((start, end)).map(|number| number - page as i64),
            text: format!("{}#{}", &text[..start], &text[end..]),
        },
        None => Key {
            is_top,
            text: if is_roman(&text) { "#".to_owned() } else { text },
            offset: None,
        },
    }
}

fn is_roman(text: &str) -> bool {
    !text.is_empty() && text.len() < 8 && text.bytes().all(|byte| matches!(byte, b'i' | b'v' | b'x' | b'l'))
}
