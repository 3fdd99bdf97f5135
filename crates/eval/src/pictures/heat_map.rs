//! A table whose cells are shaded by their value.

use super::Picture;
use super::canvas::{Anchor, Area, Canvas, LINE, MARGIN, head_height, text_width, wrapped};
use super::style::{SHADES, shade};

const LEAST_CELL_HEIGHT: f64 = 30.0;

/// A table of shaded cells with a number in each.
#[derive(Debug, Clone, PartialEq)]
pub struct HeatMap {
    /// Subject of the picture.
    pub title: String,
    /// Conditions of the measurement.
    pub subtitle: String,
    /// Meaning of the columns, with a unit.
    pub column_label: String,
    /// Meaning of the rows, with a unit.
    pub row_label: String,
    /// Names of the columns, from the left.
    pub columns: Vec<String>,
    /// Names of the rows, from the top.
    pub rows: Vec<String>,
    /// `[rows, columns]`; `None` for a cell without a measurement.
    pub cells: Vec<Option<HeatCell>>,
    /// Meaning of the shades, with a unit.
    pub scale_label: String,
    /// Names of values at even steps of the scale, from lowest to highest.
    pub scale_names: Vec<String>,
}

/// One cell.
#[derive(Debug, Clone, PartialEq)]
pub struct HeatCell {
    /// Position of the value on the scale, from 0 to 1.
    pub share: f64,
    /// The value as text.
    pub text: String,
}

impl HeatMap {
    /// Draws the table.
    pub fn draw(&self) -> Picture {
        let widest = |texts: &mut dyn Iterator<Item = &str>| texts.map(text_width).fold(0.0, f64::max);
        let mut texts = self.cells.iter().flatten().map(|cell| &*cell.text);
        let texts = widest(&mut texts).max(widest(&mut self.columns.iter().flat_map(|name| parameters(name))));
        let cell = (texts + 12.0).clamp(44.0, 220.0);
        let left = MARGIN + 24.0 + widest(&mut self.rows.iter().map(|name| &**name)) + 8.0;
        let table = cell * self.columns.len() as f64;
        let width = (left + table + MARGIN).max(480.0);
        // A small table gets wide cells rather than an empty right half.
        let cell = ((width - left - MARGIN) / self.columns.len().max(1) as f64).max(cell);
        let top = head_height(&self.title, &self.subtitle, width);
        // The table is at least as high as the title of its rows is long.
        let rows = self.rows.len().max(1) as f64;
        let cell_height = ((text_width(&self.row_label) + 8.0) / rows).max(LEAST_CELL_HEIGHT);
        let bottom = top + cell_height * rows;
        let names: Vec<Vec<String>> = self.columns.iter().map(|name| lines_of(name, cell - 6.0)).collect();
        let more_lines = names.iter().map(Vec::len).max().unwrap_or(1).max(1) - 1;
        // The label may be wider than the table, and than the picture.
        let label = wrapped(&self.column_label, width - 2.0 * MARGIN);
        let label_bottom = bottom + LINE * more_lines as f64 + 38.0;
        let below = bottom + LINE * (more_lines + label.len().max(1) - 1) as f64;
        let mut canvas = Canvas::new(width, below + 112.0);
        canvas.head(&self.title, &self.subtitle);
        canvas.upright(MARGIN + 8.0, (top + bottom) / 2.0, &self.row_label);
        for (row, name) in self.rows.iter().enumerate() {
            let y = top + cell_height * (row as f64 + 0.5) + 4.0;
            canvas.text("", left - 8.0, y, Anchor::End, name);
        }
        for (column, lines) in names.iter().enumerate() {
            let x = left + cell * (column as f64 + 0.5);
            for (line, name) in lines.iter().enumerate() {
                canvas.text("", x, bottom + 18.0 + LINE * line as f64, Anchor::Middle, name);
            }
        }
        let middle = left + cell * self.columns.len() as f64 / 2.0;
        for (line, text) in label.iter().enumerate() {
            let half = text_width(text) / 2.0;
            let x = middle.min(width - MARGIN - half).max(MARGIN + half);
            canvas.text("quiet", x, label_bottom + LINE * line as f64, Anchor::Middle, text);
        }
        for (place, value) in self.cells.iter().enumerate() {
            let (row, column) = (place / self.columns.len(), place % self.columns.len());
            let (x, y) = (left + cell * column as f64, top + cell_height * row as f64);
            let (centre, base) = (x + cell / 2.0, y + cell_height / 2.0 + 4.0);
            match value {
                Some(value) => {
                    let shade = shade(value.share);
                    let tip = format!("{}, {}: {}", self.rows[row], self.columns[column], value.text);
                    let area = Area {
                        x: x + 1.0,
                        y: y + 1.0,
                        width: cell - 2.0,
                        height: cell_height - 2.0,
                    };
                    canvas.rectangle(&format!("h{shade}"), area, &tip);
                    canvas.text(&on(shade), centre, base, Anchor::Middle, &value.text);
                }
                None => canvas.text("quiet", centre, base, Anchor::Middle, "–"),
            }
        }
        legend(&mut canvas, left, below + 58.0, &self.scale_label, &self.scale_names);
        canvas.finish(self.alt())
    }

