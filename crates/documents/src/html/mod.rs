//! Text of web pages and of chapters of books.

mod filter;
mod formula;
mod tree;
mod writer;

use std::collections::BTreeMap;

use crate::builder::TextBuilder;
use crate::encoding::decode_markup;
use crate::{Document, DocumentError, DocumentKind, Limits};
pub(crate) use tree::Dialect;
use tree::Tree;
use writer::Writer;

/// Maximum number of attributes of one tag; the tokenizer compares each with all earlier ones.
const ATTRIBUTES: usize = 2000;

/// Deepest nesting of pages, such as an inner page in an attribute.
const PAGES: usize = 3;

/// Largest web page in bytes; its text is held three times while it is read.
const PAGE_BYTES: u64 = 64 << 20;

/// Maximum number of nodes of one page.
const NODES: usize = 3 << 20;

/// Bytes per node, including the tree builder's data.
const NODE_BYTES: u64 = 64;

/// Limits of one page, and the chapters within it.
#[derive(Debug, Clone, Copy)]
struct Places<'a> {
    anchors: &'a Anchors,
    nodes: usize,
    /// Number of nested pages that may still be opened.
    pages: usize,
}

/// Chapters that begin within a page, by anchor names.
pub(crate) type Anchors = BTreeMap<String, String>;

/// Facts about a page besides its text.
#[derive(Debug, Default)]
pub(crate) struct PageNotes {
    /// First heading of the page.
    pub(crate) heading: Option<String>,
    /// Parts that are left out, such as pages in other files.
    pub(crate) left_out: LeftOutParts,
}

/// Counts of parts that are left out.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct LeftOutParts {
    /// Frames with pages in other files.
    pub(crate) frames: usize,
    /// Templates with text, which scripts would show.
    pub(crate) templates: usize,
}

impl LeftOutParts {
    pub(crate) fn add(&mut self, other: Self) {
        self.frames += other.frames;
        self.templates += other.templates;
    }

    /// One line about each kind of part.
    pub(crate) fn warnings(self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.frames > 0 {
            warnings.push(format!(
                "{} embedded pages are left out: they are other files",
                self.frames
            ));
        }
        if self.templates > 0 {
            warnings.push(format!(
                "{} templates are left out: a script would fill them in",
                self.templates
            ));
        }
        warnings
    }
}

/// A web page.
pub(crate) fn read(name: &str, bytes: Vec<u8>, limits: &Limits) -> Result<Document, DocumentError> {
    if bytes.len() as u64 > PAGE_BYTES {
        return Err(DocumentError::TooLarge {
            name: name.to_owned(),
            limit_bytes: PAGE_BYTES,
        });
    }
    let anchors = Anchors::new();
    let read = read_into(
        TextBuilder::default(),
        decode_markup(bytes),
        Dialect::Html,
        &anchors,
        limits,
    );
    let (builder, notes) = read.ok_or_else(|| DocumentError::TooMuchWork { name: name.to_owned() })?;
    let (text, places) = builder.finish();
    Ok(Document {
        name: name.to_owned(),
        kind: DocumentKind::Html,
        text,
        places,
        warnings: notes.left_out.warnings(),
    })
}

/// Adds the text of a page, whose `anchors` begin chapters. `None` for a page with too many elements.
pub(crate) fn read_into(
    builder: TextBuilder,
    page: String,
    dialect: Dialect,
    anchors: &Anchors,
    limits: &Limits,
) -> Option<(TextBuilder, PageNotes)> {
    let places = Places {
        anchors,
        nodes: limits.kept(NODES, NODE_BYTES),
        pages: PAGES,
    };
    read_within(builder, page, dialect, places)
}

fn read_within(
    builder: TextBuilder,
    page: String,
    dialect: Dialect,
    places: Places<'_>,
) -> Option<(TextBuilder, PageNotes)> {
    let tree = Tree::parse(without_endless_tags(page), dialect, places.nodes);
    if tree.is_full {
        return None;
    }
    Writer::new(&tree, builder, places).write()
}

