//! Every kind of file: its text, its places, and its refusals.

use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use riffle_documents::{DocumentError, DocumentKind, Limits};

use crate::{place, read_one, read_within};
use riffle_testing::documents::{archive, docx, epub, epub_with, pdf, pdf_of_streams};

pub(crate) fn squeezed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).expect("memory");
    encoder.finish().expect("memory")
}

#[test]
fn pages_of_a_pdf_are_places() {
    let file = pdf(&["The ship sails.\nFrom Nantucket.", "The whale (white) waits."]);
    // The content decides, not the name.
    for name in ["a.pdf", "a.txt", "a"] {
        let document = read_one(name, &file).unwrap();
        assert_eq!(document.kind, DocumentKind::Pdf);
        assert_eq!(
            document.text,
            "The ship sails.\nFrom Nantucket.\n\nThe whale (white) waits.\n"
        );
        assert_eq!(place(&document, "Nantucket"), "page 1");
        assert_eq!(place(&document, "whale"), "page 2");
        assert_eq!(document.describe(&(0..document.text.len())), "pages 1–2");
    }
}

#[test]
fn compressed_pages_are_read_and_bombs_are_refused() {
    let page = b"BT /F1 12 Tf 72 720 Td (squeezed words) Tj ET";
    let file = pdf_of_streams(&[squeezed(page)], " /Filter /FlateDecode");
    assert_eq!(read_one("a.pdf", &file).unwrap().text, "squeezed words\n");
    let limits = Limits {
        expanded_bytes: 1 << 20,
        ..Limits::default()
    };
    let bomb = squeezed(&vec![b' '; 4 << 20]);
    for (bomb, filter) in [
        (bomb.clone(), " /Filter /FlateDecode"),
        (squeezed(&bomb), " /Filter [/FlateDecode /FlateDecode]"),
    ] {
        let error = read_within("a.pdf", &pdf_of_streams(&[bomb], filter), &limits).unwrap_err();
        assert!(matches!(error, DocumentError::TooMuchInside { .. }), "{error}");
    }
}

#[test]
fn a_pdf_of_pictures_and_an_encrypted_one_say_what_to_do() {
    let error = read_one("a.pdf", &pdf(&["", ""])).unwrap_err().to_string();
    assert!(
        error.contains("its 2 pages hold no text") && error.contains("ocrmypdf"),
        "{error}"
    );

    let error = read_one("a.pdf", include_bytes!("../fixtures/locked.pdf")).unwrap_err();
    assert!(matches!(error, DocumentError::Encrypted { .. }), "{error}");
    assert!(error.to_string().contains("remove the password"), "{error}");
    // Without a user's password everybody may read it.
    for file in [
        &include_bytes!("../fixtures/open-rc4.pdf")[..],
        include_bytes!("../fixtures/open-aes128.pdf"),
        include_bytes!("../fixtures/open-aes256.pdf"),
    ] {
        assert_eq!(read_one("a.pdf", file).unwrap().text, "secret\n");
    }
}

#[test]
fn chapters_of_an_epub_are_places() {
    let file = epub(&[
        ("Loomings", "Call me Ishmael.\n\nSome years ago."),
        ("The Chase &amp; end", "There she blows!"),
    ]);
    for name in ["a.epub", "a.zip", "a"] {
        let document = read_one(name, &file).unwrap();
        assert_eq!(document.kind, DocumentKind::Epub);
        assert_eq!(
            document.text,
            "Call me Ishmael.\n\nSome years ago.\n\nThere she blows!\n"
        );
        assert_eq!(place(&document, "Some years"), "chapter \"Loomings\"");
        assert_eq!(place(&document, "blows"), "chapter \"The Chase & end\"");
        assert!(document.warnings.is_empty());
    }
}

