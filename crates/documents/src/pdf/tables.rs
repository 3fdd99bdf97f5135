//! Tables: cells of several lines are joined, row by row.

use super::columns::Gutter;
use super::lines::{Row, Segment};

/// Lines of one cell are at most this much farther apart than the closest ones.
const SAME_CELL: f32 = 1.1;

/// The greatest distance of lines within a cell, in font sizes.
const LINES_APART: f32 = 2.0;

/// Lines of adjacent rows are at least this much farther apart, if there is space between rows.
const OTHER_ROW: f32 = 1.15;

/// The rows of a table between its gutters; each segment has its column's index.
pub(super) fn rows(mut rows: Vec<Row>, gutters: &[Gutter]) -> Vec<Row> {
    for segment in rows.iter_mut().flat_map(|row| &mut row.segments) {
        segment.column = gutters
            .iter()
            .filter(|gutter| gutter.right <= segment.left + 0.01)
            .count() as u32
            + 1;
    }
    let starts = if let Some(pitch) = spaced_pitch(&rows, gutters.len() + 1) {
        starts_by_space(&rows, gutters.len() + 1, pitch)
    } else {
        rows.iter().map(is_complete).collect()
    };
    let mut merged: Vec<Row> = Vec::new();
    for (row, is_start) in rows.into_iter().zip(starts) {
        match merged.last_mut().filter(|_| !is_start) {
            Some(above) => {
                above.size = above.size.max(row.size);
                above.segments.extend(row.segments);
            }
            None => merged.push(row),
        }
    }
    for row in &mut merged {
        // Lines within a column keep their order.
        row.segments.sort_by_key(|segment| segment.column);
    }
    merged
}

/// False for a single cell after the first column: it continues the row above. Rows of a group leave the first cell
/// empty.
fn is_complete(row: &Row) -> bool {
    let mut columns = row.segments.iter().map(|segment| segment.column);
    columns
        .next()
        .is_none_or(|first| first == 1 || columns.any(|column| column != first))
}

/// Distances between a line and the next one of the same column, with the indices of both rows.
fn pitches(rows: &[Row], columns: usize) -> Vec<(f32, usize, usize)> {
    let mut last: Vec<Option<usize>> = vec![None; columns + 1];
    let mut pitches = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let mut before = 0;
        for Segment { column, .. } in &row.segments {
            if *column == before {
                continue;
            }
            before = *column;
            let slot = &mut last[(*column as usize).min(columns)];
            if let Some(above) = slot.replace(at) {
                pitches.push((rows[above].base - row.base, above, at));
            }
        }
    }
    pitches
}

/// The distance of lines within a cell, if rows are farther apart than lines.
fn spaced_pitch(rows: &[Row], columns: usize) -> Option<f32> {
    let mut distances: Vec<f32> = pitches(rows, columns).iter().map(|pitch| pitch.0).collect();
    distances.sort_by(f32::total_cmp);
    let least = *distances.get(distances.len() / 20)?;
    let same = distances.iter().filter(|pitch| **pitch <= SAME_CELL * least).count();
    // A multiple of a line's distance shows no space between rows: a cell beside may just have more lines.
    let is_multiple = |pitch: f32| (pitch / least - (pitch / least).round()).abs() < 0.05;
    let (multiple, other): (Vec<f32>, Vec<f32>) = distances
        .iter()
        .filter(|pitch| **pitch >= OTHER_ROW * least)
        .partition(|pitch| is_multiple(**pitch));
    let between = distances.len() - same - other.len() - multiple.len();
    let size = rows.iter().map(|row| row.size).fold(0.0, f32::max);
    let are_lines = least > 0.0 && least <= LINES_APART * size;
    (are_lines && same * 5 >= distances.len() && other.len() >= 2 && between * 10 <= distances.len()).then_some(least)
}

/// For each row, true if no cell continues across its upper edge.
fn starts_by_space(rows: &[Row], columns: usize, pitch: f32) -> Vec<bool> {
    let mut starts = vec![true; rows.len()];
    for (distance, above, below) in pitches(rows, columns) {
        if distance <= SAME_CELL * pitch {
            starts[above + 1..=below].fill(false);
        }
    }
    // A line between two lines of an adjacent cell belongs to their row; so does one at less than a line's distance.
    for at in 1..rows.len() {
        if rows[at - 1].base - rows[at].base < 0.75 * pitch {
            starts[at] = false;
        }
    }
    starts
}
