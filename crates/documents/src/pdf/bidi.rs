//! Right-to-left lines: converts the order on the page to reading order.

use super::drawn::Glyph;

/// True for letters of right-to-left scripts.
pub(super) fn is_rtl(c: char) -> bool {
    matches!(c,
        '\u{590}'..='\u{5ff}' | '\u{600}'..='\u{65f}' | '\u{66a}'..='\u{6ef}' | '\u{6fa}'..='\u{8ff}'
        | '\u{fb1d}'..='\u{fdff}' | '\u{fe70}'..='\u{fefc}' | '\u{10800}'..='\u{10fff}' | '\u{1e800}'..='\u{1efff}')
        && !matches!(c, '\u{200e}' | '\u{200f}')
}

/// True for signs above and below letters of these scripts.
fn is_mark(c: char) -> bool {
    matches!(c, '\u{591}'..='\u{5bd}' | '\u{5bf}' | '\u{5c1}'..='\u{5c7}' | '\u{610}'..='\u{61a}' | '\u{64b}'..='\u{65f}' | '\u{670}' | '\u{6d6}'..='\u{6ed}')
}

fn is_ltr(c: char) -> bool {
    c.is_alphanumeric() && !is_rtl(c)
}

fn is_number(c: char) -> bool {
    c.is_ascii_digit() || matches!(c, '\u{660}'..='\u{669}' | '\u{6f0}'..='\u{6f9}')
}

/// Letters from the left, each sign after its letter.
pub(super) fn by_place(order: &[u32], glyphs: &[Glyph]) -> Vec<u32> {
    let glyph = |at: &u32| &glyphs[*at as usize];
    let middle = |at: &u32| (glyph(at).left + glyph(at).right) / 2.0;
    let is_sign = |at: &u32| !glyph(at).text.is_empty() && glyph(at).text.chars().all(is_mark);
    let mut letters: Vec<u32> = order.iter().filter(|at| !is_sign(at)).copied().collect();
    letters.sort_by(|a, b| middle(a).total_cmp(&middle(b)));
    let mut signs: Vec<Vec<u32>> = vec![Vec::new(); letters.len()];
    for sign in order.iter().filter(|at| is_sign(at)) {
        let behind = letters.partition_point(|letter| middle(letter) < middle(sign));
        let near = [behind.checked_sub(1), Some(behind)]
            .into_iter()
            .flatten()
            .filter(|at| *at < letters.len());
        let distance = |at: &usize| (middle(&letters[*at]) - middle(sign)).abs();
        if let Some(nearest) = near.min_by(|a, b| distance(a).total_cmp(&distance(b))) {
            signs[nearest].push(*sign);
        }
    }
    // The order is reversed later, so signs come before their letters here.
    let pairs = letters.into_iter().zip(signs);
    pairs
        .flat_map(|(letter, signs)| signs.into_iter().rev().chain([letter]))
        .collect()
}

/// Pieces in reading order, from their order on the page.
pub(super) fn logical(pieces: Vec<String>, is_rtl_page: bool) -> Vec<String> {
    let (mut right, mut left) = (0, 0);
    for c in pieces.iter().flat_map(|piece| piece.chars()) {
        right += usize::from(is_rtl(c));
        left += usize::from(is_ltr(c) && !is_number(c));
    }
    let is_rtl_line = right > left || (is_rtl_page && right * 3 > left);
    let kinds: Vec<TextClass> = pieces.iter().map(|piece| kind(piece)).collect();
    let (inner, outer) = if is_rtl_line {
        (TextClass::Left, TextClass::Right)
    } else {
        (TextClass::Right, TextClass::Left)
    };
    let runs = runs(&kinds, inner, outer);
    let mut read: Vec<Vec<String>> = Vec::new();
    let mut pieces = pieces.into_iter();
    for (is_inner, length) in runs {
        let run: Vec<String> = pieces.by_ref().take(length).collect();
        let is_turned = is_inner != is_rtl_line;
        read.push(if is_turned { turned(run) } else { run });
    }
    if is_rtl_line {
        read.reverse();
    }
    with_brackets(read.concat())
}

/// Pieces with brackets that open before they close. Some programs name a bracket by its look, others by its meaning.
fn with_brackets(pieces: Vec<String>) -> Vec<String> {
    if opens_first(pieces.iter().map(String::as_str)) {
        return pieces;
    }
    let swapped: Vec<String> = pieces.iter().cloned().map(mirrored).collect();
    if opens_first(swapped.iter().map(String::as_str)) {
        swapped
    } else {
        pieces
    }
}

