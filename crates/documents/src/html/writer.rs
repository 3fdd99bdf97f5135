//! Writes the text of a page's tree.

use super::formula;
use super::tree::{DOCUMENT, Dialect, Language, NodeId, Tree};
use super::{PageNotes, Places, read_within};
use crate::PlaceKind;
use crate::builder::{TextBuilder, title};

/// Deepest nesting of elements to visit; the tree has less.
const DEPTH: usize = 1000;

/// Limit on the examined nodes of a cell, to detect a cell that is a whole page.
const CELL_NODES: usize = 500;

/// Elements that begin and end paragraphs.
const PARAGRAPHS: [&str; 19] = [
    "article",
    "blockquote",
    "details",
    "dialog",
    "dl",
    "fieldset",
    "figure",
    "header",
    "hgroup",
    "hr",
    "listing",
    "menu",
    "ol",
    "p",
    "pre",
    "section",
    "table",
    "ul",
    "xmp",
];

/// Elements that begin and end lines.
const LINES: [&str; 23] = [
    "address",
    "aside",
    "body",
    "br",
    "button",
    "caption",
    "center",
    "dd",
    "dir",
    "div",
    "dt",
    "figcaption",
    "footer",
    "form",
    "legend",
    "li",
    "main",
    "nav",
    "optgroup",
    "option",
    "search",
    "summary",
    "tr",
];

/// Elements that make a cell longer than a line.
const BLOCKS: [&str; 13] = [
    "blockquote",
    "dl",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "ol",
    "pre",
    "section",
    "table",
    "ul",
];

const HEADINGS: [&str; 6] = ["h1", "h2", "h3", "h4", "h5", "h6"];

/// Kinds of fields with visible values.
const SHOWN_FIELDS: [&str; 12] = [
    "", "button", "date", "email", "number", "reset", "search", "submit", "tel", "text", "time", "url",
];

/// A list, possibly with numbers.
struct List {
    /// The number of the next item; `None` for lists without numbers.
    next: Option<i64>,
    step: i64,
    style: u8,
}

/// An open heading.
struct Heading {
    /// Index of the heading among the places.
    number: usize,
    text: String,
}

/// Walks a page.
pub(super) struct Writer<'t> {
    tree: &'t Tree,
    builder: TextBuilder,
    places: Places<'t>,
    notes: PageNotes,
    lists: Vec<List>,
    /// Number of open elements with preserved white space.
    verbatim: usize,
    /// The open heading, with its text so far.
    heading: Option<Heading>,
    /// The latest formula, without white space.
    formula: String,
    is_too_large: bool,
}

impl<'t> Writer<'t> {
    pub(super) fn new(tree: &'t Tree, builder: TextBuilder, places: Places<'t>) -> Self {
        Self {
            tree,
            builder,
            places,
            notes: PageNotes::default(),
            lists: Vec::new(),
            verbatim: 0,
            heading: None,
            formula: String::new(),
            is_too_large: false,
        }
    }

    /// Writes the page; `None` if a nested page has too many elements.
    pub(super) fn write(mut self) -> Option<(TextBuilder, PageNotes)> {
        self.children(DOCUMENT, 0);
        self.end_heading();
        (!self.is_too_large).then_some((self.builder, self.notes))
    }

    fn children(&mut self, node: NodeId, depth: usize) {
        if depth < DEPTH {
            let tree = self.tree;
            tree.children(node).for_each(|child| self.node(child, depth + 1));
        }
    }

    fn node(&mut self, node: NodeId, depth: usize) {
        let tree = self.tree;
        if let Some(words) = tree.text(node) {
            return self.words(words);
        }
        let Some((name, language)) = tree.element(node) else {
            return self.children(node, depth);
        };
        for place in ["id", "name"].into_iter().filter_map(|name| tree.attribute(node, name)) {
            if let Some(title) = self.places.anchors.get(place) {
                self.builder.end_line(2);
                self.builder.mark(PlaceKind::Chapter(title.clone()));
            }
        }
        match language {
            Language::Html => self.element(node, name, depth),
            Language::Math => self.formula(node),
            Language::Svg => self.picture(node, depth, false),
        }
    }

    fn words(&mut self, words: &str) {
        if let Some(heading) = &mut self.heading {
            heading.text.push_str(words);
        }
        match self.verbatim {
            0 => self.builder.flow(words),
            _ => self.builder.verbatim(words),
        }
    }

    fn element(&mut self, node: NodeId, name: &str, depth: usize) {
        match name {
            "head" | "script" | "style" | "title" | "rp" => {}
            "template" => self.template(node, depth),
            "iframe" | "frame" | "noframes" | "noembed" | "embed" | "object" => self.frame(node, name, depth),
            "img" | "area" => self.described(node),
            "input" => self.field(node),
            "wbr" | "col" => {}
            "br" if self.verbatim > 0 => self.builder.verbatim("\n"),
            "q" => {
                self.words("“");
                self.children(node, depth);
                self.words("”");
            }
            "rt" | "rtc" => self.reading(node, depth),
            "table" => self.table(node, depth),
            "ul" | "ol" | "menu" | "dir" => self.list(node, name, depth),
            "li" => self.item(node, depth),
            "pre" | "textarea" | "xmp" | "listing" | "plaintext" => {
                self.end_block(name);
                self.verbatim += 1;
                self.children(node, depth);
                self.verbatim -= 1;
                self.end_block(name);
            }
            name if HEADINGS.contains(&name) => self.headline(node, name, depth),
            name => {
                self.end_block(name);
                self.children(node, depth);
                self.end_block(name);
            }
        }
    }

