//! A fine grid of shares, shaded on a logarithmic scale.

use std::fmt::Write as _;

use super::Picture;
use super::canvas::{Anchor, Canvas, MARGIN, head_height, number, text_width};
use super::heat_map::legend;
use super::style::{SHADES, shade};
use crate::numbers::tokens;

/// The smallest share that is told from none.
const LEAST: f64 = 1e-4;
const GRID_WIDTH: f64 = 512.0;

/// Shares of attention over keys (columns), by query or by head (rows).
#[derive(Debug, Clone, PartialEq)]
pub struct ShareMap {
    /// What is shown.
    pub title: String,
    /// Under what conditions.
    pub subtitle: String,
    /// What the rows are.
    pub row_label: String,
    /// Names of rows, from the top: one for each, or none where rows are stretches of queries.
    pub row_names: Vec<String>,
    /// Rows of the grid.
    pub rows: usize,
    /// Columns of the grid.
    pub columns: usize,
    /// Tokens that the columns hold together (as the rows do, where they have no names).
    pub tokens: usize,
    /// `[rows, columns]`: what share of its row a cell holds.
    pub shares: Vec<f64>,
    /// `[rows, columns]`: whether the policy read the cell; empty where nothing is drawn over the map.
    pub chosen: Vec<bool>,
    /// Numbers to the right of the rows: a heading, and one text for each row.
    pub remarks: Option<(String, Vec<String>)>,
}

impl ShareMap {
    /// Draws the grid.
    pub fn draw(&self) -> Picture {
        let cell_width = GRID_WIDTH / self.columns.max(1) as f64;
        let cell_height = match self.row_names.is_empty() {
            true => cell_width,
            // The grid is at least as high as the name of its rows is long.
            false => ((text_width(&self.row_label) + 8.0) / self.rows.max(1) as f64).max(18.0),
        };
        let names = self.row_names.iter().map(|name| text_width(name));
        let left = MARGIN + 24.0 + names.fold(0.0, f64::max).max(44.0) + 8.0;
        let right = self.remarks.as_ref().map_or(MARGIN, |(head, texts)| {
            let texts = texts.iter().chain([head]).map(|text| text_width(text));
            texts.fold(0.0, f64::max) + 12.0 + MARGIN
        });
        let width = left + GRID_WIDTH + right.max(28.0);
        let heading = if self.remarks.is_some() { 16.0 } else { 0.0 };
        let top = head_height(&self.title, &self.subtitle, width) + heading;
        let bottom = top + cell_height * self.rows as f64;
        let over = if self.chosen.is_empty() { 0.0 } else { 20.0 };
        let mut canvas = Canvas::new(width, bottom + 116.0 + over);
        canvas.head(&self.title, &self.subtitle);
        canvas.upright(MARGIN + 8.0, (top + bottom) / 2.0, &self.row_label);
        for (row, name) in self.row_names.iter().enumerate() {
            let y = top + cell_height * (row as f64 + 0.5) + 4.0;
            canvas.text("", left - 8.0, y, Anchor::End, name);
        }
        for step in 0..=4 {
            let share = f64::from(step) / 4.0;
            let name = tokens(self.tokens as f64 * share);
            let x = left + GRID_WIDTH * share;
            canvas.line("axis", (x, bottom), (x, bottom + 5.0), "");
            canvas.text("", x, bottom + 19.0, Anchor::Middle, &name);
            if self.row_names.is_empty() {
                let y = top + (bottom - top) * share;
                canvas.line("axis", (left - 5.0, y), (left, y), "");
                canvas.text("", left - 8.0, y + 4.0, Anchor::End, &name);
            }
        }
        canvas.text(
            "quiet",
            left + GRID_WIDTH / 2.0,
            bottom + 38.0,
            Anchor::Middle,
            "position of the key, tokens",
        );
        for (shade, data) in self.runs(left, top, cell_width, cell_height).iter().enumerate() {
            if !data.is_empty() {
                canvas.path(&format!("h{shade}"), data, "", "");
            }
        }
        let [cells, lines] = self.chosen_paths(left, top, cell_width, cell_height);
        if !cells.is_empty() {
            canvas.path("chosen", &cells, "", "");
            canvas.path("border", &lines, "", "");
        }
        if let Some((head, texts)) = &self.remarks {
            let x = left + GRID_WIDTH + 12.0;
            canvas.text("quiet", x, top - 6.0, Anchor::Start, head);
            for (row, text) in texts.iter().enumerate() {
                canvas.text("", x, top + cell_height * (row as f64 + 0.5) + 4.0, Anchor::Start, text);
            }
        }
        let ends = ["≤ 0.01%", "0.1%", "1%", "10%", "100%"].map(str::to_owned);
        legend(
            &mut canvas,
            left,
            bottom + 54.0,
            "share of the row's attention, logarithmic",
            &ends,
        );
        if !self.chosen.is_empty() {
            canvas.rectangle("chosen", left, bottom + 108.0, 22.0, 13.0, "");
            canvas.path(
                "border",
                &format!("M{} {}h22v13h-22z", number(left), number(bottom + 108.0)),
                "",
                "",
            );
            canvas.text("", left + 32.0, bottom + 119.0, Anchor::Start, "read by the policy");
        }
        canvas.finish(self.alt())
    }

