//! The outline of a file: chapters and their beginnings.

use std::collections::{HashMap, HashSet};

use super::file::File;
use super::object::{Dict, Object};
use super::pages::PageNumbers;
use super::strings::text_string;

/// Maximum number of entries of one outline, and of named places.
const ENTRIES: usize = 20_000;

/// Deepest nesting of entries.
const DEPTH: usize = 16;

/// A chapter or a part of one.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Chapter {
    pub(super) title: String,
    /// 0 for chapters, more for their parts.
    pub(super) level: usize,
    /// The page from 0.
    pub(super) page: usize,
    /// Height of the chapter's beginning on its page, in the page's coordinates.
    pub(super) top: Option<f64>,
}

/// The chapters of a file in page order.
pub(super) fn read(file: &File, catalog: &Dict, pages: &PageNumbers) -> Vec<Chapter> {
    let Some(outline) = file.get_dict(catalog, "Outlines") else {
        return Vec::new();
    };
    let names = names(file, catalog);
    let mut chapters = Vec::new();
    let mut visited = HashSet::new();
    // A stack of the entries still to read.
    let mut left: Vec<(Object, usize)> = outline
        .get("First")
        .map(|first| (first.clone(), 0))
        .into_iter()
        .collect();
    while let Some((entry, level)) = left.pop() {
        if let Object::Reference(number) = entry
            && !visited.insert(number)
        {
            continue;
        }
        let entry = file.resolved(&entry);
        let Some(entry) = entry.dict() else { continue };
        if chapters.len() >= ENTRIES || visited.len() >= 2 * ENTRIES {
            break;
        }
        left.extend(entry.get("Next").map(|next| (next.clone(), level)));
        if level + 1 < DEPTH {
            left.extend(entry.get("First").map(|first| (first.clone(), level + 1)));
        }
        let title = file.get(entry, "Title");
        let title = title
            .as_ref()
            .and_then(Object::text)
            .map(text_string)
            .unwrap_or_default();
        if let Some((page, top)) = destination(file, entry, &names, pages) {
            chapters.push(Chapter {
                title,
                level,
                page,
                top,
            });
        }
    }
    chapters.sort_by_key(|chapter| chapter.page);
    chapters
}

/// The target page of an entry, and the height on it.
fn destination(
    file: &File,
    entry: &Dict,
    names: &HashMap<Vec<u8>, Object>,
    pages: &PageNumbers,
) -> Option<(usize, Option<f64>)> {
    let target = file.get(entry, "Dest").or_else(|| {
        let action = file.get_dict(entry, "A")?;
        file.get(&action, "D")
    })?;
    let target = match &target {
        Object::Text(name) => names.get(name)?.clone(),
        Object::Name(name) => names.get(name.as_bytes())?.clone(),
        _ => target,
    };
    let target = match file.resolved(&target) {
        Object::Dict(dict) => file.get(&dict, "D")?,
        target => target,
    };
    let target = target.array()?;
    let page = match target.first()? {
        Object::Reference(number) => *pages.get(number)?,
        page => page.index()?,
    };
    let at = match target.get(1).and_then(Object::name)? {
        "XYZ" => 3,
        "FitH" | "FitBH" => 2,
        "FitR" => 5,
        _ => return Some((page, None)),
    };
    Some((page, target.get(at).and_then(|top| file.resolved(top).number())))
}

/// Places by their names.
fn names(file: &File, catalog: &Dict) -> HashMap<Vec<u8>, Object> {
    let mut names = HashMap::new();
    // Files before PDF 1.2 store them in a dictionary.
    for (name, place) in file.get_dict(catalog, "Dests").unwrap_or_default() {
        names.insert(name.into_bytes(), place);
    }
    let trees = file.get_dict(catalog, "Names");
    let tree = trees.as_ref().and_then(|trees| trees.get("Dests"));
    file.for_each_pair(tree, "Names", ENTRIES, |name, place| {
        if let Object::Text(name) = file.resolved(name)
            && names.len() < 10 * ENTRIES
        {
            names.insert(name, place.clone());
        }
    });
    names
}
