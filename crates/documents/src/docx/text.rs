//! Turns the events of a part into paragraphs.

use std::collections::HashMap;

use quick_xml::events::BytesStart;

use super::formula::Formula;
use super::styles::{ListPlace, Numbering, Styles};
use crate::builder::{TextBuilder, title};
use crate::html::{self, Dialect};
use crate::pdf::symbol;
use crate::xml::{self, XmlEvent, attribute};
use crate::{Limits, PlaceKind};

/// Deepest nesting of boxes.
const BOXES: usize = 16;

/// Elements whose text is repeated elsewhere: for old programs, or from before a change.
const REPEATED: [&str; 8] = [
    "Fallback",
    "moveFrom",
    "del",
    "pPrChange",
    "rPrChange",
    "sectPrChange",
    "tblPrChange",
    "numberingChange",
];

/// Parts that are left out, and changes that are taken as accepted.
#[derive(Debug, Default)]
pub(super) struct LeftOut {
    pub(super) deletions: usize,
    pub(super) charts: usize,
    pub(super) embedded: usize,
    pub(super) symbols: usize,
    pub(super) chunks: Vec<String>,
}

/// Turns parts into one text.
#[derive(Debug)]
pub(super) struct Paragraphs<'l> {
    pub(super) limits: &'l Limits,
    pub(super) builder: TextBuilder,
    pub(super) styles: Styles,
    pub(super) numbering: Numbering,
    /// Pages within the text, by the ids of their relations.
    pub(super) chunks: HashMap<String, String>,
    pub(super) left_out: LeftOut,
    in_text: bool,
    /// Open elements of [`REPEATED`].
    repeated: usize,
    /// Number and text of the heading; `None` for other paragraphs.
    heading: Option<(usize, String)>,
    /// List position of the paragraph.
    list: Option<ListPlace>,
    /// Cells of the open row, for each table.
    tables: Vec<usize>,
    /// Text outside the open boxes.
    boxes: Vec<Outside>,
    /// Text of boxes that ended within the paragraph.
    ended_boxes: Vec<String>,
    formula: Option<Formula>,
    /// The reading (ruby text) that precedes its base in the file.
    reading: Option<String>,
    in_reading: bool,
    choices: Choices,
}

/// Paragraph and builder around a text box.
#[derive(Debug)]
struct Outside {
    builder: TextBuilder,
    heading: Option<(usize, String)>,
    tables: Vec<usize>,
}

/// A field of a form with several choices.
#[derive(Debug, Default)]
struct Choices {
    entries: Vec<String>,
    chosen: usize,
    is_checked: bool,
}

impl<'l> Paragraphs<'l> {
    pub(super) fn new(limits: &'l Limits) -> Self {
        Self {
            limits,
            builder: TextBuilder::default(),
            styles: Styles::default(),
            numbering: Numbering::default(),
            chunks: HashMap::new(),
            left_out: LeftOut::default(),
            in_text: false,
            repeated: 0,
            heading: None,
            list: None,
            tables: Vec::new(),
            boxes: Vec::new(),
            ended_boxes: Vec::new(),
            formula: None,
            reading: None,
            in_reading: false,
            choices: Choices::default(),
        }
    }

    /// Adds the text of a part.
    pub(super) fn take(&mut self, bytes: Vec<u8>) -> Result<(), String> {
        let read = xml::each(bytes, &mut |event| match event {
            XmlEvent::Start(name, element) => self.start(name, element),
            XmlEvent::End(name) => self.end(name),
            XmlEvent::Text(text) if self.in_text && self.repeated == 0 => self.text(text),
            XmlEvent::Text(_) => {}
        });
        while !self.boxes.is_empty() {
            self.end_box();
        }
        (self.repeated, self.in_text, self.formula) = (0, false, None);
        self.tables.clear();
        self.end_paragraph();
        read
    }