    /// Each shade's cells as one path, neighbours in a row as one rectangle. Cells that hold nothing are left blank.
    fn runs(&self, left: f64, top: f64, width: f64, height: f64) -> Vec<String> {
        let mut paths = vec![String::new(); SHADES];
        for (row, shares) in self.shares.chunks(self.columns.max(1)).enumerate() {
            let mut column = 0;
            while column < shares.len() {
                let of = |share: f64| (share > 0.0).then(|| shade(1.0 - share.log10() / LEAST.log10()));
                let same = shares[column..]
                    .iter()
                    .take_while(|share| of(**share) == of(shares[column]))
                    .count();
                if let Some(shade) = of(shares[column]) {
                    let (x, y) = (left + width * column as f64, top + height * row as f64);
                    let (x, y, length) = (number(x), number(y), number(width * same as f64));
                    let height = number(height);
                    let _ = write!(paths[shade], "M{x} {y}h{length}v{height}h-{length}z");
                }
                column += same;
            }
        }
        paths
    }

    /// What was read: its cells, and the lines around them.
    fn chosen_paths(&self, left: f64, top: f64, width: f64, height: f64) -> [String; 2] {
        let at = |row: usize, column: usize| {
            column < self.columns && self.chosen.get(row * self.columns + column).copied().unwrap_or(false)
        };
        let (mut cells, mut lines) = (String::new(), String::new());
        for row in 0..=self.rows {
            let y = number(top + height * row as f64);
            for (column, count) in stretches(self.columns, |column| at(row, column)) {
                let (x, length) = (number(left + width * column as f64), number(width * count as f64));
                let _ = write!(cells, "M{x} {y}h{length}v{}h-{length}z", number(height));
            }
            let border = |column| at(row, column) != (row > 0 && at(row - 1, column));
            for (column, count) in stretches(self.columns, border) {
                let (x, length) = (number(left + width * column as f64), number(width * count as f64));
                let _ = write!(lines, "M{x} {y}h{length}");
            }
        }
        for column in 0..=self.columns {
            let x = number(left + width * column as f64);
            let border = |row| at(row, column) != (column > 0 && at(row, column - 1));
            for (row, count) in stretches(self.rows, border) {
                let (y, length) = (number(top + height * row as f64), number(height * count as f64));
                let _ = write!(lines, "M{x} {y}v{length}");
            }
        }
        [cells, lines]
    }

    fn alt(&self) -> String {
        let mut alt = format!(
            "{}. {} Rows: {}; columns: position of the key.",
            self.title, self.subtitle, self.row_label
        );
        if let Some((head, texts)) = &self.remarks {
            let texts = self
                .row_names
                .iter()
                .zip(texts)
                .map(|(name, text)| format!("{name} {text}"));
            let _ = write!(alt, " {head}: {}.", texts.collect::<Vec<_>>().join("; "));
        }
        alt
    }
}

/// (first, count) of the stretches of `0..end` that `holds`.
fn stretches(end: usize, holds: impl Fn(usize) -> bool) -> Vec<(usize, usize)> {
    let mut found: Vec<(usize, usize)> = Vec::new();
    for place in (0..end).filter(|place| holds(*place)) {
        match found.last_mut() {
            Some((first, count)) if *first + *count == place => *count += 1,
            _ => found.push((place, 1)),
        }
    }
    found
}
