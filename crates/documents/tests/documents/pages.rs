//! PDF files with their expected words, and hostile ones.

use std::time::Instant;

use riffle_documents::{DocumentError, Limits};
use riffle_testing::documents::{pdf, pdf_of_streams};

use crate::kinds::squeezed;
use crate::{place, read_one, read_within};

macro_rules! fixture {
    ($name:literal) => {
        &include_bytes!(concat!("../fixtures/", $name, ".pdf"))[..]
    };
}

#[test]
fn every_operator_and_every_font_keeps_its_words() {
    for (file, text) in [
        (
            fixture!("quote-operator"),
            "Line one\nLine two is lost\nLine three is lost\nLine four is lost\nLine five\n",
        ),
        (
            fixture!("p11_tounicode_partial"),
            "Before the formula.\n\n<⋆\n\nAfter the formula.\n",
        ),
        (fixture!("p12_differences"), "Hello fiflé€ ß\n"),
        (fixture!("p18_gbk"), "你好\n"),
        (fixture!("p20_unijis"), "日本\n"),
        (fixture!("cid_STSong-Light"), "春眠不觉晓处处闻啼鸟\n"),
        (fixture!("parent_loop"), "Hello world of pages\n"),
        (fixture!("xobj_self"), "Hello world of pages\n"),
    ] {
        assert_eq!(read_one("a.pdf", file).unwrap().text, text);
    }
    let form = read_one("a.pdf", fixture!("form")).unwrap().text;
    assert!(
        form.contains("Name of applicant:") && form.contains("Jane Quimby Doe") && form.contains("Blue whale"),
        "{form}"
    );
}

#[test]
fn columns_that_were_drawn_row_by_row_are_read_one_after_another() {
    let text = read_one("a.pdf", fixture!("rowwise")).unwrap().text;
    let (left, right) = text.split_once("right0").expect("both columns");
    assert!(left.contains("left5") && !right.contains("left"), "{text}");
}

#[test]
fn a_paper_is_read_by_columns_with_chapters_labels_and_without_its_headers() {
    let document = read_one("a.pdf", fixture!("paper")).unwrap();
    let text = &document.text;
    assert!(
        text.contains("wrote a long letter to the harbour about the well-known weather"),
        "{text}"
    );
    assert!(
        text.find("not yet over").unwrap() < text.find("Nobody in the harbour").unwrap(),
        "{text}"
    );
    assert_eq!(text.matches("Letters from a Harbour").count(), 1, "{text}");
    assert_eq!(place(&document, "captain"), "page 1, labelled i, chapter \"Loomings\"");
    assert_eq!(place(&document, "Only one"), "page 3, labelled 1, chapter \"The End\"");
    let warnings = document.warnings.join("\n");
    assert!(
        warnings.contains("1 of 4 pages are pictures without text: 4"),
        "{warnings}"
    );
    assert!(
        warnings.contains("headers and footers are left out: \"Letters from a Harbour\" on 3 pages"),
        "{warnings}"
    );
}

#[test]
fn hostile_files_are_refused_or_read_in_little_time() {
    let start = Instant::now();
    for file in [fixture!("xobj_laughs"), fixture!("cmap_range"), fixture!("xref_w0")] {
        if let Err(error) = read_one("a.pdf", file) {
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }
    let deep = |open: &str| format!("BT /F1 12 Tf 72 720 Td (kept) Tj ET {}", open.repeat(500_000)).into_bytes();
    for open in ["q ", "[", "<<", "(", "BT ", "/a BMC "] {
        let document = read_one("a.pdf", &pdf_of_streams(&[deep(open)], ""));
        assert!(
            document.is_ok_and(|document| document.text.starts_with("kept")),
            "{open}"
        );
    }
    // The reading stays far below the time limit, even on a busy machine.
    assert!(start.elapsed() < Limits::default().time);
}

#[test]
fn a_bomb_of_any_filter_is_refused() {
    let limits = Limits {
        expanded_bytes: 1 << 20,
        ..Limits::default()
    };
    // Two bytes of run-length data expand to 128.
    let run_length = [129u8, b' '].repeat(20_000);
    for (bomb, filter) in [
        (squeezed(&run_length), " /Filter [/FlateDecode /RunLengthDecode]"),
        (run_length, " /Filter /RunLengthDecode"),
    ] {
        let error = read_within("a.pdf", &pdf_of_streams(&[bomb], filter), &limits).unwrap_err();
        assert!(matches!(error, DocumentError::TooMuchInside { .. }), "{error}");
    }
}

#[test]
fn pages_with_the_same_words_are_all_kept() {
    let pages: Vec<String> = (1..=200).map(|page| format!("This is page {page}")).collect();
    let pages: Vec<&str> = pages.iter().map(String::as_str).collect();
    let document = read_one("a.pdf", &pdf(&pages)).unwrap();
    assert_eq!(document.text.matches("This is page").count(), 200);
    assert_eq!(place(&document, "page 117\n"), "page 117");
}

#[test]
fn pages_and_chapters_of_a_paper_are_ranges_of_its_text() {
    let document = read_one("a.pdf", fixture!("paper")).unwrap();
    assert_eq!(document.page_count(), 4);
    let chapter = document.chapter_range("the end").unwrap();
    assert!(document.text[chapter].contains("Only one"));
    let pages = document.pages_range(1, 2).unwrap();
    assert_eq!(pages.start, 0);
    assert_eq!(document.labelled_pages_range("i", "ii").unwrap(), pages);
    assert!(document.pages_range(4, 4).unwrap_err().to_string().contains("no text"));
    assert!(
        document
            .chapter_range("whales")
            .unwrap_err()
            .to_string()
            .contains("Loomings")
    );
}