    fn end_block(&mut self, name: &str) {
        if PARAGRAPHS.contains(&name) {
            self.builder.end_line(2);
        } else if LINES.contains(&name) {
            self.builder.end_line(1);
        }
    }

    fn headline(&mut self, node: NodeId, name: &str, depth: usize) {
        self.end_heading();
        self.builder.end_line(2);
        let level = HEADINGS.iter().position(|heading| *heading == name).unwrap_or(0) + 1;
        // The heading's text is complete only when the element ends.
        let number = self.builder.mark(PlaceKind::heading("", level));
        self.heading = Some(Heading {
            number,
            text: String::new(),
        });
        self.children(node, depth);
        self.end_heading();
        self.builder.end_line(2);
    }

    fn end_heading(&mut self) {
        let Some(heading) = self.heading.take() else { return };
        let text = title(&heading.text);
        if self.notes.heading.is_none() && !text.is_empty() {
            self.notes.heading = Some(text.clone());
        }
        self.builder.name(heading.number, text);
    }

    /// Ruby text, written after its base.
    fn reading(&mut self, node: NodeId, depth: usize) {
        self.words("(");
        self.children(node, depth);
        self.words(")");
    }

    fn list(&mut self, node: NodeId, name: &str, depth: usize) {
        let tree = self.tree;
        let number = |name: &str| {
            tree.attribute(node, name)
                .and_then(|value| value.trim().parse::<i64>().ok())
        };
        let is_reversed = tree.attribute(node, "reversed").is_some();
        let items = || {
            tree.children(node)
                .filter(|child| tree.element(*child).is_some())
                .count() as i64
        };
        let first = number("start").unwrap_or_else(|| if is_reversed { items() } else { 1 });
        let style = tree.attribute(node, "type").and_then(|style| style.bytes().next());
        self.builder.end_line(2);
        self.lists.push(List {
            next: (name == "ol").then_some(first),
            step: if is_reversed { -1 } else { 1 },
            style: style.unwrap_or(b'1'),
        });
        self.children(node, depth);
        self.lists.pop();
        self.builder.end_line(2);
    }

    fn item(&mut self, node: NodeId, depth: usize) {
        let value = self
            .tree
            .attribute(node, "value")
            .and_then(|value| value.trim().parse::<i64>().ok());
        self.builder.end_line(1);
        let indent = "  ".repeat(self.lists.len().clamp(1, 8) - 1);
        let mark = match self.lists.last_mut() {
            Some(List {
                next: Some(next),
                step,
                style,
            }) => {
                let number = value.unwrap_or(*next);
                *next = number.saturating_add(*step);
                numbered(number, *style)
            }
            _ => "-".to_owned(),
        };
        self.builder.prefix(format!("{indent}{mark} "));
        self.children(node, depth);
        // A mark without text after it is dropped.
        self.builder.prefix(String::new());
        self.builder.end_line(1);
    }

    fn table(&mut self, table: NodeId, depth: usize) {
        self.builder.end_line(2);
        self.rows(table, depth);
        self.builder.end_line(2);
    }

    fn rows(&mut self, node: NodeId, depth: usize) {
        if depth >= DEPTH {
            return;
        }
        let tree = self.tree;
        for child in tree.children(node) {
            match tree.element(child) {
                Some(("tr", _)) => self.row(child, depth + 1),
                Some(("thead" | "tbody" | "tfoot", _)) => self.rows(child, depth + 1),
                _ => self.node(child, depth + 1),
            }
        }
    }

    /// A row is a line, unless one of its cells is a whole page.
    fn row(&mut self, row: NodeId, depth: usize) {
        let tree = self.tree;
        let cells: Vec<NodeId> = tree
            .children(row)
            .filter(|child| matches!(tree.element(*child), Some(("td" | "th", _))))
            .collect();
        let is_line = !cells.iter().any(|cell| self.is_page(*cell));
        self.builder.end_line(1);
        if is_line {
            self.builder.begin_line();
        }
        let mut is_first = true;
        for child in tree.children(row) {
            let is_cell = matches!(tree.element(child), Some(("td" | "th", _)));
            match (is_cell, is_line) {
                (true, true) if !std::mem::take(&mut is_first) => self.builder.flow(" | "),
                (true, false) => self.builder.end_line(1),
                _ => {}
            }
            self.node(child, depth + 1);
        }
        if is_line {
            self.builder.finish_line();
        }
        self.builder.end_line(1);
    }

