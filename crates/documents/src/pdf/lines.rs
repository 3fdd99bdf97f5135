//! From letters to rows: groups letters into words, and words into lines.

use super::drawn::Glyph;

/// Adjacent words on a line, without a gap that could separate columns.
#[derive(Debug, Clone)]
pub(super) struct Segment {
    pub(super) left: f32,
    pub(super) right: f32,
    pub(super) base: f32,
    pub(super) size: f32,
    /// The letters, as indices into the page's list.
    pub(super) glyphs: Vec<u32>,
    /// The index of the segment's column in a table, from 1.
    pub(super) column: u32,
    /// The lines of the cells, if it is a row of a table with lines between its cells.
    pub(super) cells: Vec<Segment>,
}

/// Segments on one line of the page, from the left.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) base: f32,
    pub(super) size: f32,
    pub(super) segments: Vec<Segment>,
}

/// A gap that separates segments, in font sizes.
const SEGMENT_GAP: f32 = 0.7;

/// Moves accents over capitals to the line of their letters, which come before or after them.
pub(super) fn level_accents(glyphs: &mut [Glyph]) {
    for at in 0..glyphs.len() {
        if !super::normal::is_accent(&glyphs[at].text) {
            continue;
        }
        let accent = &glyphs[at];
        let beside = [Some(at + 1), at.checked_sub(1)].into_iter().flatten();
        let letter = beside.filter_map(|other| glyphs.get(other)).find(|letter| {
            let over = accent.right.min(letter.right) - accent.left.max(letter.left);
            let rise = accent.base - letter.base;
            letter.turn == accent.turn
                && over > 0.4 * (accent.right - accent.left)
                && rise.abs() < 0.5 * accent.size
                && letter.text.chars().all(char::is_alphabetic)
        });
        if let Some(base) = letter.map(|letter| letter.base) {
            glyphs[at].base = base;
        }
    }
}

/// The rows of letters in one direction, from the top.
pub(super) fn rows(glyphs: &[Glyph], chosen: &[u32]) -> Vec<Row> {
    let mut runs = runs(glyphs, chosen);
    level_scripts(&mut runs);
    runs.sort_by(|a, b| b.base.total_cmp(&a.base));
    let mut rows: Vec<Vec<Segment>> = Vec::new();
    for run in runs {
        let joins = rows.last().and_then(|row| row.first()).is_some_and(|first| {
            // The next row of smaller letters may be as close as their height, so the smaller size decides.
            first.base - run.base <= 0.3 * first.size.min(run.size).max(1.0)
        });
        match rows.last_mut().filter(|_| joins) {
            Some(row) => row.push(run),
            None => rows.push(vec![run]),
        }
    }
    with_scripts(rows).into_iter().map(|row| merged(row, glyphs)).collect()
}

/// Merges rows of small letters into the rows they belong to.
fn with_scripts(rows: Vec<Vec<Segment>>) -> Vec<Vec<Segment>> {
    let mut out: Vec<Vec<Segment>> = Vec::with_capacity(rows.len());
    let is_script_of =
        |small: &[Segment], row: &[Segment]| small.iter().all(|run| row.iter().any(|other| is_script(run, other)));
    for row in rows {
        match out.last_mut() {
            Some(above) if row.len() * above.len() < 10_000 && is_script_of(&row, above) => above.extend(row),
            Some(above) if row.len() * above.len() < 10_000 && is_script_of(above, &row) => {
                let scripts = std::mem::replace(above, row);
                above.extend(scripts);
            }
            _ => out.push(row),
        }
    }
    out
}

pub(super) fn is_blank(glyph: &Glyph) -> bool {
    glyph.text.chars().all(char::is_whitespace)
}

/// Letters drawn in sequence.
fn runs(glyphs: &[Glyph], chosen: &[u32]) -> Vec<Segment> {
    let mut runs: Vec<Segment> = Vec::new();
    // The end of the last letter, and true if blanks follow it.
    let (mut pen, mut has_blank) = (0.0f32, false);
    for at in chosen {
        let glyph = &glyphs[*at as usize];
        let size = glyph.size;
        let last = runs
            .last_mut()
            .filter(|run| (run.base - glyph.base).abs() <= 0.12 * size && alike(run.size, size));
        if is_blank(glyph) {
            if let Some(run) = last.filter(|_| glyph.left > pen - size && glyph.left < pen + size) {
                run.glyphs.push(*at);
                pen = glyph.right.max(pen);
                has_blank = true;
            }
            continue;
        }
        if let Some(run) = last {
            let gap = glyph.left - pen;
            let is_wide = has_blank && glyph.left - run.right > 1.2 * size;
            let follows = gap > -0.4 * size && gap < SEGMENT_GAP * size && !is_wide;
            // Right-to-left lines may be drawn in reading order.
            let precedes = (run.left - glyph.right).abs() < 0.3 * size;
            let previous = run.glyphs.last().map(|last| &glyphs[*last as usize]);
            let is_twice = previous.is_some_and(|previous| {
                previous.text == glyph.text
                    && (previous.left - glyph.left).abs() < 0.15 * size
                    && glyph.right > glyph.left
            });
            if is_twice {
                continue;
            }
            if follows || precedes {
                run.glyphs.push(*at);
                run.left = run.left.min(glyph.left);
                run.right = run.right.max(glyph.right);
                pen = glyph.right;
                has_blank = false;
                continue;
            }
        }
        runs.push(Segment {
            left: glyph.left,
            right: glyph.right,
            base: glyph.base,
            size,
            glyphs: vec![*at],
            column: 0,
            cells: Vec::new(),
        });
        (pen, has_blank) = (glyph.right, false);
    }
    runs
}

