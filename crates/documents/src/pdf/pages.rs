//! Pages of a file in order, and their labels.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::content::{IDENTITY, Matrix, product};
use super::file::{File, Refusal};
use super::object::{Dict, Object};
use super::strings::text_string;
use crate::numerals::roman;

/// Maximum number of pages of one file.
const PAGES: usize = 200_000;

/// A page, with inherited attributes.
#[derive(Debug)]
pub(super) struct Page {
    /// Number of the page's object.
    pub(super) object: Option<u32>,
    pub(super) dict: Dict,
    pub(super) resources: Rc<Dict>,
    /// The matrix from the page's space to a reader's, upright and with its corner at the origin.
    pub(super) matrix: Matrix,
    /// Width and height for a reader.
    pub(super) size: (f32, f32),
}

/// Maximum number of nodes of the tree of page labels.
const LABEL_NODES: usize = 10_000;

/// Attributes that pages inherit.
#[derive(Debug, Clone)]
struct Inherited {
    resources: Rc<Dict>,
    media_box: Rc<[f64]>,
    rotate: f64,
}

/// The pages of a file, read one by one.
#[derive(Debug)]
pub(super) struct Pages<'a> {
    file: &'a File,
    /// A stack of the nodes still to read.
    left: Vec<(Object, Inherited)>,
    visited: HashSet<u32>,
    count: usize,
}

impl<'a> Pages<'a> {
    pub(super) fn new(file: &'a File) -> Self {
        let catalog = file.catalog().unwrap_or_default();
        let inherited = Inherited {
            resources: Rc::default(),
            media_box: Rc::from([0.0, 0.0, 612.0, 792.0]),
            rotate: 0.0,
        };
        let root = catalog.get("Pages").cloned().unwrap_or(Object::Null);
        Self {
            file,
            left: vec![(root, inherited)],
            visited: HashSet::new(),
            count: 0,
        }
    }

    /// The next page; an error beyond the limit of pages.
    pub(super) fn next(&mut self) -> Result<Option<Page>, Refusal> {
        while let Some((node, inherited)) = self.left.pop() {
            let object = match node {
                Object::Reference(number) => Some(number),
                _ => None,
            };
            // A node that is its own ancestor would never end.
            if object.is_some_and(|number| !self.visited.insert(number)) {
                continue;
            }
            let node = self.file.resolved(&node);
            let Some(dict) = node.dict() else { continue };
            let inherited = self.inherited(dict, &inherited);
            if let Some(kids) = self.file.get_array(dict, "Kids") {
                self.left
                    .extend(kids.into_iter().rev().map(|kid| (kid, inherited.clone())));
                if self.left.len() > PAGES {
                    return Err(Refusal::TooMuch);
                }
                continue;
            }
            self.count += 1;
            if self.count > PAGES {
                return Err(Refusal::TooMuch);
            }
            return Ok(Some(page(object, dict, &inherited)));
        }
        Ok(None)
    }

    fn inherited(&self, dict: &Dict, above: &Inherited) -> Inherited {
        let resources = self.file.get_dict(dict, "Resources").map(Rc::new);
        let box_of = |key: &str| self.file.get_numbers(dict, key).filter(|corners| corners.len() == 4);
        let media_box = box_of("CropBox").or_else(|| box_of("MediaBox"));
        Inherited {
            resources: resources.unwrap_or_else(|| Rc::clone(&above.resources)),
            media_box: media_box.map_or_else(|| Rc::clone(&above.media_box), Rc::from),
            rotate: self.file.get_number(dict, "Rotate").unwrap_or(above.rotate),
        }
    }
}