    fn start(&mut self, name: &str, element: &BytesStart<'_>) {
        if REPEATED.contains(&name) {
            self.repeated += 1;
        }
        if self.repeated > 0 {
            self.left_out.deletions += usize::from(name == "delText");
            return;
        }
        let value = || attribute(element, "val");
        if let Some(formula) = &mut self.formula {
            formula.start(name, value);
            self.in_text |= name == "t";
            return;
        }
        match name {
            "t" => self.in_text = true,
            "pStyle" => self.style(&value().unwrap_or_default()),
            "ilvl" => self.place(|place| place.1 = value().and_then(|level| level.parse().ok()).unwrap_or(0)),
            "numId" => self.place(|place| place.0 = value().unwrap_or_default()),
            "p" if self.tables.is_empty() => self.builder.end_line(2),
            "tab" | "ptab" => self.flow(" "),
            "br" | "cr" => self.builder.end_line(1),
            "noBreakHyphen" => self.text("-"),
            "sym" => self.symbol(element),
            "oMath" => {
                let mut formula = Formula::default();
                formula.start(name, value);
                self.formula = Some(formula);
            }
            "tbl" => {
                self.tables.push(0);
                self.builder.end_line(2);
            }
            "tr" => {
                self.builder.end_line(1);
                if let Some(cells) = self.tables.last_mut() {
                    *cells = 0;
                }
            }
            "tc" => {
                let cells = self
                    .tables
                    .last_mut()
                    .map_or(0, |cells| std::mem::replace(cells, *cells + 1));
                if cells > 0 {
                    self.builder.flow(" | ");
                }
            }
            "rt" => (self.in_reading, self.reading) = (true, Some(String::new())),
            _ => self.start_object(name, element),
        }
    }

    /// Begins a picture, a box, a field of a form, a comment or a part of another file.
    fn start_object(&mut self, name: &str, element: &BytesStart<'_>) {
        let value = || attribute(element, "val");
        match name {
            "txbxContent" if self.boxes.len() < BOXES => {
                let outside = Outside {
                    builder: std::mem::take(&mut self.builder),
                    heading: self.heading.take(),
                    tables: std::mem::take(&mut self.tables),
                };
                self.boxes.push(outside);
            }
            "docPr" => {
                if let Some(words) = attribute(element, "descr")
                    .map(|words| title(&words))
                    .filter(|words| !words.is_empty())
                {
                    self.flow(&format!(" [Picture: {words}] "));
                }
            }
            "textpath" => {
                if let Some(words) = attribute(element, "string") {
                    self.flow(&format!(" {words} "));
                }
            }
            "ddList" | "checkBox" => self.choices = Choices::default(),
            "listEntry" => self.choices.entries.extend(value()),
            "result" => self.choices.chosen = value().and_then(|at| at.parse().ok()).unwrap_or(0),
            "default" | "checked" => {
                self.choices.is_checked = !value().is_some_and(|value| value == "0" || value == "false");
            }
            "comment" => {
                self.builder.end_line(2);
                let author = attribute(element, "author").unwrap_or_default();
                self.builder.prefix(format!("[Comment by {}: ", title(&author)));
                self.builder.begin_line();
            }
            "chart" => self.left_out.charts += 1,
            "OLEObject" => self.left_out.embedded += 1,
            "altChunk" => self.chunk(&attribute(element, "id").unwrap_or_default()),
            _ => {}
        }
    }

    fn end(&mut self, name: &str) {
        if REPEATED.contains(&name) {
            self.repeated = self.repeated.saturating_sub(1);
            return;
        }
        if self.repeated > 0 {
            return;
        }
        if name == "t" {
            self.in_text = false;
        }
        if let Some(formula) = &mut self.formula {
            if let Some(text) = formula.end() {
                self.formula = None;
                self.flow(&format!(" {} ", text.trim()));
            }
            return;
        }
        match name {
            "pPr" => self.mark_item(),
            "p" => self.end_paragraph(),
            "tbl" => {
                self.tables.pop();
                self.builder.end_line(2);
            }
            "rt" => self.in_reading = false,
            "ruby" => {
                if let Some(reading) = self.reading.take().filter(|reading| !reading.is_empty()) {
                    self.text(&format!("({reading})"));
                }
            }
            "txbxContent" => self.end_box(),
            "ddList" => {
                let chosen = self.choices.entries.get(self.choices.chosen).cloned();
                self.flow(&chosen.unwrap_or_default());
            }
            "checkBox" => self.flow(if self.choices.is_checked { "☒" } else { "☐" }),
            "comment" => {
                self.builder.flow("]");
                self.builder.finish_line();
                self.builder.end_line(2);
            }
            _ => {}
        }
    }

