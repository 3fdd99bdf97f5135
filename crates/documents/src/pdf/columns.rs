//! The reading order of a page's rows: columns one after another, tables row by row.

use super::lines::{Row, Segment};
use super::tables;

/// Columns within columns.
const DEPTH: usize = 6;

/// Maximum number of rows of one page searched for columns.
const ROWS: usize = 3000;

/// Maximum number of rows before both columns begin.
const ONE_SIDED: usize = 4;

/// Letters of a usual line of a column, including blanks; cells of tables have fewer.
const COLUMN_LETTERS: usize = 12;

/// Maximum number of digits of a page number.
const NUMBER_LETTERS: usize = 5;

/// Rows of the shortest columns with aligned lines.
const COLUMN_ROWS: usize = 4;

/// Distance beyond which two lines are separate, in font sizes.
const APART: f32 = 2.2;

/// Segments read as one line.
#[derive(Debug, Clone)]
pub(super) struct Line {
    pub(super) row: Row,
    /// The index of the line's column on the page.
    pub(super) region: usize,
    /// True if the row's segments are cells of a table.
    pub(super) is_table: bool,
}

/// Arranges the rows of a page in reading order.
#[derive(Debug)]
pub(super) struct Order {
    is_rtl: bool,
    regions: usize,
    lines: Vec<Line>,
}

/// A gap between two columns, or between two cells of every row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Gutter {
    pub(super) left: f32,
    pub(super) right: f32,
}

/// The kind of text on both sides of a gutter.
#[derive(Debug, PartialEq, Eq)]
enum Beside {
    Columns,
    Cells,
}

impl Order {
    /// Arranges rows into lines in reading order. On a right-to-left page the column on the right comes first.
    pub(super) fn arrange(rows: Vec<Row>, is_rtl: bool) -> Vec<Line> {
        let mut order = Self {
            is_rtl,
            regions: 0,
            lines: Vec::with_capacity(rows.len()),
        };
        let depth = if rows.len() > ROWS { DEPTH } else { 0 };
        order.add(rows, depth);
        order.lines
    }

    fn add(&mut self, rows: Vec<Row>, depth: usize) {
        let mut rows = rows;
        let mut plain = 0;
        while plain < rows.len() {
            let found = if depth < DEPTH { band(&rows[plain..]) } else { None };
            let Some((count, gutters, widest)) = found else {
                plain += 1;
                continue;
            };
            if is_above_table(&rows[plain..], gutters.len()) {
                plain += 1;
                continue;
            }
            let behind = rows.split_off(plain + count);
            let inside = rows.split_off(plain);
            self.add_lines(std::mem::replace(&mut rows, behind), false);
            plain = 0;
            match beside(&inside, &gutters, widest) {
                Beside::Cells => self.add_lines(tables::rows(inside, &gutters), true),
                Beside::Columns => {
                    // An upper separate part is read before a lower one.
                    for chunk in chunks(inside) {
                        let (left, right) = parted(chunk, widest);
                        let (first, second) = if self.is_rtl { (right, left) } else { (left, right) };
                        self.add(first, depth + 1);
                        self.add(second, depth + 1);
                    }
                }
            }
        }
        self.add_lines(rows, false);
    }

    fn add_lines(&mut self, rows: Vec<Row>, is_table: bool) {
        let region = self.regions;
        self.regions += 1;
        self.lines.extend(rows.into_iter().map(|mut row| {
            let is_ruled = row.segments.iter().any(|segment| !segment.cells.is_empty());
            if is_ruled {
                row.segments = row.segments.into_iter().flat_map(cells_or_whole).collect();
            }
            let is_table = is_table || is_ruled;
            Line { row, region, is_table }
        }));
    }
}

/// The cells of a ruled table's row; any other segment as it is.
fn cells_or_whole(mut segment: Segment) -> Vec<Segment> {
    match std::mem::take(&mut segment.cells) {
        cells if cells.is_empty() => vec![segment],
        cells => cells,
    }
}

/// The number of leading rows separated by gutters, the gutters, and the widest one.
fn band(rows: &[Row]) -> Option<(usize, Vec<Gutter>, Gutter)> {
    let mut free = vec![Gutter {
        left: f32::NEG_INFINITY,
        right: f32::INFINITY,
    }];
    let mut count = 0;
    for row in rows {
        let left = subtracted(&free, row);
        let had_inner = inner(&free).next().is_some();
        let has_inner = inner(&left).next().is_some();
        let is_over = !has_inner && (had_inner || count >= ONE_SIDED);
        if is_over || left.len() > 64 || is_number_between(&free, row) {
            break;
        }
        free = left;
        count += 1;
    }
    let width = |gutter: &Gutter| gutter.right - gutter.left;
    let widest = inner(&free).max_by(|a, b| width(a).total_cmp(&width(b)))?;
    let rows = &rows[..count];
    let left = rows
        .iter()
        .filter(|row| row.segments.iter().any(|segment| segment.right <= widest.left))
        .count();
    let right = rows
        .iter()
        .filter(|row| row.segments.iter().any(|segment| segment.left >= widest.right))
        .count();
    let both = left + right - count;
    let mut sizes: Vec<f32> = rows.iter().map(|row| row.size).collect();
    sizes.sort_by(f32::total_cmp);
    let size = sizes[sizes.len() / 2];
    let is_gutter = width(&widest) >= 0.6 * size && left >= 3 && right >= 3;
    let is_gap = width(&widest) >= 1.2 * size && both >= 2;
    (is_gutter || is_gap).then(|| (count, inner(&free).collect(), widest))
}

