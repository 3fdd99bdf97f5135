//! Text of web pages and of chapters of books.
//!
//! The page is taken token by token; no tree is built, so nesting costs nothing.

use std::cell::RefCell;

use html5ever::tokenizer::states::RawKind;
use html5ever::tokenizer::{BufferQueue, Tag, TagKind, Token, TokenSink, TokenSinkResult, Tokenizer, TokenizerOpts};

use crate::builder::{TextBuilder, title};
use crate::encoding::decode_markup;
use crate::{Document, DocumentKind, PlaceKind};

/// Elements whose content is not read.
const SKIPPED: [&str; 8] = [
    "script", "style", "noscript", "template", "svg", "math", "head", "iframe",
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
const LINES: [&str; 16] = [
    "div",
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
    page = page.take(&decode_markup(bytes));
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
    let page = Page::new(Dialect::Xhtml, builder).take(&decode_markup(bytes));
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
    /// Open elements whose white space is kept.
    verbatim: usize,
    /// The heading that is open, and what it says so far.
    heading: Option<String>,
    first_heading: Option<String>,
    /// Whether a cell of the row stands before the next one.
    in_row: bool,
}

impl Page {
    fn new(dialect: Dialect, builder: TextBuilder) -> Self {
        Self {
            dialect,
            state: RefCell::new(State {
                builder,
                skipped: Vec::new(),
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
        if !self.skipped.is_empty() {
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
        let closes_itself = tag.self_closing && dialect == Dialect::Xhtml;
        if tag.kind == TagKind::StartTag && SKIPPED.contains(&name) {
            if !closes_itself {
                self.skipped.push(name.to_owned());
            }
        } else if tag.kind == TagKind::EndTag
            && let Some(open) = self.skipped.iter().rposition(|open| open == name)
        {
            self.skipped.truncate(open);
        } else if tag.kind == TagKind::StartTag && name == "body" {
            // A head may be left open.
            self.skipped.retain(|open| open != "head");
        }
        if self.skipped.is_empty() {
            match tag.kind {
                TagKind::StartTag => self.open(name),
                TagKind::EndTag => self.close(name),
            }
        }
        match name {
            _ if tag.kind == TagKind::EndTag || closes_itself => TokenSinkResult::Continue,
            "script" => TokenSinkResult::RawData(RawKind::ScriptData),
            "style" | "iframe" => TokenSinkResult::RawData(RawKind::Rawtext),
            "title" | "textarea" => TokenSinkResult::RawData(RawKind::Rcdata),
            _ => TokenSinkResult::Continue,
        }
    }

    fn open(&mut self, name: &str) {
        if HEADINGS.contains(&name) {
            self.end_heading();
            self.builder.end_line(2);
            self.heading = Some(String::new());
            // What it says is known when it ends.
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