    fn text(&mut self, text: &str) {
        if let Some(formula) = &mut self.formula {
            return formula.text(text);
        }
        if let Some(reading) = self.reading.as_mut().filter(|_| self.in_reading) {
            return reading.push_str(text);
        }
        self.flow(text);
    }

    fn flow(&mut self, text: &str) {
        if let Some((_, heading)) = &mut self.heading {
            heading.push_str(text);
        }
        self.builder.flow(text);
    }

    fn style(&mut self, style: &str) {
        if let Some(level) = self.styles.heading(style)
            && self.heading.is_none()
        {
            let number = self.builder.mark(PlaceKind::heading("", level));
            self.heading = Some((number, String::new()));
        }
        if self.list.is_none() {
            self.list = self.styles.lists.get(style).cloned();
        }
    }

    fn place(&mut self, set: impl FnOnce(&mut ListPlace)) {
        set(self.list.get_or_insert_default());
    }

    /// Writes the paragraph's mark in its list before its text.
    fn mark_item(&mut self) {
        let Some(list) = self.list.take() else { return };
        let mark = self.numbering.next(&list);
        if mark.is_empty() {
            return;
        }
        let indent = if self.heading.is_some() { 0 } else { list.1.min(8) };
        self.builder.prefix(format!("{}{mark} ", "  ".repeat(indent)));
    }

    /// A character of a symbol font.
    fn symbol(&mut self, element: &BytesStart<'_>) {
        let font = attribute(element, "font").unwrap_or_default();
        let code = attribute(element, "char").and_then(|code| u32::from_str_radix(&code, 16).ok());
        match code.and_then(|code| symbol(&font, code)) {
            Some(text) => self.text(&text),
            None => self.left_out.symbols += 1,
        }
    }

    /// An embedded page of another kind, which is read once.
    fn chunk(&mut self, id: &str) {
        let Some(page) = self.chunks.remove(id) else {
            if self.left_out.chunks.len() < 100 {
                self.left_out.chunks.push(id.to_owned());
            }
            return;
        };
        self.builder.end_line(2);
        let builder = std::mem::take(&mut self.builder);
        match html::read_into(builder, page, Dialect::Html, &html::Anchors::new(), self.limits) {
            Some((builder, _)) => self.builder = builder,
            None => self.left_out.chunks.push(id.to_owned()),
        }
        self.builder.end_line(2);
    }

    fn end_box(&mut self) {
        let Some(outside) = self.boxes.pop() else { return };
        let inside = std::mem::replace(&mut self.builder, outside.builder);
        (self.heading, self.tables) = (outside.heading, outside.tables);
        let text = inside.finish().0;
        if !text.trim().is_empty() {
            self.ended_boxes.push(text);
        }
    }

    /// Ends a paragraph; paragraphs of a cell stay on its row.
    fn end_block(&mut self) {
        if self.tables.is_empty() {
            self.builder.end_line(2);
        } else {
            self.builder.flow(" ");
        }
    }

    fn end_paragraph(&mut self) {
        if let Some((number, heading)) = self.heading.take() {
            self.builder.name(number, title(&heading));
        }
        self.list = None;
        // A mark without text after it is dropped.
        self.builder.prefix(String::new());
        self.end_block();
        if self.boxes.is_empty() {
            for text in std::mem::take(&mut self.ended_boxes) {
                self.builder.verbatim(text.trim_end());
                self.end_block();
            }
        }
    }
}