/// True for a line that would close a gap between the columns of the rows below.
fn is_above_table(rows: &[Row], gutters: usize) -> bool {
    let is_single = rows[0].segments.len() == 1;
    is_single && band(&rows[1..]).is_some_and(|(_, below, _)| below.len() > gutters)
}

/// True for a page number between and below two columns.
fn is_number_between(free: &[Gutter], row: &Row) -> bool {
    match &row.segments[..] {
        [only] if only.glyphs.len() <= NUMBER_LETTERS => {
            inner(free).any(|gutter| gutter.left <= only.left && only.right <= gutter.right)
        }
        _ => false,
    }
}

/// Gaps with text on both sides.
fn inner(free: &[Gutter]) -> impl Iterator<Item = Gutter> + '_ {
    free.iter()
        .filter(|gutter| gutter.left.is_finite() && gutter.right.is_finite())
        .copied()
}

/// The parts of gaps that a row leaves free.
fn subtracted(free: &[Gutter], row: &Row) -> Vec<Gutter> {
    let mut out = Vec::with_capacity(free.len() + row.segments.len());
    for gutter in free {
        let mut left = gutter.left;
        for segment in &row.segments {
            if segment.right <= left || segment.left >= gutter.right {
                continue;
            }
            if segment.left > left {
                out.push(Gutter {
                    left,
                    right: segment.left,
                });
            }
            left = left.max(segment.right);
        }
        if left < gutter.right {
            out.push(Gutter {
                left,
                right: gutter.right,
            });
        }
    }
    // Gaps narrower than a letter never separate columns, so a page number in a gutter ends its columns.
    out.retain(|gutter| gutter.right - gutter.left > 0.7 * row.size);
    out
}

/// Columns of prose have long lines that reach their ends, or lines at other heights than the next column's.
fn beside(rows: &[Row], gutters: &[Gutter], widest: Gutter) -> Beside {
    let at = gutters.iter().position(|gutter| *gutter == widest).unwrap_or(0);
    // The column next to the gutter ends at the next gutter.
    let start = at
        .checked_sub(1)
        .map_or(f32::NEG_INFINITY, |before| gutters[before].left);
    let end = gutters.get(at + 1).map_or(f32::INFINITY, |behind| behind.right);
    let left = column(rows, start, widest.right);
    let right = column(rows, widest.left, end);
    let has = |row: &Row, is_left: bool| {
        let mut segments = row.segments.iter();
        segments.any(|segment| (segment.right <= widest.left) == is_left)
    };
    let (on_left, on_right) = (
        rows.iter().filter(|row| has(row, true)).count(),
        rows.iter().filter(|row| has(row, false)).count(),
    );
    let both = on_left + on_right - rows.len();
    if both * 2 < on_left.min(on_right) {
        return Beside::Columns;
    }
    let is_prose = |lines: &[(usize, f32)]| {
        if lines.is_empty() {
            return false;
        }
        let mut letters: Vec<usize> = lines.iter().map(|line| line.0).collect();
        let mut widths: Vec<f32> = lines.iter().map(|line| line.1).collect();
        letters.sort_unstable();
        widths.sort_by(f32::total_cmp);
        let middle = lines.len() / 2;
        letters[middle] >= COLUMN_LETTERS && widths[middle] >= 0.7 * widths[widths.len() - 1]
    };
    if rows.len() >= COLUMN_ROWS && is_close(rows) && is_prose(&left) && is_prose(&right) {
        Beside::Columns
    } else {
        Beside::Cells
    }
}

/// Letters and width of each line between two positions.
fn column(rows: &[Row], start: f32, end: f32) -> Vec<(usize, f32)> {
    let lines = rows.iter().filter_map(|row| {
        let mut here = row
            .segments
            .iter()
            .filter(|segment| segment.left >= start && segment.right <= end);
        let first = here.next()?;
        let (letters, right) = here.fold((first.glyphs.len(), first.right), |(letters, right), segment| {
            (letters + segment.glyphs.len() + 1, right.max(segment.right))
        });
        Some((letters, right - first.left))
    });
    lines.collect()
}

/// True if most rows have the distance of text lines.
fn is_close(rows: &[Row]) -> bool {
    let apart = rows.windows(2).filter(|pair| is_apart(&pair[0], &pair[1])).count();
    apart * 2 < rows.len()
}

fn is_apart(above: &Row, below: &Row) -> bool {
    above.base - below.base > APART * above.size.max(below.size)
}

/// Rows between gaps that cross all columns.
fn chunks(rows: Vec<Row>) -> Vec<Vec<Row>> {
    let mut chunks: Vec<Vec<Row>> = Vec::new();
    for row in rows {
        match chunks.last_mut() {
            Some(chunk) if chunk.last().is_some_and(|above| !is_apart(above, &row)) => chunk.push(row),
            _ => chunks.push(vec![row]),
        }
    }
    chunks
}

/// Rows on the left and on the right of a gutter.
fn parted(rows: Vec<Row>, gutter: Gutter) -> (Vec<Row>, Vec<Row>) {
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for row in rows {
        let (here, there): (Vec<Segment>, Vec<Segment>) = row
            .segments
            .into_iter()
            .partition(|segment| segment.right <= gutter.left);
        for (side, segments) in [(&mut left, here), (&mut right, there)] {
            if let Some(size) = segments.iter().map(|segment| segment.size).reduce(f32::max) {
                side.push(Row {
                    base: row.base,
                    size,
                    segments,
                });
            }
        }
    }
    (left, right)
}