#[test]
fn an_epub_with_locked_chapters_is_refused_and_locked_fonts_are_not() {
    let locked = |part: &str| {
        format!(
            "<encryption><EncryptedData><CipherData><CipherReference URI=\"{part}\"/></CipherData></EncryptedData></encryption>"
        )
    };
    let chapters = [("One", "text")];
    let part = locked("OEBPS/text/c%200.xhtml");
    let error = read_one(
        "a.epub",
        &epub_with(&chapters, &[("META-INF/encryption.xml", part.as_bytes())]),
    )
    .unwrap_err();
    assert!(matches!(error, DocumentError::Encrypted { .. }), "{error}");
    let part = locked("OEBPS/fonts/a.otf");
    assert!(
        read_one(
            "a.epub",
            &epub_with(&chapters, &[("META-INF/encryption.xml", part.as_bytes())])
        )
        .is_ok()
    );
}

#[test]
fn parts_of_a_docx_are_those_that_its_relations_name() {
    let relation = |kind: &str, target: &str| {
        format!(
            r#"<Relationships><Relationship Id="r" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/{kind}" Target="{target}"/></Relationships>"#
        )
    };
    let paragraph = |text: &str| format!("<w:p><w:r><w:t>{text}</w:t></w:r></w:p>");
    let document = format!("<w:document><w:body>{}</w:body></w:document>", paragraph("Text."));
    let notes = format!("<w:footnotes>{}</w:footnotes>", paragraph("A note."));
    let (package, main) = (
        relation("officeDocument", "/word/document2.xml"),
        relation("footnotes", "notes7.xml"),
    );
    let file = archive(&[
        ("_rels/.rels", package.as_bytes()),
        ("word/document2.xml", document.as_bytes()),
        ("word/_rels/document2.xml.rels", main.as_bytes()),
        ("word/notes7.xml", notes.as_bytes()),
    ]);
    for name in ["a.docx", "a"] {
        assert_eq!(read_one(name, &file).unwrap().text, "Text.\n\nA note.\n");
    }
}

#[test]
fn a_sentence_that_was_moved_is_read_at_its_new_place_alone() {
    let body = "<w:document><w:body>\
        <w:p><w:moveFrom w:id='1'><w:r><w:t>Moved.</w:t></w:r></w:moveFrom><w:r><w:t>First.</w:t></w:r></w:p>\
        <w:p><w:r><w:t>Second. </w:t></w:r><w:moveTo w:id='2'><w:r><w:t>Moved.</w:t></w:r></w:moveTo></w:p>\
        </w:body></w:document>";
    let document = read_one("a.docx", &archive(&[("word/document.xml", body.as_bytes())])).unwrap();
    assert_eq!(document.text, "First.\n\nSecond. Moved.\n");
}

#[test]
fn headings_are_found_by_the_name_of_their_style_whatever_its_id() {
    let styles = "<w:styles><w:style w:type='paragraph' w:styleId='berschrift1'><w:name w:val='heading 1'/></w:style>\
        <w:style w:styleId='Textkrper'><w:name w:val='Body Text'/></w:style></w:styles>";
    let body = "<w:document><w:body>\
        <w:p><w:pPr><w:pStyle w:val='berschrift1'/></w:pPr><w:r><w:t>Hafen</w:t></w:r></w:p>\
        <w:p><w:pPr><w:pStyle w:val='Textkrper'/></w:pPr><w:r><w:t>Ein Schiff.</w:t></w:r></w:p></w:body></w:document>";
    let parts = [
        ("word/document.xml", body.as_bytes()),
        ("word/styles.xml", styles.as_bytes()),
    ];
    let document = read_one("a.docx", &archive(&parts)).unwrap();
    assert_eq!(place(&document, "Schiff"), "under \"Hafen\"");
}

#[test]
fn headings_tables_and_notes_of_a_docx_are_read() {
    let document = read_one("a.docx", &docx("Ships &amp; men", &["One  two.", "Three."])).unwrap();
    assert_eq!(document.kind, DocumentKind::Docx);
    assert_eq!(
        document.text,
        "Ships & men\n\nOne two.\n\nThree.\n\nleft | right\n\nA note.\n"
    );
    assert_eq!(place(&document, "Three"), "under \"Ships & men\"");
}

