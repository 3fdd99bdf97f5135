//! A fine grid of shares, shaded on a logarithmic scale.

use std::fmt::Write as _;

use super::Picture;
use super::canvas::{Anchor, Area, Canvas, MARGIN, head_height, number, text_width};
use super::heat_map::legend;
use super::style::{SHADES, shade};
use crate::numbers::tokens;

/// The smallest share with its own shade.
const LEAST: f64 = 1e-4;
const GRID_WIDTH: f64 = 512.0;

/// Shares of attention over keys (columns), by query or by head (rows).
#[derive(Debug, Clone, PartialEq)]
pub struct ShareMap {
    /// Subject of the picture.
    pub title: String,
    /// Conditions of the measurement.
    pub subtitle: String,
    /// Meaning of the rows.
    pub row_label: String,
    /// Names of the rows from the top; empty if rows are sections of queries.
    pub row_names: Vec<String>,
    /// Rows of the grid.
    pub rows: usize,
    /// Columns of the grid.
    pub columns: usize,
    /// Tokens of all columns together, and of all rows if rows have no names.
    pub tokens: usize,
    /// `[rows, columns]`: a cell's share of its row.
    pub shares: Vec<f64>,
    /// `[rows, columns]`: true if the policy read the cell; empty for a map without a policy.
    pub chosen: Vec<bool>,
    /// Numbers at the right of the rows: a heading, and one text for each row.
    pub remarks: Option<(String, Vec<String>)>,
}

/// Edges and cell sizes of the grid on the sheet.
struct Grid {
    left: f64,
    top: f64,
    bottom: f64,
    cell_width: f64,
    cell_height: f64,
    /// Width of the sheet.
    width: f64,
}

impl ShareMap {
    /// Draws the grid.
    pub fn draw(&self) -> Picture {
        let grid = Grid::new(self);
        let over = if self.chosen.is_empty() { 0.0 } else { 20.0 };
        let mut canvas = Canvas::new(grid.width, grid.bottom + 116.0 + over);
        canvas.head(&self.title, &self.subtitle);
        self.draw_axes(&mut canvas, &grid);
        for (shade, data) in self.runs(&grid).iter().enumerate() {
            if !data.is_empty() {
                canvas.path(&format!("h{shade}"), data, "", "");
            }
        }
        let [cells, lines] = self.chosen_paths(&grid);
        if !cells.is_empty() {
            canvas.path("chosen", &cells, "", "");
            canvas.path("border", &lines, "", "");
        }
        if let Some((head, texts)) = &self.remarks {
            let x = grid.left + GRID_WIDTH + 12.0;
            canvas.text("quiet", x, grid.top - 6.0, Anchor::Start, head);
            for (row, text) in texts.iter().enumerate() {
                canvas.text("", x, grid.base_of(row), Anchor::Start, text);
            }
        }
        self.draw_legend(&mut canvas, &grid);
        canvas.finish(self.alt())
    }

