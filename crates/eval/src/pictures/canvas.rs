//! A drawing area: SVG elements with classes of the style sheet.

use std::fmt::Write as _;

use super::Picture;
use super::style::SERIES;
use crate::escape::escaped;

/// The part of a text at its anchor point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// A rectangle; (x, y) is its top left corner.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Area {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

pub(super) struct Canvas {
    width: f64,
    height: f64,
    body: String,
}

impl Canvas {
    pub(super) fn new(width: f64, height: f64) -> Self {
        Self {
            width: width.ceil(),
            height: height.ceil(),
            body: String::new(),
        }
    }

    pub(super) fn width(&self) -> f64 {
        self.width
    }

    /// A title and a subtitle at the top.
    pub(super) fn head(&mut self, title: &str, subtitle: &str) {
        let mut y = 8.0;
        for line in title_lines(title, self.width) {
            y += TITLE_LINE;
            self.text("title", MARGIN, y, Anchor::Start, &line);
        }
        for line in wrapped(subtitle, self.width - 2.0 * MARGIN) {
            y += LINE;
            self.text("quiet", MARGIN, y + 3.0, Anchor::Start, &line);
        }
    }

    pub(super) fn text(&mut self, class: &str, x: f64, y: f64, anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " middle",
            Anchor::End => " end",
        };
        let (x, y, text) = (number(x), number(y), escaped(text));
        let class = format!("{class}{anchor}");
        let class = class.trim();
        let _ = match class {
            "" => writeln!(self.body, "<text x=\"{x}\" y=\"{y}\">{text}</text>"),
            class => writeln!(self.body, "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{text}</text>"),
        };
    }

    /// Vertical text, read upwards, centred on its point.
    pub(super) fn upright(&mut self, x: f64, y: f64, text: &str) {
        let (x, y, text) = (number(x), number(y), escaped(text));
        let _ = writeln!(
            self.body,
            "<text class=\"quiet middle\" transform=\"translate({x} {y}) rotate(-90)\">{text}</text>"
        );
    }

    pub(super) fn rectangle(&mut self, class: &str, area: Area, tip: &str) {
        let [x, y, width, height] = [area.x, area.y, area.width, area.height].map(number);
        let _ = write!(
            self.body,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\""
        );
        self.end_with("rect", tip);
    }

    pub(super) fn path(&mut self, class: &str, data: &str, dash: &str, tip: &str) {
        let _ = write!(self.body, "<path class=\"{class}\" d=\"{data}\"");
        if !dash.is_empty() {
            let _ = write!(self.body, " stroke-dasharray=\"{dash}\"");
        }
        self.end_with("path", tip);
    }

    pub(super) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64), dash: &str) {
        let data = format!(
            "M{} {}L{} {}",
            number(from.0),
            number(from.1),
            number(to.0),
            number(to.1)
        );
        self.path(class, &data, dash, "");
    }

    /// The marker of a series at a point. Series of equal colour differ in shape.
    pub(super) fn marker(&mut self, series: usize, x: f64, y: f64, tip: &str) {
        let shape: &[(f64, f64)] = match (series + series / SERIES) % 4 {
            0 => &[(-4.0, -4.0), (4.0, -4.0), (4.0, 4.0), (-4.0, 4.0)],
            1 => &[(0.0, -5.4), (5.0, 4.0), (-5.0, 4.0)],
            2 => &[(0.0, -5.6), (5.6, 0.0), (0.0, 5.6), (-5.6, 0.0)],
            _ => &[(-5.0, -4.0), (5.0, -4.0), (0.0, 5.4)],
        };
        let points = shape
            .iter()
            .map(|(dx, dy)| format!("{} {}", number(x + dx), number(y + dy)));
        let data = format!("M{}Z", points.collect::<Vec<_>>().join("L"));
        self.path(&format!("f{}", series % SERIES), &data, "", tip);
    }

    fn end_with(&mut self, element: &str, tip: &str) {
        let _ = match tip {
            "" => writeln!(self.body, "/>"),
            tip => writeln!(self.body, "><title>{}</title></{element}>", escaped(tip)),
        };
    }

    pub(super) fn finish(self, alt: String) -> Picture {
        Picture {
            width: self.width as u32,
            height: self.height as u32,
            body: self.body,
            alt,
        }
    }
}

/// Blank space at the edges.
pub(super) const MARGIN: f64 = 16.0;

pub(super) const LINE: f64 = 16.0;
const TITLE_LINE: f64 = 20.0;

/// The height of a title and its subtitle.
pub(super) fn head_height(title: &str, subtitle: &str, width: f64) -> f64 {
    let lines = wrapped(subtitle, width - 2.0 * MARGIN).len();
    26.0 + TITLE_LINE * title_lines(title, width).len() as f64 + LINE * lines as f64
}

/// Titles are a third larger than other texts, and bold.
fn title_lines(title: &str, width: f64) -> Vec<String> {
    wrapped(title, (width - 2.0 * MARGIN) / 1.55)
}

/// A bound on the width of a text of 12 px.
pub(super) fn text_width(text: &str) -> f64 {
    let widths = text.chars().map(|c| match c {
        'i' | 'j' | 'l' | ' ' | '.' | ',' | ':' | ';' | '\'' | '|' | '(' | ')' | 'f' | 't' | 'r' | '-' | '/' => 5.0,
        'm' | 'w' | 'M' | 'W' | '%' | '@' | '—' | '…' => 12.2,
        c if c.is_ascii_uppercase() => 9.2,
        c if c.is_ascii() => 7.8,
        _ => 12.2,
    });
    widths.sum()
}

/// A text cut into lines between words.
pub(super) fn wrapped(text: &str, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if text_width(line) + text_width(word) + 5.0 <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.extend(pieces(word, width)),
        }
    }
    lines
}

/// Splits a word that is wider than a line.
fn pieces(word: &str, width: f64) -> Vec<String> {
    let mut pieces = vec![String::new()];
    for letter in word.chars() {
        let last = pieces.len() - 1;
        if !pieces[last].is_empty() && text_width(&pieces[last]) + text_width(letter.encode_utf8(&mut [0; 4])) > width {
            pieces.push(letter.to_string());
        } else {
            pieces[last].push(letter);
        }
    }
    pieces
}

/// A coordinate, to a tenth of a pixel.
pub(super) fn number(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}