#[test]
fn elements_nested_without_end_cost_no_stack_in_any_part() {
    let deep = |name: &str, inner: &str| {
        let (open, close) = (format!("<{name}>"), format!("</{name}>"));
        format!("{}{inner}{}", open.repeat(200_000), close.repeat(200_000))
    };
    for name in ["w:tbl", "w:p", "w:t", "mc:Fallback", "any"] {
        let text = format!("<w:p><w:r><w:t>kept</w:t></w:r></w:p>{}", deep(name, ""));
        let xml = format!("<?xml version=\"1.0\"?><w:document xmlns:w=\"w\">{text}</w:document>");
        let parts = [
            ("word/document.xml", xml.as_bytes()),
            ("word/footnotes.xml", xml.as_bytes()),
        ];
        let document = read_one("a.docx", &archive(&parts)).expect(name);
        assert!(document.text.starts_with("kept"), "{name}");
    }
    for name in ["div", "pre", "ul", "svg", "h1"] {
        let book = epub_with(
            &[("one.xhtml", &format!("<p>kept</p>{}", deep(name, "")))],
            &[("META-INF/encryption.xml", deep("a", "").as_bytes())],
        );
        let document = read_one("a.epub", &book).expect(name);
        assert!(document.text.contains("kept"), "{name}");
        let page = format!("<body><p>kept</p>{}", deep(name, ""));
        assert!(
            read_one("a.html", page.as_bytes()).expect(name).text.contains("kept"),
            "{name}"
        );
    }
}

#[test]
fn an_archive_that_unpacks_to_too_much_is_refused() {
    let limits = Limits {
        expanded_bytes: 1 << 20,
        ..Limits::default()
    };
    let bomb = vec![b' '; 4 << 20];
    let file = archive(&[("word/document.xml", &bomb)]);
    let error = read_within("a.docx", &file, &limits).unwrap_err();
    assert!(matches!(error, DocumentError::TooMuchInside { .. }), "{error}");
    // Entities that refer to each other are not expanded.
    let entities: String = (1..30)
        .map(|at| format!("<!ENTITY e{at} \"&e{};&e{};\">", at - 1, at - 1))
        .collect();
    let body = format!(
        "<?xml version=\"1.0\"?><!DOCTYPE w [<!ENTITY e0 \"ha\">{entities}]><w:document><w:p><w:t>a&e29;b</w:t></w:p></w:document>"
    );
    let document = read_one("a.docx", &archive(&[("word/document.xml", body.as_bytes())])).unwrap();
    assert_eq!(document.text, "ab\n");
}

#[test]
fn other_files_are_refused_by_what_they_are() {
    let binary = read_one("a.bin", b"\x7fELF\0\0\x01").unwrap_err();
    assert!(matches!(binary, DocumentError::Binary { .. }), "{binary}");
    let archive = read_one("a.zip", &archive(&[("a.txt", b"x")])).unwrap_err();
    assert!(matches!(archive, DocumentError::Binary { .. }), "{archive}");
    let old = read_one("a.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1rest").unwrap_err();
    assert!(old.to_string().contains("save it as .docx"), "{old}");
    let wrong = read_one("a.txt", b"caf\xe9 au lait").unwrap_err();
    assert!(matches!(wrong, DocumentError::NotUtf8 { at: 3, .. }), "{wrong}");
    for name in ["a.txt", "a.md", "a.html", "a.rs"] {
        assert!(
            matches!(read_one(name, b" \n"), Err(DocumentError::Empty { .. })),
            "{name}"
        );
    }
    for name in ["a.pdf", "a.epub", "a.docx"] {
        let error = read_one(name, b"").unwrap_err();
        assert!(matches!(error, DocumentError::Damaged { .. }), "{error}");
    }
}

#[test]
fn a_file_larger_than_the_limit_is_not_read() {
    let limits = Limits {
        file_bytes: 10,
        text_bytes: 5,
        ..Limits::default()
    };
    let error = read_within("a.txt", b"12345678901", &limits).unwrap_err();
    assert!(matches!(error, DocumentError::TooLarge { .. }), "{error}");
    let error = read_within("a.txt", b"123456", &limits).unwrap_err();
    assert!(matches!(error, DocumentError::TooMuchText { .. }), "{error}");
}