    fn draw_axes(&self, canvas: &mut Canvas, grid: &Grid) {
        let Grid { left, top, bottom, .. } = *grid;
        canvas.upright(MARGIN + 8.0, (top + bottom) / 2.0, &self.row_label);
        for (row, name) in self.row_names.iter().enumerate() {
            canvas.text("", left - 8.0, grid.base_of(row), Anchor::End, name);
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
        let (middle, below) = (left + GRID_WIDTH / 2.0, bottom + 38.0);
        canvas.text("quiet", middle, below, Anchor::Middle, "position of the key, tokens");
    }

    fn draw_legend(&self, canvas: &mut Canvas, grid: &Grid) {
        let Grid { left, bottom, .. } = *grid;
        let ends = ["≤ 0.01%", "0.1%", "1%", "10%", "100%"].map(str::to_owned);
        let label = "share of the row's attention, logarithmic";
        legend(canvas, left, bottom + 54.0, label, &ends);
        if self.chosen.is_empty() {
            return;
        }
        let area = Area {
            x: left,
            y: bottom + 108.0,
            width: 22.0,
            height: 13.0,
        };
        canvas.rectangle("chosen", area, "");
        let border = format!("M{} {}h22v13h-22z", number(left), number(bottom + 108.0));
        canvas.path("border", &border, "", "");
        canvas.text("", left + 32.0, bottom + 119.0, Anchor::Start, "read by the policy");
    }

    /// One path for the cells of each shade; neighbours in a row share a rectangle. Empty cells stay blank.
    fn runs(&self, grid: &Grid) -> Vec<String> {
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
                    let (x, y) = (grid.x_of(column), grid.y_of(row));
                    let (x, y, length) = (number(x), number(y), number(grid.cell_width * same as f64));
                    let height = number(grid.cell_height);
                    let _ = write!(paths[shade], "M{x} {y}h{length}v{height}h-{length}z");
                }
                column += same;
            }
        }
        paths
    }

    /// SVG paths of the cells that the policy read: the cells, and the lines around them.
    fn chosen_paths(&self, grid: &Grid) -> [String; 2] {
        let at = |row: usize, column: usize| {
            column < self.columns && self.chosen.get(row * self.columns + column).copied().unwrap_or(false)
        };
        let (width, height) = (grid.cell_width, grid.cell_height);
        let (mut cells, mut lines) = (String::new(), String::new());
        for row in 0..=self.rows {
            let y = number(grid.y_of(row));
            for (column, count) in stretches(self.columns, |column| at(row, column)) {
                let (x, length) = (number(grid.x_of(column)), number(width * count as f64));
                let _ = write!(cells, "M{x} {y}h{length}v{}h-{length}z", number(height));
            }
            let border = |column| at(row, column) != (row > 0 && at(row - 1, column));
            for (column, count) in stretches(self.columns, border) {
                let (x, length) = (number(grid.x_of(column)), number(width * count as f64));
                let _ = write!(lines, "M{x} {y}h{length}");
            }
        }
        for column in 0..=self.columns {
            let x = number(grid.x_of(column));
            let border = |row| at(row, column) != (column > 0 && at(row, column - 1));
            for (row, count) in stretches(self.rows, border) {
                let (y, length) = (number(grid.y_of(row)), number(height * count as f64));
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

impl Grid {
    fn new(map: &ShareMap) -> Self {
        let cell_width = GRID_WIDTH / map.columns.max(1) as f64;
        let cell_height = if map.row_names.is_empty() {
            cell_width
        } else {
            // The grid is at least as high as the row label is long.
            ((text_width(&map.row_label) + 8.0) / map.rows.max(1) as f64).max(18.0)
        };
        let names = map.row_names.iter().map(|name| text_width(name));
        let left = MARGIN + 24.0 + names.fold(0.0, f64::max).max(44.0) + 8.0;
        let right = map.remarks.as_ref().map_or(MARGIN, |(head, texts)| {
            let texts = texts.iter().chain([head]).map(|text| text_width(text));
            texts.fold(0.0, f64::max) + 12.0 + MARGIN
        });
        let width = left + GRID_WIDTH + right.max(28.0);
        let heading = if map.remarks.is_some() { 16.0 } else { 0.0 };
        let top = head_height(&map.title, &map.subtitle, width) + heading;
        Self {
            left,
            top,
            bottom: top + cell_height * map.rows as f64,
            cell_width,
            cell_height,
            width,
        }
    }

    fn x_of(&self, column: usize) -> f64 {
        self.left + self.cell_width * column as f64
    }

    fn y_of(&self, row: usize) -> f64 {
        self.top + self.cell_height * row as f64
    }

    /// Baseline of the text at a row.
    fn base_of(&self, row: usize) -> f64 {
        self.top + self.cell_height * (row as f64 + 0.5) + 4.0
    }
}

/// (first, count) of the ranges within `0..end` for which `holds` is true.
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
