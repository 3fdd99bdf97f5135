//! Text of web pages and of chapters of books.
//!
//! The page is taken token by token; no tree is built, so nesting costs nothing.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;

use html5ever::tokenizer::states::RawKind;
use html5ever::tokenizer::{BufferQueue, Tag, TagKind, Token, TokenSink, TokenSinkResult, Tokenizer, TokenizerOpts};

use crate::builder::{TextBuilder, title};
use crate::encoding::decode_markup;
use crate::{Document, DocumentKind, PlaceKind};

/// Elements whose content is not read. Formulas are: their text without their other forms.
const SKIPPED: [&str; 10] = [
    "script",
    "style",
    "noscript",
    "template",
    "svg",
    "head",
    "title",
    "iframe",
    "annotation",
    "annotation-xml",
];
/// Elements that a head holds. Any other ends it, since pages may leave its end tag out.
const IN_HEAD: [&str; 10] = [
    "base", "basefont", "bgsound", "link", "meta", "noframes", "noscript", "script", "style", "template",
];
/// Elements within a picture whose words are not shown in it.
const HIDDEN_IN_PICTURE: [&str; 2] = ["desc", "title"];
/// Elements within a picture whose words are.
const SHOWN_IN_PICTURE: [&str; 2] = ["text", "foreignobject"];
/// Attributes of one tag; the tokenizer compares each with all before it.
const ATTRIBUTES: usize = 2000;
/// Elements of a page that no picture holds: they end one that was left open, as HTML's rules for foreign content say.
const ENDS_PICTURE: [&str; 38] = [
    "b",
    "big",
    "blockquote",
    "body",
    "br",
    "center",
    "code",
    "dd",
    "div",
    "dl",
    "dt",
    "em",
    "embed",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "head",
    "hr",
    "i",
    "img",
    "li",
    "menu",
    "meta",
    "ol",
    "p",
    "pre",
    "ruby",
    "s",
    "small",
    "span",
    "strong",
    "sub",
    "sup",
    "table",
    "ul",
];
/// Elements that begin and end paragraphs.
const PARAGRAPHS: [&str; 12] = [
    "p",
    "blockquote",
    "section",
    "article",
    "ul",
    "ol",
    "dl",
    "table",
    "figure",
    "pre",
    "hr",
    "header",
];
/// Elements that begin and end lines.
const LINES: [&str; 19] = [
    "div",
    "summary",
    "button",
    "legend",
    "br",
    "tr",
    "li",
    "dt",
    "dd",
    "body",
    "main",
    "aside",
    "nav",
    "footer",
    "form",
    "address",
    "figcaption",
    "caption",
    "option",
];
const HEADINGS: [&str; 6] = ["h1", "h2", "h3", "h4", "h5", "h6"];

/// Which tags a page may leave open or close by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Html,
    /// `<script/>` ends itself.
    Xhtml,
}

/// A web page.
pub(crate) fn read(name: &str, bytes: &[u8]) -> Document {
    let mut page = Page::new(Dialect::Html, TextBuilder::default());
    page = page.take(&without_endless_tags(&decode_markup(bytes)));
    let (text, places) = page.state.into_inner().builder.finish();
    Document {
        name: name.to_owned(),
        kind: DocumentKind::Html,
        text,
        places,
        warnings: Vec::new(),
    }
}

/// Adds the text of a part of a book. Returns its first heading.
pub(crate) fn read_into(builder: TextBuilder, bytes: &[u8]) -> (TextBuilder, Option<String>) {
    let page = Page::new(Dialect::Xhtml, builder).take(&without_endless_tags(&decode_markup(bytes)));
    let state = page.state.into_inner();
    (state.builder, state.first_heading)
}

/// Receives the tokens of a page.
struct Page {
    dialect: Dialect,
    state: RefCell<State>,
}

struct State {
    builder: TextBuilder,
    /// Open elements that are not read.
    skipped: Vec<String>,
    /// How many of them have each name.
    skipped_names: HashMap<String, usize>,
    /// Open elements of a picture whose words are read.
    shown_in_picture: usize,
    /// Open elements whose white space is kept.
    verbatim: usize,
    /// The open heading, with its text so far.
    heading: Option<String>,
    first_heading: Option<String>,
    /// True if a cell of the row stands before the next one.
    in_row: bool,
}