fn alike(a: f32, b: f32) -> bool {
    a < b * 1.2 && b < a * 1.2
}

/// Moves indices and exponents to the line of the adjacent letters.
fn level_scripts(runs: &mut [Segment]) {
    for at in 0..runs.len() {
        let beside = [at.checked_sub(1), Some(at + 1)].into_iter().flatten();
        let line = beside
            .filter_map(|other| runs.get(other))
            .find(|other| is_script(&runs[at], other));
        if let Some(base) = line.map(|other| other.base) {
            runs[at].base = base;
        }
    }
}

/// True for an index or an exponent next to its letters.
fn is_script(run: &Segment, other: &Segment) -> bool {
    let gap = (run.left - other.right).max(other.left - run.right);
    let rise = (run.base - other.base).abs();
    run.size < 0.9 * other.size && rise < 0.7 * other.size && gap < 0.4 * other.size
}

/// A row with close runs merged.
fn merged(mut runs: Vec<Segment>, glyphs: &[Glyph]) -> Row {
    runs.sort_by(|a, b| a.left.total_cmp(&b.left));
    let base = runs.first().map_or(0.0, |run| run.base);
    let size = runs.iter().map(|run| run.size).fold(0.0, f32::max);
    let mut segments: Vec<Segment> = Vec::new();
    for run in runs {
        if let Some(last) = segments.last_mut() {
            // The same words drawn twice look bold.
            if is_shadow(last, &run, glyphs) {
                continue;
            }
            if run.left - last.right < SEGMENT_GAP * last.size.max(run.size) {
                last.glyphs.extend(run.glyphs);
                last.right = last.right.max(run.right);
                last.size = last.size.max(run.size);
                continue;
            }
        }
        segments.push(run);
    }
    Row { base, size, segments }
}

fn is_shadow(one: &Segment, other: &Segment, glyphs: &[Glyph]) -> bool {
    let near = 0.2 * one.size;
    (one.left - other.left).abs() < near
        && (one.right - other.right).abs() < near
        && one.glyphs.len() == other.glyphs.len()
        && one
            .glyphs
            .iter()
            .zip(&other.glyphs)
            .all(|(a, b)| glyphs[*a as usize].text == glyphs[*b as usize].text)
}

/// The text of a segment, with spaces at gaps between letters.
pub(super) fn text(segment: &Segment, glyphs: &[Glyph], is_rtl: bool) -> String {
    let mut order = segment.glyphs.clone();
    let has_rtl = order
        .iter()
        .any(|at| glyphs[*at as usize].text.chars().any(super::bidi::is_rtl));
    if has_rtl {
        order = super::bidi::by_place(&order, glyphs);
    }
    let gap = word_gap(&order, glyphs);
    let mut pieces: Vec<String> = Vec::with_capacity(order.len());
    let (mut end, mut is_apart) = (f32::NEG_INFINITY, false);
    let mut before: Option<&Glyph> = None;
    for at in order {
        let glyph = &glyphs[at as usize];
        if is_blank(glyph) {
            // Blanks without text belong to letters with replacement text.
            is_apart |= !glyph.text.is_empty();
            end = if glyph.text.is_empty() {
                end.max(glyph.right)
            } else {
                end
            };
            continue;
        }
        let width = before.map_or(0.0, |before| (before.right - before.left).min(glyph.right - glyph.left));
        let is_over = !is_apart && before.is_some_and(|before| glyph.left < before.right - 0.4 * width);
        let whole = before
            .filter(|_| is_over)
            .and_then(|before| super::normal::accented(&before.text, &glyph.text));
        before = Some(glyph);
        if let (Some(whole), Some(last)) = (whole, pieces.last_mut()) {
            *last = whole;
            end = end.max(glyph.right);
            continue;
        }
        if !pieces.is_empty() && (is_apart || glyph.left - end > gap * glyph.size) {
            pieces.push(" ".to_owned());
        }
        pieces.push(glyph.text.to_string());
        end = end.max(glyph.right);
        // After a letter far to the left, gaps are measured from that letter.
        if glyph.right < end - 2.0 * glyph.size {
            end = glyph.right;
        }
        is_apart = false;
    }
    let pieces = if has_rtl {
        super::bidi::logical(pieces, is_rtl)
    } else {
        pieces
    };
    super::normal::cleaned(&pieces)
}

/// The gap between letters that separates words, in font sizes.
fn word_gap(order: &[u32], glyphs: &[Glyph]) -> f32 {
    let mut gaps: Vec<f32> = Vec::with_capacity(order.len());
    let mut has_blanks = false;
    for pair in order.windows(2) {
        let (a, b) = (&glyphs[pair[0] as usize], &glyphs[pair[1] as usize]);
        has_blanks |= is_blank(a) && !a.text.is_empty();
        if !is_blank(a) && !is_blank(b) {
            gaps.push((b.left - a.right) / b.size);
        }
    }
    let least = if has_blanks { 0.22 } else { 0.14 };
    if gaps.len() < 4 {
        return least;
    }
    let middle = gaps.len() / 2;
    let (_, median, _) = gaps.select_nth_unstable_by(middle, f32::total_cmp);
    // Widely spaced letters still form words.
    if *median > 0.08 { *median + least } else { least }
}
