//! Tables of PDF files, drawn by a small writer.

use riffle_documents::DocumentError;
use riffle_testing::documents::pdf_of_streams;

use crate::read_one;

/// A page of letters at their places; each is left, base and text.
fn words(placed: &[(u32, u32, &str)]) -> String {
    let lines = placed
        .iter()
        .map(|(left, base, text)| format!("1 0 0 1 {left} {base} Tm ({text}) Tj "));
    format!("BT /F1 10 Tf {}ET\n", lines.collect::<String>())
}

fn text(content: &str) -> String {
    read_one("a.pdf", &pdf_of_streams(&[content.into()], "")).unwrap().text
}

/// Two rows of two cells, 130 units wide and 40 high, with lines of both cells at other heights.
fn two_by_two() -> String {
    words(&[
        (72, 700, "Left of above"),
        (72, 688, "and more of it"),
        (204, 694, "Right of above"),
        (72, 654, "Left of below"),
        (204, 660, "Right of below"),
        (204, 648, "and its end"),
    ])
}

const READ: &str = "Left of above and more of it | Right of above\n\
                    Left of below | Right of below and its end\n";

#[test]
fn lines_between_the_cells_of_a_table_part_them_however_they_are_drawn() {
    // Lines over the whole table.
    let stroked: String = [675, 635, 715]
        .map(|y| format!("70 {y} m 330 {y} l S "))
        .into_iter()
        .chain([70, 200, 330].map(|x| format!("{x} 635 m {x} 715 l S ")))
        .collect();
    // A border for each cell.
    let boxes = "70 676 129 39 re 201 676 129 39 re 70 635 129 39 re 201 635 129 39 re S ".to_owned();
    // Thin filled boxes, in other units.
    let filled: String = [675, 635, 715]
        .map(|y| format!("700 {y}0 2600 8 re f "))
        .into_iter()
        .chain([70, 200, 330].map(|x| format!("{x}0 6350 8 800 re f ")))
        .collect();
    for lines in [stroked, boxes, format!("q .1 0 0 .1 0 0 cm {filled} Q ")] {
        assert_eq!(text(&(lines + &two_by_two())), READ);
    }
}

#[test]
fn a_frame_around_prose_is_no_table() {
    let frame = "60 600 300 120 re S 60 660 m 360 660 l S ";
    let prose = words(&[(72, 700, "A sentence in a frame"), (72, 640, "Another one below it")]);
    assert_eq!(
        text(&(frame.to_owned() + &prose)),
        "A sentence in a frame\n\nAnother one below it\n"
    );
}

#[test]
fn fields_far_below_each_other_stay_beside_their_labels() {
    let placed: Vec<(u32, u32, String)> = (0..6u32)
        .flat_map(|row| {
            let base = 700 - 40 * row - if row == 5 { 60 } else { 0 };
            [
                (72, base, format!("Question {row}")),
                (250, base - 3, format!("Answer {row}")),
            ]
        })
        .collect();
    let placed: Vec<(u32, u32, &str)> = placed.iter().map(|(x, y, text)| (*x, *y, text.as_str())).collect();
    let text = text(&words(&placed));
    for row in 0..6 {
        assert!(text.contains(&format!("Question {row} | Answer {row}\n")), "{text}");
    }
}

#[test]
fn the_last_line_of_a_paragraph_hides_no_column_of_the_table_below() {
    let content = words(&[
        (72, 700, "A short line over two of the columns"),
        (72, 670, "Item 0"),
        (170, 670, "language"),
        (300, 670, "841"),
        (170, 658, "column"),
        (72, 646, "Item 1"),
        (170, 646, "office"),
        (300, 646, "526"),
        (72, 634, "Item 2"),
        (170, 634, "paragraph"),
        (300, 634, "856"),
    ]);
    assert_eq!(
        text(&content),
        "A short line over two of the columns\n\nItem 0 | language column | 841\nItem 1 | office | 526\nItem 2 | paragraph | 856\n"
    );
}

#[test]
fn one_string_of_more_letters_than_a_page_holds_is_refused() {
    let content = format!("BT /F1 1 Tf ({}) Tj", "A".repeat((1 << 20) + 2));
    let error = read_one("a.pdf", &pdf_of_streams(&[content.into()], "")).unwrap_err();
    assert!(matches!(error, DocumentError::TooMuchWork { .. }), "{error}");
}