/// The page without the attributes of tags with implausibly many.
fn without_endless_tags(text: String) -> String {
    let mut endless: Vec<std::ops::Range<usize>> = Vec::new();
    let (mut tag, mut quote, mut words, mut was_space) = (false, None, 0, false);
    let mut cut = 0;
    for (at, byte) in text.bytes().enumerate() {
        let is_space = byte.is_ascii_whitespace();
        match (tag, quote, byte) {
            (false, _, b'<') => (tag, quote, words) = (true, None, 0),
            (true, None, b'>') => {
                tag = false;
                if words > ATTRIBUTES {
                    endless.push(cut..at);
                }
            }
            (true, None, b'"' | b'\'') => quote = Some(byte),
            (true, Some(open), _) if open == byte => quote = None,
            (true, None, _) if is_space && !was_space => {
                words += 1;
                if words == ATTRIBUTES {
                    cut = at;
                }
            }
            _ => {}
        }
        was_space = is_space;
    }
    if tag && words > ATTRIBUTES {
        endless.push(cut..text.len());
    }
    if endless.is_empty() {
        return text;
    }
    let mut kept = String::with_capacity(text.len());
    let mut from = 0;
    for range in endless {
        kept.push_str(&text[from..range.start]);
        from = range.end;
    }
    kept.push_str(&text[from..]);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(page: &[u8]) -> Document {
        read("a.html", page.to_vec(), &Limits::default()).expect("a page")
    }

    #[test]
    fn a_page_becomes_paragraphs_lists_and_cells_without_its_scripts() {
        let page = "<!doctype html><head><title>T</title><style>p{}</style></head><body><script>if (a<b) x()</script>\
            <h1>Ships &amp; <i>men</i></h1><p>One\n  two<p>three<ul><li>a<li>b</ul>\
            <table><tr><td>1<td>2<tr><td>3</table><pre>x\n  y</pre>caf&eacute;";
        let document = of(page.as_bytes());
        assert_eq!(
            document.text,
            "Ships & men\n\nOne two\n\nthree\n\n- a\n- b\n\n1 | 2\n3\n\nx\n  y\n\ncafé\n"
        );
        assert_eq!(document.describe(&(20..21)), "under \"Ships & men\"");
    }

    #[test]
    fn tags_that_are_left_out_and_pictures_that_close_themselves_lose_no_text() {
        for page in [
            "<html lang=en><head><meta charset=utf-8><title>T</title><p>Text.",
            "<title>T</title>Text.",
            "<head><title>T</title>Text.",
            "<body><svg width=0 height=0 /><p>Text.</body>",
            "<body><svg><title/><path d=M0/></svg><p>Text.</body>",
            "<body><math /><p>Text.</body>",
            "<body><svg><path d=M0><p>Text.</body>",
            "<body><svg><g><style/><script/></g></svg><p>Text.</body>",
            "<body><svg><title>In a picture</title><g><path/></g></svg>Text.</body>",
        ] {
            let document = of(format!("<!doctype html>{page}").as_bytes());
            assert_eq!(document.text, "Text.\n", "{page}");
        }
    }

    #[test]
    fn words_that_a_picture_shows_are_read() {
        for (page, text) in [
            (
                "<svg><title>T</title><text>Label <tspan>in</tspan></text><path/><text>b</text></svg><p>end",
                "Label in\nb\n\nend\n",
            ),
            (
                "<svg><foreignObject><p>of the picture</p></foreignObject></svg><p>Text.",
                "of the picture\n\nText.\n",
            ),
        ] {
            assert_eq!(of(page.as_bytes()).text, text);
        }
    }

    #[test]
    fn hostile_tags_cost_no_more_than_their_length() {
        let attributes: String = (0..200_000).map(|at| format!(" a{at}=1")).collect();
        for page in [
            format!("<p{attributes}>Text."),
            format!("{}{}</svg>", "<svg>".repeat(200_000), "</math></title>".repeat(200_000)),
            format!("<pre>{}", "<p>\n".repeat(400_000)),
        ] {
            let document = of(format!("<p>kept</p>{page}").as_bytes());
            assert!(document.text.starts_with("kept"));
        }
    }

    #[test]
    fn formulas_are_read_as_text_once() {
        let page = "<p>Area <math><semantics><mrow><mi>x</mi><mo>=</mo><mn>42</mn></mrow>\
            <annotation encoding='application/x-tex'>x=42</annotation></semantics></math> is known.";
        assert_eq!(of(page.as_bytes()).text, "Area x=42 is known.\n");
    }

    #[test]
    fn a_deeply_nested_page_costs_no_stack() {
        let page = "<div>".repeat(200_000) + "end";
        assert_eq!(of(page.as_bytes()).text, "end\n");
    }

    #[test]
    fn an_empty_script_of_xhtml_does_not_swallow_the_chapter() {
        let page =
            "<html><head><script src='a'/><title/></head><body><m:p>te<![CDATA[xt]]></m:p><div/><i/>more</body></html>";
        let (builder, notes) = read_into(
            TextBuilder::default(),
            page.to_owned(),
            Dialect::Xhtml,
            &Anchors::new(),
            &Limits::default(),
        )
        .unwrap();
        assert_eq!((builder.finish().0, notes.heading), ("text\n\nmore\n".to_owned(), None));
    }

    #[test]
    fn lists_have_their_numbers_and_rows_their_cells() {
        for (page, text) in [
            (
                "<ol start=3><li>a<li value=9>b<ul><li>c</ul><li>d</ol>",
                "3. a\n9. b\n\n  - c\n\n10. d\n",
            ),
            ("<ol type=a reversed><li>x<li>y</ol>", "b. x\na. y\n"),
            (
                "<table><caption>Of ships</caption><tr><td><p>One</p><p>two</p><th>3<tr><td>4</table>",
                "Of ships\nOne two | 3\n4\n",
            ),
            (
                "<table><tr><td><h1>A page</h1><p>In a table.</p></table>",
                "A page\n\nIn a table.\n",
            ),
        ] {
            assert_eq!(of(page.as_bytes()).text, text, "{page}");
        }
    }

    #[test]
    fn words_beside_the_text_are_read_and_the_others_counted() {
        for (page, text) in [
            (
                "<ruby>漢<rp>(</rp><rt>kan</rt><rp>)</rp>字<rt>ji</rt></ruby>",
                "漢(kan)字(ji)\n",
            ),
            ("<details><summary>Sum</summary>hidden</details>", "Sum\nhidden\n"),
            ("<noscript>No script.</noscript>", "No script.\n"),
            ("<iframe srcdoc='&lt;p&gt;Within.'></iframe>after", "Within.\n\nafter\n"),
            ("<p>a<img alt='A ship'>b<img alt=''>", "a [Picture: A ship] b\n"),
            ("<input value='Ada Quill'><input type=hidden value=no>", "Ada Quill\n"),
            ("<div><template shadowrootmode=open>shown</template></div>", "shown\n"),
            ("<p>a &mdash; b&nbsp;c &#x1F600; &notin; d", "a — b c 😀 ∉ d\n"),
            ("<select><option>one<option>two</select>", "one\ntwo\n"),
        ] {
            assert_eq!(of(page.as_bytes()).text, text, "{page}");
        }
        let page = of(b"<p>kept<template>no</template><iframe src=a.html></iframe>");
        assert_eq!((&*page.text, page.warnings.len()), ("kept\n", 2));
    }

    #[test]
    fn formulas_without_source_are_written_in_one_line() {
        let page = "<math><mfrac><mrow><mi>a</mi><mo>+</mo><mn>1</mn></mrow><mn>2</mn></mfrac><mo>=</mo>\
            <msup><mi>x</mi><mn>2</mn></msup></math>";
        assert_eq!(of(page.as_bytes()).text, "(a+1)/2=x^2\n");
    }
}
