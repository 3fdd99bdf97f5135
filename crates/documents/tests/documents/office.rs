//! Word documents and books: their parts, and the warnings about omitted parts.

use riffle_documents::{DocumentError, Limits};
use riffle_testing::documents::{archive, epub_with};

use crate::{place, read_one, read_within};

/// A document of a body and further parts, with relations of their kinds.
fn word(body: &str, parts: &[(&str, &str)]) -> Vec<u8> {
    let main = format!("<w:document><w:body>{body}</w:body></w:document>");
    let relations: String = parts
        .iter()
        .map(|(kind, _)| format!("<Relationship Id='{kind}' Type='x/{kind}' Target='{kind}.xml'/>"))
        .collect();
    let relations = format!("<Relationships>{relations}</Relationships>");
    let names: Vec<String> = parts.iter().map(|(kind, _)| format!("word/{kind}.xml")).collect();
    let mut all = vec![
        ("word/document.xml", main.as_bytes()),
        ("word/_rels/document.xml.rels", relations.as_bytes()),
    ];
    all.extend(
        names
            .iter()
            .zip(parts)
            .map(|(name, (_, part))| (name.as_str(), part.as_bytes())),
    );
    archive(&all)
}

fn text_of(body: &str, parts: &[(&str, &str)]) -> String {
    read_one("a.docx", &word(body, parts)).expect("a document").text
}

#[test]
fn paragraphs_of_lists_have_their_marks() {
    let numbering = "<w:numbering><w:abstractNum w:abstractNumId='7'>\
        <w:lvl w:ilvl='0'><w:start w:val='3'/><w:numFmt w:val='decimal'/><w:lvlText w:val='%1.'/></w:lvl>\
        <w:lvl w:ilvl='1'><w:start w:val='1'/><w:numFmt w:val='lowerLetter'/><w:lvlText w:val='%1%2)'/></w:lvl>\
        </w:abstractNum><w:num w:numId='1'><w:abstractNumId w:val='7'/></w:num></w:numbering>";
    let item = |level: usize, text: &str| {
        format!(
            "<w:p><w:pPr><w:numPr><w:ilvl w:val='{level}'/><w:numId w:val='1'/></w:numPr></w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>"
        )
    };
    let body = [item(0, "one"), item(1, "within"), item(0, "two")].concat();
    assert_eq!(
        text_of(&body, &[("numbering", numbering)]),
        "3. one\n\n  3a) within\n\n4. two\n"
    );
}

#[test]
fn changes_count_as_accepted_and_text_that_stands_twice_is_read_once() {
    let body = "<w:p><w:ins><w:r><w:t>kept </w:t></w:r></w:ins><w:del><w:r><w:delText>gone</w:delText></w:r></w:del>\
        <mc:AlternateContent><mc:Choice><w:r><w:t>once</w:t></w:r></mc:Choice><mc:Fallback><w:r><w:t>once</w:t></w:r></mc:Fallback>\
        </mc:AlternateContent></w:p>";
    let document = read_one("a.docx", &word(body, &[])).unwrap();
    assert_eq!(document.text, "kept once\n");
    assert!(
        document.warnings[0].starts_with("1 deletions"),
        "{:?}",
        document.warnings
    );
}

#[test]
fn boxes_formulas_signs_and_fields_are_read() {
    for (body, text) in [
        (
            "<w:p><w:r><w:t>before </w:t></w:r><w:r><w:txbxContent><w:p><w:r><w:t>boxed</w:t></w:r></w:p></w:txbxContent></w:r>\
             <w:r><w:t>after</w:t></w:r></w:p>",
            "before after\n\nboxed\n",
        ),
        (
            "<w:p><m:oMath><m:f><m:num><m:r><m:t>a+1</m:t></m:r></m:num><m:den><m:r><m:t>2</m:t></m:r></m:den></m:f>\
             <m:sSup><m:e><m:r><m:t>x</m:t></m:r></m:e><m:sup><m:r><m:t>2</m:t></m:r></m:sup></m:sSup></m:oMath></w:p>",
            "(a+1)/2x^2\n",
        ),
        (
            "<w:p><w:r><w:sym w:font='Wingdings' w:char='F0FC'/><w:sym w:font='Symbol' w:char='F061'/></w:r></w:p>",
            "✓α\n",
        ),
        (
            "<w:p><w:r><w:ffData><w:ddList><w:result w:val='1'/><w:listEntry w:val='no'/><w:listEntry w:val='Blue whale'/></w:ddList></w:ffData>\
             <w:instrText>FORMDROPDOWN</w:instrText></w:r></w:p>",
            "Blue whale\n",
        ),
        (
            "<w:p><w:ruby><w:rt><w:r><w:t>kan</w:t></w:r></w:rt><w:rubyBase><w:r><w:t>漢</w:t></w:r></w:rubyBase></w:ruby></w:p>",
            "漢(kan)\n",
        ),
    ] {
        assert_eq!(text_of(body, &[]), text);
    }
}