fn page(object: Option<u32>, dict: &Dict, inherited: &Inherited) -> Page {
    let corners = &inherited.media_box;
    let (left, right) = (corners[0].min(corners[2]), corners[0].max(corners[2]));
    let (bottom, top) = (corners[1].min(corners[3]), corners[1].max(corners[3]));
    let (width, height) = (right - left, top - bottom);
    let to_origin = [1.0, 0.0, 0.0, 1.0, -left, -bottom];
    let turned = match (inherited.rotate as i64).rem_euclid(360) {
        90 => [0.0, -1.0, 1.0, 0.0, 0.0, width],
        180 => [-1.0, 0.0, 0.0, -1.0, width, height],
        270 => [0.0, 1.0, -1.0, 0.0, height, 0.0],
        _ => IDENTITY,
    };
    let is_on_its_side = turned[0] == 0.0;
    let size = if is_on_its_side {
        (height, width)
    } else {
        (width, height)
    };
    Page {
        object,
        dict: dict.clone(),
        resources: Rc::clone(&inherited.resources),
        matrix: product(&to_origin, &turned),
        size: (size.0 as f32, size.1 as f32),
    }
}

/// The bytes of a page's operators, and `false` if a part is missing.
pub(super) fn contents(file: &File, page: &Dict) -> (Vec<u8>, bool) {
    let parts = match file.get(page, "Contents") {
        Some(Object::Array(parts)) => parts,
        Some(part) => vec![part],
        None => Vec::new(),
    };
    let (mut bytes, mut is_whole) = (Vec::new(), true);
    for part in &parts {
        match file.resolved(part) {
            Object::Stream(stream) => match file.data(&stream) {
                Ok(part) => {
                    bytes.extend_from_slice(&part);
                    // A part ends between operators.
                    bytes.push(b'\n');
                }
                Err(_) => is_whole = false,
            },
            Object::Null => {}
            _ => is_whole = false,
        }
        if bytes.len() > 64 << 20 {
            return (bytes, false);
        }
    }
    (bytes, is_whole)
}

/// Labels of pages, such as `iv` or `A-3`, by ranges.
#[derive(Debug, Default)]
pub(super) struct Labels {
    /// First page from 0, style, prefix and first number.
    ranges: Vec<(usize, Option<String>, String, usize)>,
}

impl Labels {
    pub(super) fn read(file: &File, catalog: &Dict) -> Self {
        let mut ranges = Vec::new();
        file.for_each_pair(catalog.get("PageLabels"), "Nums", LABEL_NODES, |first, label| {
            let label = file.resolved(label);
            if let (Some(first), Some(label)) = (file.resolved(first).index(), label.dict()) {
                let prefix = file.get(label, "P");
                let prefix = prefix
                    .as_ref()
                    .and_then(Object::text)
                    .map(text_string)
                    .unwrap_or_default();
                let number = file.get_number(label, "St").unwrap_or(1.0).clamp(0.0, 1e9) as usize;
                ranges.push((first, file.get_name(label, "S"), prefix, number));
            }
        });
        ranges.sort_by_key(|range| range.0);
        Self { ranges }
    }

    /// Label of a page, counted from 0; `None` if the label is the page's number.
    pub(super) fn label(&self, page: usize) -> Option<String> {
        let before = self.ranges.partition_point(|range| range.0 <= page);
        let (first, style, prefix, number) = self.ranges.get(before.checked_sub(1)?)?;
        let number = number + (page - first);
        let digits = match style.as_deref() {
            Some("D") => number.to_string(),
            Some("R") => roman(number).to_uppercase(),
            Some("r") => roman(number),
            Some("A") => letters(number).to_uppercase(),
            Some("a") => letters(number),
            _ => String::new(),
        };
        let label = format!("{prefix}{digits}");
        (!label.is_empty() && label != (page + 1).to_string()).then_some(label)
    }
}

/// `a` to `z`, then `aa` to `zz`.
fn letters(number: usize) -> String {
    let Some(at) = number.checked_sub(1) else {
        return String::new();
    };
    let letter = char::from(b'a' + (at % 26) as u8);
    letter.to_string().repeat((at / 26 + 1).min(20))
}

/// Numbers of pages by their objects.
pub(super) type PageNumbers = HashMap<u32, usize>;