/// True if every round bracket opens before it closes.
fn opens_first<'p>(pieces: impl Iterator<Item = &'p str>) -> bool {
    let mut open = 0i32;
    for piece in pieces {
        match piece {
            "(" | "[" | "{" => open += 1,
            ")" | "]" | "}" => open -= 1,
            _ => {}
        }
        if open < 0 {
            return false;
        }
    }
    true
}

/// Directional class of a piece of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TextClass {
    Left,
    Right,
    Number,
    Space,
    Neutral,
}

fn kind(piece: &str) -> TextClass {
    for c in piece.chars() {
        if is_number(c) {
            return TextClass::Number;
        }
        if is_rtl(c) {
            return TextClass::Right;
        }
        if is_ltr(c) {
            return TextClass::Left;
        }
    }
    if piece == " " {
        TextClass::Space
    } else {
        TextClass::Neutral
    }
}

/// Adjacent pieces of one direction as runs: `true` for a run against the line, and its number of pieces.
fn runs(kinds: &[TextClass], inner: TextClass, outer: TextClass) -> Vec<(bool, usize)> {
    let mut flags = vec![false; kinds.len()];
    let is_inner = |kind: TextClass| kind == inner || (kind == TextClass::Number && inner == TextClass::Left);
    let mut last: Option<usize> = None;
    for (at, kind) in kinds.iter().enumerate() {
        if is_inner(*kind) {
            flags[at] = true;
            // Pieces between two pieces of a run belong to the run. A single space separates two numbers.
            if let Some(last) = last {
                let are_numbers = kinds[last] == TextClass::Number && *kind == TextClass::Number;
                if !(are_numbers && kinds[last..at].contains(&TextClass::Space)) {
                    flags[last..at].fill(true);
                }
            }
            last = Some(at);
        } else if *kind == outer {
            last = None;
        } else if *kind == TextClass::Number && inner == TextClass::Right && last.is_some() {
            // A number within right-to-left words.
            let goes_on = kinds[at..]
                .iter()
                .find(|kind| !matches!(kind, TextClass::Number | TextClass::Neutral | TextClass::Space));
            if goes_on != Some(&TextClass::Right) {
                last = None;
            }
        }
    }
    let mut runs: Vec<(bool, usize)> = Vec::new();
    for flag in flags {
        match runs.last_mut() {
            // Consecutive pieces of one direction form a run.
            Some((known, length)) if *known == flag => *length += 1,
            _ => runs.push((flag, 1)),
        }
    }
    runs
}

/// A reversed run; its numbers keep their order, and its brackets are mirrored.
fn turned(run: Vec<String>) -> Vec<String> {
    let mut out: Vec<String> = Vec::with_capacity(run.len());
    let mut number: Vec<String> = Vec::new();
    for piece in run.into_iter().rev() {
        let is_in_number = kind(&piece) == TextClass::Number
            || (!number.is_empty() && matches!(piece.as_str(), "." | "," | ":" | "/" | "٫" | "٬"));
        if is_in_number {
            number.push(piece);
            continue;
        }
        flush(&mut number, &mut out);
        out.push(mirrored(piece));
    }
    flush(&mut number, &mut out);
    out
}

/// Adds a number that was collected from its end, without a leading sign.
fn flush(number: &mut Vec<String>, out: &mut Vec<String>) {
    let digits = number
        .iter()
        .rposition(|piece| kind(piece) == TextClass::Number)
        .map_or(0, |at| at + 1);
    let behind = number.split_off(digits);
    out.extend(number.drain(..).rev());
    out.extend(behind);
}

fn mirrored(piece: String) -> String {
    let other = match piece.as_str() {
        "(" => ")",
        ")" => "(",
        "[" => "]",
        "]" => "[",
        "{" => "}",
        "}" => "{",
        "«" => "»",
        "»" => "«",
        "<" => ">",
        ">" => "<",
        _ => return piece,
    };
    other.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str, is_rtl_page: bool) -> String {
        logical(line.chars().map(String::from).collect(), is_rtl_page).concat()
    }

    #[test]
    fn lines_from_right_to_left_are_read_with_numbers_and_words_of_the_other_direction() {
        assert_eq!(read("םלוע םולש", false), "שלום עולם");
        assert_eq!(read("!PDF ץבוק הז", true), "זה קובץ PDF!");
        assert_eq!(read("12.5 ריחמ", true), "מחיר 12.5");
        assert_eq!(read("(אבג) ד", true), "ד (גבא)");
        assert_eq!(read("ד )גבא(", true), "(אבג) ד");
        assert_eq!(read("The word םולש is Hebrew", false), "The word שלום is Hebrew");
    }
}