#[test]
fn notes_comments_headers_and_pages_within_stand_behind_the_text() {
    let part =
        |name: &str, text: &str| format!("<w:x><w:{name}><w:p><w:r><w:t>{text}</w:t></w:r></w:p></w:{name}></w:x>");
    let comment = "<w:x><w:comment w:author='Ada'><w:p><w:r><w:t>Why?</w:t></w:r></w:p></w:comment></w:x>";
    let parts = [
        ("footnotes", &*part("footnote", "A note.")),
        ("endnotes", &*part("endnote", "The last note.")),
        ("comments", comment),
        ("header", &*part("hdr", "A header")),
    ];
    let body = "<w:p><w:r><w:t>Text.</w:t></w:r></w:p><w:altChunk r:id='missing'/>";
    let document = read_one("a.docx", &word(body, &parts)).unwrap();
    assert_eq!(
        document.text,
        "Text.\n\nA note.\n\nThe last note.\n\n[Comment by Ada: Why? ]\n\n[Header: A header]\n"
    );
    assert!(document.warnings[0].contains("missing"), "{:?}", document.warnings);
}

#[test]
fn books_of_every_dialect_are_read_in_their_order() {
    let container = "<container><rootfiles><rootfile full-path='a%20b/c.opf'/></rootfiles></container>";
    let package = "<package><manifest>\
        <item id='two' href='two%20.xhtml' media-type='application/xhtml+xml'/>\
        <item id='one' href='one.html' media-type='text/x-oeb1-document'/>\
        <item id='odd' href='odd.bin' media-type='x/odd' fallback='two'/>\
        <item id='lost' href='lost.xhtml' media-type='application/xhtml+xml'/>\
        <item id='more' href='more.xhtml' media-type='application/xhtml+xml'/>\
        <item id='ncx' href='toc.ncx' media-type='application/x-dtbncx+xml'/></manifest>\
        <spine toc='ncx'><itemref idref='one'/><itemref idref='odd' linear='no'/><itemref idref='lost'/></spine></package>";
    let contents = "<ncx><navPoint><navLabel><text>First</text></navLabel><content src='one.html'/></navPoint>\
        <navPoint><navLabel><text>Within</text></navLabel><content src='one.html#in'/></navPoint></ncx>";
    let wide: Vec<u8> = "\u{feff}<html><body><p>Zwei</p></body></html>"
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    let book = archive(&[
        ("META-INF/container.xml", container.as_bytes()),
        ("a b/c.opf", package.as_bytes()),
        ("a b/toc.ncx", contents.as_bytes()),
        ("a b/one.html", b"<p>One</p><h2><a id='in'/>Inner</h2><p>text</p>"),
        ("a b/two .xhtml", &wide),
        ("a b/more.xhtml", b"<p>More</p>"),
    ]);
    let document = read_one("a.epub", &book).unwrap();
    assert_eq!(document.text, "One\n\nInner\n\ntext\n\nZwei\n\nMore\n");
    assert_eq!(place(&document, "One"), "chapter \"First\"");
    assert_eq!(place(&document, "text"), "chapter \"Within\", under \"Inner\"");
    let warnings = document.warnings.join("\n");
    assert!(
        warnings.contains("lost.xhtml is missing") && warnings.contains("1 pages"),
        "{warnings}"
    );
}

#[test]
fn a_book_with_some_locked_chapters_names_them() {
    let locked = "<CipherReference URI='OEBPS/text/c%200.xhtml'/>";
    let book = epub_with(
        &[("One", "secret"), ("Two", "open")],
        &[("META-INF/encryption.xml", locked.as_bytes())],
    );
    let document = read_one("a.epub", &book).unwrap();
    assert_eq!(document.text, "open\n");
    assert!(
        document.warnings[0].contains("c 0.xhtml is encrypted"),
        "{:?}",
        document.warnings
    );
}

#[test]
fn other_kinds_are_refused_by_name_with_what_to_do() {
    for (name, file, says) in [
        ("a.odt", archive(&[("content.xml", b"<a/>")]), "an OpenDocument file"),
        (
            "a.pptx",
            archive(&[("ppt/presentation.xml", b"<a/>")]),
            "a presentation",
        ),
        ("a.xlsx", archive(&[("xl/workbook.xml", b"<a/>")]), "save it as CSV"),
        ("a.rtf", b"{\\rtf1 text}".to_vec(), "an RTF document"),
    ] {
        let error = read_one(name, &file).unwrap_err();
        assert!(matches!(error, DocumentError::OtherKind { .. }), "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn files_that_need_more_than_the_memory_left_are_refused_before_they_are_read() {
    let limits = Limits {
        memory_bytes: Some(12 << 20),
        ..Limits::default()
    };
    let large = vec![b'a'; 5 << 20];
    let page = b"<p>a".repeat(1 << 18);
    let body = format!("<w:p><w:r><w:t>{}</w:t></w:r></w:p>", "a".repeat(2 << 20));
    for (name, file) in [("a.txt", large), ("a.html", page), ("a.docx", word(&body, &[]))] {
        let error = read_within(name, &file, &limits).unwrap_err();
        assert!(matches!(error, DocumentError::TooMuchMemory { .. }), "{name}: {error}");
    }
    assert_eq!(read_within("a.txt", b"small", &limits).unwrap().text, "small");
}
