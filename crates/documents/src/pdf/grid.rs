//! Tables with lines between their cells: letters are sorted into the cells that the lines enclose.

use std::collections::HashMap;

use super::drawn::Glyph;
use super::lines::{self, Row, Segment};
use super::rules::{Rule, Rules};

/// A rectangle between lines, with its letters.
#[derive(Debug)]
struct Cell {
    left: f32,
    right: f32,
    bottom: f32,
    top: f32,
    glyphs: Vec<u32>,
}

/// Lines at most this far apart are the two borders of adjacent cells, in units of the page.
const BORDERS: f32 = 2.5;

/// Adjacent rows of a table are at most this far apart.
const ROWS_APART: f32 = 4.0;

/// Maximum number of lines of a cell; more are a page's frame around prose.
const CELL_LINES: usize = 40;

/// Maximum number of lines of a row's only cell.
const ONLY_CELL_LINES: usize = 6;

/// Maximum number of comparisons of letters with lines on a page.
const WORK: usize = 20_000_000;

/// The rows of ruled tables, each as one segment with cells, and all other letters.
pub(super) fn table_rows(glyphs: &[Glyph], chosen: Vec<u32>, rules: &Rules) -> (Vec<Row>, Vec<u32>) {
    let is_upright = chosen.first().is_some_and(|at| glyphs[*at as usize].turn == 0);
    let cells = if is_upright {
        cells(glyphs, &chosen, rules)
    } else {
        None
    };
    let Some(mut cells) = cells else {
        return (Vec::new(), chosen);
    };
    cells.sort_by(|a, b| b.top.total_cmp(&a.top).then(a.left.total_cmp(&b.left)));
    let rows: Vec<&[Cell]> = cells.chunk_by(|a, b| a.top == b.top).collect();
    let mut tables: Vec<Row> = Vec::new();
    for table in rows.chunk_by(|above, below| is_adjacent(above, below)) {
        let rows: Vec<(usize, Option<Row>)> = table.iter().map(|cells| (cells.len(), row(glyphs, cells))).collect();
        let is_table = rows.iter().filter(|(cells, row)| *cells > 1 && row.is_some()).count() > 1;
        tables.extend(rows.into_iter().filter_map(|(_, row)| row.filter(|_| is_table)));
    }
    let mut is_taken = vec![false; glyphs.len()];
    let taken = tables.iter().flat_map(|row| &row.segments[0].cells);
    taken
        .flat_map(|segment| &segment.glyphs)
        .for_each(|at| is_taken[*at as usize] = true);
    let rest = chosen.into_iter().filter(|at| !is_taken[*at as usize]).collect();
    (tables, rest)
}

/// True if one row begins where the one above ends.
fn is_adjacent(above: &[Cell], below: &[Cell]) -> bool {
    let bottom = above.iter().map(|cell| cell.bottom).fold(f32::INFINITY, f32::min);
    let (left, right) = (below[0].left, below[below.len() - 1].right);
    let overlaps = above.iter().any(|cell| cell.left < right && cell.right > left);
    overlaps && bottom - below[0].top <= ROWS_APART
}

/// A table's row; `None` if its cells hold more than the cells of a table.
fn row(glyphs: &[Glyph], cells: &[Cell]) -> Option<Row> {
    let most = if cells.len() > 1 { CELL_LINES } else { ONLY_CELL_LINES };
    let mut segments: Vec<Segment> = Vec::new();
    for (at, cell) in cells.iter().enumerate() {
        let lines = lines::rows(glyphs, &cell.glyphs);
        if lines.len() > most {
            return None;
        }
        for mut segment in lines.into_iter().flat_map(|line| line.segments) {
            segment.column = at as u32 + 1;
            segments.push(segment);
        }
    }
    let base = segments.iter().map(|segment| segment.base).reduce(f32::max)?;
    let size = segments.iter().map(|segment| segment.size).reduce(f32::max)?;
    let segment = Segment {
        left: cells[0].left,
        right: cells[cells.len() - 1].right,
        base,
        size,
        glyphs: Vec::new(),
        column: 0,
        cells: segments,
    };
    let segments = vec![segment];
    Some(Row { base, size, segments })
}

/// The cells that hold letters; `None` without lines of a table.
fn cells(glyphs: &[Glyph], chosen: &[u32], rules: &Rules) -> Option<Vec<Cell>> {
    if rules.horizontal.len() < 3 || rules.vertical.len() < 3 || rules.is_drawing() {
        return None;
    }
    let (horizontal, vertical) = (snapped(&rules.horizontal), snapped(&rules.vertical));
    let mut cells: Vec<Cell> = Vec::new();
    let mut known: HashMap<[u32; 4], usize> = HashMap::new();
    let mut last: Option<usize> = None;
    let mut work = 0;
    for at in chosen {
        let glyph = &glyphs[*at as usize];
        let (x, y) = (glyph.left.midpoint(glyph.right), glyph.base + 0.3 * glyph.size);
        last = last.filter(|cell| cells[*cell].holds(x, y));
        if last.is_none() {
            work += horizontal.len() + vertical.len();
            if work > WORK {
                return None;
            }
            let sides = (enclosing(&vertical, x, y), enclosing(&horizontal, y, x));
            if let (Some((left, right)), Some((bottom, top))) = sides {
                let key = [left, right, bottom, top].map(f32::to_bits);
                let cell = *known.entry(key).or_insert(cells.len());
                if cell == cells.len() {
                    let glyphs = Vec::new();
                    cells.push(Cell {
                        left,
                        right,
                        bottom,
                        top,
                        glyphs,
                    });
                }
                last = Some(cell);
            }
        }
        if let Some(cell) = last {
            cells[cell].glyphs.push(*at);
        }
    }
    let is_blank = |at: &u32| lines::is_blank(&glyphs[*at as usize]);
    cells.retain(|cell| !cell.glyphs.iter().all(is_blank));
    Some(cells)
}

impl Cell {
    fn holds(&self, x: f32, y: f32) -> bool {
        self.left <= x && x <= self.right && self.bottom <= y && y <= self.top
    }
}

/// Lines in order of position. The lines of adjacent borders get the same position.
fn snapped(rules: &[Rule]) -> Vec<Rule> {
    let mut rules = rules.to_vec();
    rules.retain(|rule| rule.at.is_finite() && rule.from.is_finite() && rule.to.is_finite());
    rules.sort_by(|a, b| a.at.total_cmp(&b.at));
    let mut first = f32::NEG_INFINITY;
    for rule in &mut rules {
        if rule.at - first > BORDERS {
            first = rule.at;
        }
        rule.at = first;
    }
    rules
}

/// The places of the closest lines on both sides of `at` that pass `along`.
fn enclosing(rules: &[Rule], at: f32, along: f32) -> Option<(f32, f32)> {
    let middle = rules.partition_point(|rule| rule.at <= at);
    let passes = |rule: &&Rule| rule.from - BORDERS <= along && along <= rule.to + BORDERS;
    let before = rules[..middle].iter().rev().find(passes)?;
    let behind = rules[middle..].iter().find(passes)?;
    Some((before.at, behind.at))
}
