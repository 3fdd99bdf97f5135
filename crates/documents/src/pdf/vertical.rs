//! Top-to-bottom lines with upright letters: they are rotated like a page in landscape.

use super::drawn::Glyph;

/// The direction of top-to-bottom lines, in degrees.
const DOWNWARDS: i16 = -90;

/// Ratio of vertical to horizontal neighbours on a page with vertical writing.
const MOSTLY: usize = 3;

/// The middle of a letter above its line, in font sizes.
pub(super) const MIDDLE: f32 = 0.35;

/// Rotates upright letters drawn below one another, on a page with mostly vertical writing.
pub(super) fn turn(glyphs: &mut [Glyph]) {
    let upright: Vec<usize> = (0..glyphs.len())
        .filter(|at| glyphs[*at].turn == 0 && is_ideographic(&glyphs[*at]))
        .collect();
    let (mut below, mut beside) = (Vec::new(), 0);
    for pair in upright.windows(2) {
        let (one, other) = (&glyphs[pair[0]], &glyphs[pair[1]]);
        let size = one.size;
        let (right, down) = (other.left - one.left, one.base - other.base);
        if right.abs() < 0.3 * size && (0.5 * size..1.8 * size).contains(&down) {
            below.extend([pair[0], pair[1]]);
        } else if down.abs() < 0.2 * size && (0.3 * size..1.8 * size).contains(&right) {
            beside += 1;
        }
    }
    if below.len() / 2 < MOSTLY * beside.max(1) {
        return;
    }
    below.dedup();
    for at in below {
        let glyph = &mut glyphs[at];
        let middle = (glyph.left + glyph.right) / 2.0;
        (glyph.left, glyph.right) = (-glyph.base - glyph.size, -glyph.base);
        glyph.base = middle - MIDDLE * glyph.size;
        glyph.turn = DOWNWARDS;
    }
}

/// True for a letter or sign of a script with vertical writing.
fn is_ideographic(glyph: &Glyph) -> bool {
    glyph.text.chars().next().is_some_and(super::paragraphs::is_wide)
}