    /// True for a cell with headings, lists, tables or a long text of several paragraphs.
    fn is_page(&self, cell: NodeId) -> bool {
        let mut left: Vec<NodeId> = vec![cell];
        let (mut nodes, mut paragraphs, mut bytes) = (0, 0, 0);
        while let Some(node) = left.pop() {
            nodes += 1;
            bytes += self.tree.text(node).map_or(0, |text| text.trim().len());
            match self.tree.element(node) {
                Some((name, Language::Html)) if BLOCKS.contains(&name) => return true,
                Some(("p" | "div", _)) => paragraphs += 1,
                _ => {}
            }
            if nodes > CELL_NODES || (paragraphs > 1 && bytes > 400) {
                return true;
            }
            left.extend(self.tree.children(node).take(CELL_NODES));
        }
        false
    }

    /// A template is shown if it is the content of an element.
    fn template(&mut self, node: NodeId, depth: usize) {
        let tree = self.tree;
        let Some(contents) = tree.contents(node) else { return };
        if tree.attribute(node, "shadowrootmode").is_some() {
            return self.children(contents, depth);
        }
        let has_text = |node: NodeId| tree.text(node).is_some_and(|text| !text.trim().is_empty());
        let mut left = vec![contents];
        while let Some(node) = left.pop() {
            if has_text(node) {
                self.notes.left_out.templates += 1;
                return;
            }
            left.extend(tree.children(node));
        }
    }

    /// A nested page: its text if it is inline, otherwise it is counted.
    fn frame(&mut self, node: NodeId, name: &str, depth: usize) {
        let tree = self.tree;
        let inner = match name {
            "iframe" => tree.attribute(node, "srcdoc").map(str::to_owned),
            "noframes" | "noembed" => Some(tree.children(node).filter_map(|child| tree.text(child)).collect()),
            _ => None,
        };
        self.builder.end_line(2);
        match inner {
            Some(inner) if self.places.pages > 0 => {
                let builder = std::mem::take(&mut self.builder);
                let places = Places {
                    pages: self.places.pages - 1,
                    ..self.places
                };
                match read_within(builder, inner, Dialect::Html, places) {
                    Some((builder, notes)) => {
                        self.builder = builder;
                        self.notes.left_out.add(notes.left_out);
                    }
                    None => self.is_too_large = true,
                }
            }
            _ => self.notes.left_out.frames += 1,
        }
        if name == "object" {
            self.children(node, depth);
        }
        self.builder.end_line(2);
    }

    /// The text that replaces a picture.
    fn described(&mut self, node: NodeId) {
        let Some(words) = self.tree.attribute(node, "alt").map(title) else {
            return;
        };
        // The text of a formula's picture repeats the formula.
        if words.is_empty() || bare(&words) == self.formula {
            return;
        }
        self.words(" [Picture: ");
        self.words(&words);
        self.words("] ");
    }

    fn field(&mut self, node: NodeId) {
        let kind = self
            .tree
            .attribute(node, "type")
            .unwrap_or_default()
            .to_ascii_lowercase();
        if SHOWN_FIELDS.contains(&&*kind)
            && let Some(value) = self.tree.attribute(node, "value").map(str::to_owned)
        {
            self.words(" ");
            self.words(&value);
            self.words(" ");
        }
    }

    fn formula(&mut self, node: NodeId) {
        let words = formula::text(self.tree, node);
        self.words(&words);
        self.formula = bare(&words);
    }

    /// Visible words of a picture, without names and descriptions of its parts.
    fn picture(&mut self, node: NodeId, depth: usize, is_shown: bool) {
        let tree = self.tree;
        let name = tree.element(node).map_or("", |(name, _)| name);
        if matches!(name, "title" | "desc" | "style" | "script" | "metadata") || depth >= DEPTH {
            return;
        }
        let begins = matches!(name, "text" | "foreignObject");
        if begins {
            self.builder.end_line(1);
        } else if is_shown && name != "tspan" {
            self.builder.flow(" ");
        }
        for child in tree.children(node) {
            match (tree.text(child), tree.element(child)) {
                (Some(words), _) if is_shown || begins => self.words(words),
                (_, Some((_, Language::Svg))) => self.picture(child, depth + 1, is_shown || begins),
                (None, _) => self.node(child, depth + 1),
                _ => {}
            }
        }
        if begins {
            self.builder.end_line(1);
        }
    }
}

/// Words without white space.
fn bare(words: &str) -> String {
    words.split_whitespace().collect()
}

/// The number of an item in the style of its list.
fn numbered(number: i64, style: u8) -> String {
    let positive = usize::try_from(number).ok().filter(|number| (1..4000).contains(number));
    let text = match (style, positive) {
        (b'a', Some(number)) => letters(number),
        (b'A', Some(number)) => letters(number).to_uppercase(),
        (b'i', Some(number)) => crate::numerals::roman(number),
        (b'I', Some(number)) => crate::numerals::roman(number).to_uppercase(),
        _ => number.to_string(),
    };
    format!("{text}.")
}

/// `a` to `z`, then `aa`, `ab` and so on.
fn letters(mut number: usize) -> String {
    let mut reversed = Vec::new();
    while number > 0 {
        number -= 1;
        reversed.push(b'a' + (number % 26) as u8);
        number /= 26;
    }
    reversed.into_iter().rev().map(char::from).collect()
}