    fn alt(&self) -> String {
        let mut rows = Vec::with_capacity(self.rows.len());
        for (name, cells) in self.rows.iter().zip(self.cells.chunks(self.columns.len().max(1))) {
            let cells = cells
                .iter()
                .map(|cell| cell.as_ref().map_or("not measured", |cell| &cell.text));
            rows.push(format!("{name}: {}", cells.collect::<Vec<_>>().join(", ")));
        }
        format!(
            "{}. {} Rows: {}; columns: {} ({}). {}",
            self.title,
            self.subtitle,
            self.row_label,
            self.column_label,
            self.columns.join(", "),
            rows.join("; ")
        )
    }
}

/// The name of a column in lines, broken between a policy's parameters.
fn lines_of(name: &str, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in parameters(name) {
        match lines.last_mut() {
            Some(line) if text_width(line) + text_width(part) <= width => line.push_str(part),
            _ => lines.extend(wrapped(part, width)),
        }
    }
    lines
}

fn parameters(name: &str) -> impl Iterator<Item = &str> {
    name.split_inclusive([':', ','])
}

/// The class of a text on a shade: pale shades keep the ink colour.
pub(super) fn on(shade: usize) -> String {
    if shade < SHADES / 2 {
        String::new()
    } else {
        format!("on{shade}")
    }
}

/// A bar of all shades with names along it. The label is next to the bar, or below it if the bar is narrow.
pub(super) fn legend(canvas: &mut Canvas, left: f64, top: f64, label: &str, ends: &[String]) {
    // Wide enough for the names below.
    let step = if ends.len() > 2 { 18.0 } else { 12.0 };
    let width = step * SHADES as f64;
    for shade in 0..SHADES {
        let area = Area {
            x: left + step * shade as f64,
            y: top,
            width: step,
            height: 12.0,
        };
        canvas.rectangle(&format!("h{shade}"), area, "");
    }
    let last = ends.len().saturating_sub(1).max(1);
    for (number, end) in ends.iter().enumerate() {
        let anchor = match number {
            0 => Anchor::Start,
            _ if number == last => Anchor::End,
            _ => Anchor::Middle,
        };
        let x = left + width * number as f64 / last as f64;
        canvas.text("", x, top + 27.0, anchor, end);
    }
    let (x, y) = if left + width + 10.0 + text_width(label) <= canvas.width() - MARGIN {
        (left + width + 10.0, top + 10.0)
    } else {
        (left, top + 27.0 + LINE)
    };
    canvas.text("quiet", x, y, Anchor::Start, label);
}