impl Page {
    fn new(dialect: Dialect, builder: TextBuilder) -> Self {
        Self {
            dialect,
            state: RefCell::new(State {
                builder,
                skipped: Vec::new(),
                skipped_names: HashMap::new(),
                shown_in_picture: 0,
                verbatim: 0,
                heading: None,
                first_heading: None,
                in_row: false,
            }),
        }
    }

    fn take(self, text: &str) -> Self {
        let input = BufferQueue::default();
        input.push_back(text.into());
        let tokenizer = Tokenizer::new(self, TokenizerOpts::default());
        while !input.is_empty() {
            let _ = tokenizer.feed(&input);
        }
        tokenizer.end();
        tokenizer.sink
    }
}

impl TokenSink for Page {
    type Handle = ();

    fn process_token(&self, token: Token, _: u64) -> TokenSinkResult<()> {
        let state = &mut *self.state.borrow_mut();
        match token {
            Token::TagToken(tag) => return state.tag(&tag, self.dialect),
            Token::CharacterTokens(text) => state.text(&text),
            _ => {}
        }
        TokenSinkResult::Continue
    }
}

impl State {
    fn text(&mut self, text: &str) {
        if self.is_in_head() && !text.trim().is_empty() {
            self.end_skipped(0);
        }
        if !self.skipped.is_empty() && !self.is_shown() {
            return;
        }
        if let Some(heading) = &mut self.heading {
            heading.push_str(text);
        }
        match self.verbatim {
            0 => self.builder.flow(text),
            _ => self.builder.verbatim(text),
        }
    }

    fn tag(&mut self, tag: &Tag, dialect: Dialect) -> TokenSinkResult<()> {
        let name: &str = &tag.name;
        let is_start = tag.kind == TagKind::StartTag;
        if is_start {
            self.end_what_was_left_open(name);
        }
        let is_foreign = self.skips("svg") || name == "svg";
        let closes_itself = tag.self_closing && (dialect == Dialect::Xhtml || is_foreign);
        let is_skipped = SKIPPED.contains(&name) || (is_foreign && HIDDEN_IN_PICTURE.contains(&name));
        if is_start && is_skipped {
            if !closes_itself {
                self.skipped.push(name.to_owned());
                *self.skipped_names.entry(name.to_owned()).or_default() += 1;
            }
        } else if !is_start
            && self.skips(name)
            && let Some(open) = self.skipped.iter().rposition(|open| open == name)
        {
            self.end_skipped(open);
            return TokenSinkResult::Continue;
        } else if is_foreign && !closes_itself {
            self.show_in_picture(name, is_start);
        }
        if self.skipped.is_empty() {
            match tag.kind {
                TagKind::StartTag => self.open(name),
                TagKind::EndTag => self.close(name),
            }
        }
        match name {
            // Elements of a picture hold tags, whatever they are called.
            _ if !is_start || closes_itself || is_foreign => TokenSinkResult::Continue,
            "script" => TokenSinkResult::RawData(RawKind::ScriptData),
            "style" | "iframe" => TokenSinkResult::RawData(RawKind::Rawtext),
            "title" | "textarea" => TokenSinkResult::RawData(RawKind::Rcdata),
            _ => TokenSinkResult::Continue,
        }
    }

    /// True if an open element of this name is not read.
    fn skips(&self, name: &str) -> bool {
        self.skipped_names.contains_key(name)
    }

    /// Ends elements that are not read, from one of them on.
    fn end_skipped(&mut self, from: usize) {
        for name in self.skipped.drain(from..) {
            if let Some(count) = self.skipped_names.get_mut(&name) {
                *count -= 1;
                if *count == 0 {
                    self.skipped_names.remove(&name);
                }
            }
        }
        if !self.skips("svg") {
            self.shown_in_picture = 0;
        }
    }

    /// True within words that a picture shows.
    fn is_shown(&self) -> bool {
        self.shown_in_picture > 0 && self.skipped.last().is_some_and(|open| open == "svg")
    }

    /// Begins or ends words of a picture; other elements part them.
    fn show_in_picture(&mut self, name: &str, is_start: bool) {
        if SHOWN_IN_PICTURE.contains(&name) {
            self.builder.end_line(1);
            self.shown_in_picture = if is_start {
                self.shown_in_picture + 1
            } else {
                self.shown_in_picture.saturating_sub(1)
            };
        } else if self.is_shown() && name != "tspan" {
            self.builder.flow(" ");
        }
    }

