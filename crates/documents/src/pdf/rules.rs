//! Straight lines that a page draws, such as those between the cells of a table.

use super::content::{Matrix, transformed};
use super::object::Object;

/// A straight line of a page, along one of its axes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rule {
    /// Its place across its direction.
    pub(super) at: f32,
    pub(super) from: f32,
    pub(super) to: f32,
}

/// The straight lines of a page.
#[derive(Debug, Default)]
pub(super) struct Rules {
    pub(super) horizontal: Vec<Rule>,
    pub(super) vertical: Vec<Rule>,
}

/// A path under construction.
#[derive(Debug, Default)]
pub(super) struct Path {
    edges: Vec<(Point, Point)>,
    /// The corners of the box around each of its parts.
    boxes: Vec<(Point, Point)>,
    start: Point,
    pen: Point,
}

/// A point of the page, in its units.
type Point = (f64, f64);

/// Maximum number of lines of a page in each direction; a page with more is a drawing.
const RULES: usize = 1 << 13;

/// Maximum number of edges of a path.
const EDGES: usize = 1 << 12;

/// The greatest width of a filled line.
const THIN: f64 = 3.0;

/// The greatest distance of a straight edge's ends across its direction.
const STRAIGHT: f64 = 0.5;

/// The least length of a line.
const LENGTH: f64 = 4.0;

impl Rules {
    fn add(&mut self, from: Point, to: Point, most_width: f64) {
        let (across, up) = ((to.0 - from.0).abs(), (to.1 - from.1).abs());
        let (rules, at, ends) = if up <= most_width && across >= LENGTH {
            (&mut self.horizontal, from.1.midpoint(to.1), (from.0, to.0))
        } else if across <= most_width && up >= LENGTH {
            (&mut self.vertical, from.0.midpoint(to.0), (from.1, to.1))
        } else {
            return;
        };
        if rules.len() < RULES {
            rules.push(Rule {
                at: at as f32,
                from: ends.0.min(ends.1) as f32,
                to: ends.0.max(ends.1) as f32,
            });
        }
    }

    /// True for a page with more lines than are kept.
    pub(super) fn is_drawing(&self) -> bool {
        self.horizontal.len() >= RULES || self.vertical.len() >= RULES
    }
}

impl Path {
    /// Runs an operator that makes or paints a path; others have no effect.
    pub(super) fn operate(&mut self, word: &[u8], operands: &[Object], matrix: &Matrix, rules: &mut Rules) {
        let number = |at: usize| operands.get(at).and_then(Object::number).unwrap_or(0.0);
        let point = |x: f64, y: f64| transformed(matrix, x, y);
        let last = |at: usize| point(number(at), number(at + 1));
        match word {
            b"m" => self.begin(last(0)),
            b"l" => self.line_to(last(0)),
            b"c" => self.curve_to(&[last(0), last(2), last(4)]),
            b"v" | b"y" => self.curve_to(&[last(0), last(2)]),
            b"h" => self.line_to(self.start),
            b"re" => {
                let (x, y, width, height) = (number(0), number(1), number(2), number(3));
                self.begin(point(x, y));
                for corner in [(x + width, y), (x + width, y + height), (x, y + height), (x, y)] {
                    self.line_to(point(corner.0, corner.1));
                }
            }
            b"f" | b"F" | b"f*" => self.paint(true, false, rules),
            b"S" => self.paint(false, true, rules),
            b"B" | b"B*" => self.paint(true, true, rules),
            b"s" | b"b" | b"b*" => {
                self.line_to(self.start);
                self.paint(word != b"s", true, rules);
            }
            b"n" => self.paint(false, false, rules),
            _ => {}
        }
    }

    fn begin(&mut self, at: Point) {
        (self.start, self.pen) = (at, at);
        if self.boxes.len() < EDGES {
            self.boxes.push((at, at));
        }
    }

    fn line_to(&mut self, to: Point) {
        if self.edges.len() < EDGES {
            self.edges.push((self.pen, to));
        }
        self.curve_to(&[to]);
    }

    fn curve_to(&mut self, points: &[Point]) {
        for point in points {
            if let Some((low, high)) = self.boxes.last_mut() {
                *low = (low.0.min(point.0), low.1.min(point.1));
                *high = (high.0.max(point.0), high.1.max(point.1));
            }
            self.pen = *point;
        }
    }

    fn paint(&mut self, is_filled: bool, is_stroked: bool, rules: &mut Rules) {
        let boxes = self.boxes.drain(..).filter(|_| is_filled);
        boxes.for_each(|(low, high)| rules.add(low, high, THIN));
        let edges = self.edges.drain(..).filter(|_| is_stroked);
        edges.for_each(|(from, to)| rules.add(from, to, STRAIGHT));
    }
}
