//! Heading styles, and the numbers of paragraphs by style or list.

use std::collections::HashMap;

use crate::numerals::roman;
use crate::xml::{self, XmlEvent, attribute};

/// Levels of a list.
const LEVELS: usize = 9;

/// Letters of a mark.
const MARK_LETTERS: usize = 40;

/// A position in a list: the list's number and the level from 0.
pub(super) type ListPlace = (String, usize);

/// Properties of paragraph styles, by id.
#[derive(Debug, Default)]
pub(super) struct Styles {
    /// Levels of headings, from 1.
    pub(super) headings: HashMap<String, usize>,
    pub(super) lists: HashMap<String, ListPlace>,
}

impl Styles {
    /// Reads a styles part. Names of styles are English in every language.
    pub(super) fn read(bytes: Vec<u8>) -> Result<Self, String> {
        let mut styles = Self::default();
        let (mut id, mut list, mut level) = (String::new(), None, 0);
        xml::each(bytes, &mut |event| match event {
            XmlEvent::Start("style", element) => {
                id = attribute(element, "styleId").unwrap_or_default();
                (list, level) = (None, 0);
            }
            XmlEvent::Start("name", element) => {
                let name = attribute(element, "val").unwrap_or_default();
                if let Some(level) = heading_level(&name) {
                    styles.headings.insert(id.clone(), level);
                }
            }
            XmlEvent::Start("basedOn", element) => {
                let base = attribute(element, "val").unwrap_or_default();
                let known = styles.headings.get(&base).copied();
                if let Some(level) = known {
                    styles.headings.entry(id.clone()).or_insert(level);
                }
            }
            XmlEvent::Start("outlineLvl", element) => {
                let level = attribute(element, "val").and_then(|level| level.parse::<usize>().ok());
                if let Some(level) = level.filter(|level| *level < LEVELS) {
                    styles.headings.entry(id.clone()).or_insert(level + 1);
                }
            }
            XmlEvent::Start("ilvl", element) => level = number(attribute(element, "val")),
            XmlEvent::Start("numId", element) => list = attribute(element, "val"),
            XmlEvent::End("style") => {
                if let Some(list) = list.take() {
                    styles.lists.insert(std::mem::take(&mut id), (list, level));
                }
            }
            _ => {}
        })?;
        Ok(styles)
    }

    /// The level of a heading by its style; `None` for other paragraphs.
    pub(super) fn heading(&self, style: &str) -> Option<usize> {
        self.headings.get(style).copied().or_else(|| heading_level(style))
    }
}

/// The level that the name of a style gives: `heading 2`, `Title`.
fn heading_level(style: &str) -> Option<usize> {
    let style = style.to_ascii_lowercase();
    if style == "title" {
        return Some(1);
    }
    let level = style.strip_prefix("heading")?.trim();
    Some(level.parse().unwrap_or(1))
}

fn number(text: Option<String>) -> usize {
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[derive(Debug, Clone, Default)]
struct Level {
    start: usize,
    format: String,
    /// The pattern of a mark. `%1` stands for the number of the first level: `%1.%2.`
    text: String,
}

/// Lists of a document, with their counters.
#[derive(Debug, Default)]
pub(super) struct Numbering {
    levels: HashMap<String, Vec<Level>>,
    /// The definition of each list.
    definitions: HashMap<String, String>,
    counts: HashMap<String, [Option<usize>; LEVELS]>,
}

impl Numbering {
    pub(super) fn read(bytes: Vec<u8>) -> Result<Self, String> {
        let mut numbering = Self::default();
        let (mut definition, mut list, mut at) = (String::new(), String::new(), 0);
        let mut in_definition = false;
        xml::each(bytes, &mut |event| {
            let XmlEvent::Start(name, element) = event else { return };
            let value = || attribute(element, "val").unwrap_or_default();
            match name {
                "abstractNum" => {
                    definition = attribute(element, "abstractNumId").unwrap_or_default();
                    let levels = vec![Level::default(); LEVELS];
                    numbering.levels.insert(definition.clone(), levels);
                    in_definition = true;
                }
                "num" => {
                    list = attribute(element, "numId").unwrap_or_default();
                    in_definition = false;
                }
                "abstractNumId" => drop(numbering.definitions.insert(list.clone(), value())),
                "lvl" => at = number(attribute(element, "ilvl")).min(LEVELS - 1),
                "start" | "numFmt" | "lvlText" if in_definition => {
                    let levels = numbering.levels.get_mut(&definition);
                    if let Some(level) = levels.and_then(|levels| levels.get_mut(at)) {
                        match name {
                            "start" => level.start = number(Some(value())),
                            "numFmt" => level.format = value(),
                            _ => level.text = value().chars().take(MARK_LETTERS).collect(),
                        }
                    }
                }
                _ => {}
            }
        })?;
        Ok(numbering)
    }

    /// The mark of the next paragraph of a list: `3.`, `2.1` or `-`. Empty for a list without marks.
    pub(super) fn next(&mut self, (list, level): &ListPlace) -> String {
        let Some(definition) = self.definitions.get(list) else {
            return String::new();
        };
        let Some(levels) = self.levels.get(definition) else {
            return String::new();
        };
        let at = (*level).min(LEVELS - 1);
        let counts = self.counts.entry(definition.clone()).or_default();
        counts[at] = Some(counts[at].map_or(levels[at].start, |count| count + 1));
        counts[at + 1..].fill(None);
        match &*levels[at].format {
            "bullet" => return "-".to_owned(),
            "none" => return String::new(),
            _ => {}
        }
        let mut mark = levels[at].text.clone();
        for (above, level) in levels.iter().enumerate().take(at + 1) {
            let count = counts[above].unwrap_or(level.start);
            mark = mark.replace(&format!("%{}", above + 1), &formatted(count, &level.format));
        }
        mark.chars().take(MARK_LETTERS).collect()
    }
}

fn formatted(number: usize, format: &str) -> String {
    let letter = || {
        let letter = char::from(b'a' + (number.max(1) - 1) as u8 % 26);
        letter.to_string().repeat(((number.max(1) - 1) / 26 + 1).min(20))
    };
    match format {
        "lowerRoman" => roman(number),
        "upperRoman" => roman(number).to_uppercase(),
        "lowerLetter" => letter(),
        "upperLetter" => letter().to_uppercase(),
        "decimalZero" => format!("{number:02}"),
        _ => number.to_string(),
    }
}