    /// True if the head is open and nothing within it.
    fn is_in_head(&self) -> bool {
        self.skipped.len() == 1 && self.skipped[0] == "head"
    }

    /// Ends the head, or the pictures, that a start tag shows to be over.
    fn end_what_was_left_open(&mut self, name: &str) {
        if self.is_in_head() && !IN_HEAD.contains(&name) && !["title", "head", "html"].contains(&name) {
            self.end_skipped(0);
        }
        // A page's own elements stand within a picture's foreign object.
        if ENDS_PICTURE.contains(&name) && self.shown_in_picture == 0 {
            let pictures = self.skipped.iter().rev().take_while(|open| *open == "svg").count();
            self.end_skipped(self.skipped.len() - pictures);
        }
        if name == "body" && self.skips("head") {
            let head = self.skipped.iter().position(|open| open == "head");
            self.end_skipped(head.unwrap_or(self.skipped.len()));
        }
    }

    fn open(&mut self, name: &str) {
        if HEADINGS.contains(&name) {
            self.end_heading();
            self.builder.end_line(2);
            self.heading = Some(String::new());
            // The heading's text is complete only when the element ends.
            self.builder.mark(PlaceKind::Heading(String::new()));
            return;
        }
        match name {
            "pre" => self.verbatim += 1,
            "td" | "th" if std::mem::replace(&mut self.in_row, true) => self.builder.flow(" | "),
            "tr" => self.in_row = false,
            _ => {}
        }
        self.end_block(name);
        if name == "li" {
            self.builder.prefix("- ");
        }
    }

    fn close(&mut self, name: &str) {
        if HEADINGS.contains(&name) {
            self.end_heading();
            self.builder.end_line(2);
        }
        if name == "pre" {
            self.verbatim = self.verbatim.saturating_sub(1);
        }
        self.end_block(name);
    }

    fn end_block(&mut self, name: &str) {
        if PARAGRAPHS.contains(&name) {
            self.builder.end_line(2);
        } else if LINES.contains(&name) {
            self.builder.end_line(1);
        }
    }

    fn end_heading(&mut self) {
        let Some(text) = self.heading.take() else { return };
        let text = title(&text);
        if self.first_heading.is_none() && !text.is_empty() {
            self.first_heading = Some(text.clone());
        }
        self.builder.name_last(text);
    }
}

/// The page without the attributes of a tag that has more than any page needs.
fn without_endless_tags(text: &str) -> Cow<'_, str> {
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
        return Cow::Borrowed(text);
    }
    let mut kept = String::with_capacity(text.len());
    let mut from = 0;
    for range in endless {
        kept.push_str(&text[from..range.start]);
        from = range.end;
    }
    kept.push_str(&text[from..]);
    Cow::Owned(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_becomes_paragraphs_lists_and_cells_without_its_scripts() {
        let page = "<!doctype html><head><title>T</title><style>p{}</style></head><body><script>if (a<b) x()</script>\
            <h1>Ships &amp; <i>men</i></h1><p>One\n  two<p>three<ul><li>a<li>b</ul>\
            <table><tr><td>1<td>2<tr><td>3</table><pre>x\n  y</pre>caf&eacute;";
        let document = read("a.html", page.as_bytes());
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
            let document = read("a.html", format!("<!doctype html>{page}").as_bytes());
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
            assert_eq!(read("a.html", page.as_bytes()).text, text);
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
            let document = read("a.html", format!("<p>kept</p>{page}").as_bytes());
            assert!(document.text.starts_with("kept"));
        }
    }

    #[test]
    fn formulas_are_read_as_text_once() {
        let page = "<p>Area <math><semantics><mrow><mi>x</mi><mo>=</mo><mn>42</mn></mrow>\
            <annotation encoding='application/x-tex'>x=42</annotation></semantics></math> is known.";
        assert_eq!(read("a.html", page.as_bytes()).text, "Area x=42 is known.\n");
    }

    #[test]
    fn a_deeply_nested_page_costs_no_stack() {
        let page = "<div>".repeat(200_000) + "end";
        assert_eq!(read("a.html", page.as_bytes()).text, "end\n");
    }

    #[test]
    fn an_empty_script_of_xhtml_does_not_swallow_the_chapter() {
        let page = b"<html><head><script src='a'/><title/></head><body><p>text</p></body></html>";
        let (builder, heading) = read_into(TextBuilder::default(), page);
        assert_eq!((builder.finish().0, heading), ("text\n".to_owned(), None));
    }
}
