//! The letters, lines and pictures that a page draws.

use std::rc::Rc;

use super::rules::Rules;

/// A letter on its page, rotated so that its line runs to the right.
#[derive(Debug, Clone)]
pub(super) struct Glyph {
    pub(super) left: f32,
    pub(super) right: f32,
    /// Height of the letter's line; larger is higher.
    pub(super) base: f32,
    pub(super) size: f32,
    /// Direction of the letter's line in degrees.
    pub(super) turn: i16,
    pub(super) text: Rc<str>,
}

/// The letters of a page in drawing order.
#[derive(Debug, Default)]
pub(super) struct Drawn {
    pub(super) glyphs: Vec<Glyph>,
    /// Area of the largest picture, in units of the page.
    pub(super) picture_area: f64,
    /// Straight lines.
    pub(super) rules: Rules,
    /// Number of curves, which may be letters drawn as shapes.
    pub(super) curves: usize,
    /// Bytes of the text of all letters.
    pub(super) text_bytes: usize,
    /// Letters that their fonts do not identify.
    pub(super) unknown: usize,
    /// True if a part of the page is unreadable.
    pub(super) is_damaged: bool,
}

impl Drawn {
    /// True if the page has more letters or text than any page needs.
    pub(super) fn is_full(&self, most_letters: usize) -> bool {
        self.glyphs.len() > most_letters || self.text_bytes > 8 * most_letters
    }
}
