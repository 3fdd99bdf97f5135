//! EPUB books: the chapters of the spine, in its order.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use crate::archive::Archive;
use crate::builder::{TextBuilder, title};
use crate::encoding::decode_markup;
use crate::html::Dialect;
use crate::xml::{self, XmlEvent, attribute};
use crate::{Document, DocumentError, DocumentKind, Limits, PlaceKind, html};

/// Maximum number of parts named in a warning.
const NAMED_PARTS: usize = 5;

/// Longest chain of fallback items.
const FALLBACKS: usize = 8;

/// Maximum number of items of one book.
const ITEMS: usize = 20_000;

/// Largest total size of a book's pages in bytes.
const PAGES_BYTES: usize = 96 << 20;

/// Parts of media types that are read as pages; books before EPUB 3 have their own dialects.
const PAGES: [&str; 5] = ["html", "x-oeb1-document", "x-dtbook", "text/plain", "svg"];

/// Contents of an EPUB's package file.
#[derive(Default)]
struct Package {
    /// Parts of the book in the order of their list, by id.
    items: Vec<Item>,
    numbers: HashMap<String, usize>,
    /// Ids of the parts, in reading order.
    spine: Vec<String>,
    /// Id of the table of contents of EPUB 2.
    contents: Option<String>,
    /// True if the package lists too many items.
    is_too_large: bool,
}

struct Item {
    path: String,
    /// The link as written in the package.
    link: String,
    is_page: bool,
    is_navigation: bool,
    /// Id of the fallback for an item that cannot be shown.
    fallback: Option<String>,
}

impl Package {
    fn item(&self, id: &str) -> Option<&Item> {
        self.numbers.get(id).map(|number| &self.items[*number])
    }

    /// The page of an id: its own item, or its fallback.
    fn page(&self, id: &str) -> Option<&Item> {
        let mut item = self.item(id)?;
        for _ in 0..FALLBACKS {
            if item.is_page {
                return Some(item);
            }
            item = self.item(item.fallback.as_deref()?)?;
        }
        None
    }
}

/// Titles by the paths of parts, and by anchors within them.
type Titles = HashMap<String, (Option<String>, html::Anchors)>;

/// Parts of the book that are missing from its text.
#[derive(Default)]
struct Missing {
    absent: Vec<String>,
    locked: Vec<String>,
    /// Parts of other kinds, such as pictures and sounds.
    others: Vec<String>,
    /// Pages outside the reading order; they are read after it.
    unordered: usize,
    parts: html::LeftOutParts,
}

pub(crate) fn read(name: &str, bytes: &[u8], limits: &Limits) -> Result<Document, DocumentError> {
    let mut archive = Archive::open(name, DocumentKind::Epub, bytes, limits)?;
    let package_path = package_path(&mut archive)?;
    let package_bytes = archive.needed(&package_path)?;
    let package = package(package_bytes, &package_path).map_err(|why| archive.damaged(why))?;
    if package.is_too_large {
        return Err(DocumentError::TooManyFiles {
            name: name.to_owned(),
            limit: ITEMS,
        });
    }
    let locked = locked_parts(&mut archive)?;
    let titles = titles(&mut archive, &package)?;
    let mut missing = Missing::default();
    let order = reading_order(&package, &mut missing);
    let mut builder = TextBuilder::default();
    let (mut chapters, mut known_locked, mut page_bytes) = (0, 0, 0);
    for item in order {
        if locked.contains(&item.path) {
            known_locked += 1;
            missing.locked.push(item.path.clone());
            continue;
        }
        let bytes = match archive.page(&item.path)? {
            None => archive.page(&item.link)?,
            bytes => bytes,
        };
        let Some(bytes) = bytes else {
            missing.absent.push(item.path.clone());
            continue;
        };
        page_bytes += bytes.len();
        check_size(name, page_bytes as u64, PAGES_BYTES as u64)?;
        chapters += 1;
        let titles = titles.get(&item.path).cloned().unwrap_or_default();
        let added = add_page(builder, bytes, titles, chapters, limits);
        let (with_page, left_out) = added.ok_or_else(|| DocumentError::TooMuchWork { name: name.to_owned() })?;
        builder = with_page;
        missing.parts.add(left_out);
        check_size(name, builder.len() as u64, limits.expanded_bytes)?;
    }
    if chapters == 0 {
        return Err(match known_locked {
            0 => archive.damaged("its package names no chapters that it holds"),
            _ => archive.encrypted(),
        });
    }
    let (text, places) = builder.finish();
    Ok(Document {
        name: name.to_owned(),
        kind: DocumentKind::Epub,
        text,
        places,
        warnings: missing.warnings(),
    })
}

/// Refuses a book with implausibly large parts.
fn check_size(name: &str, bytes: u64, limit_bytes: u64) -> Result<(), DocumentError> {
    if bytes > limit_bytes {
        return Err(DocumentError::TooMuchInside {
            name: name.to_owned(),
            limit_bytes,
        });
    }
    Ok(())
}

/// Adds the text of a page as a chapter, and returns its omissions; `None` for a page that takes too much work.
fn add_page(
    mut builder: TextBuilder,
    bytes: Vec<u8>,
    (title, anchors): (Option<String>, html::Anchors),
    number: usize,
    limits: &Limits,
) -> Option<(TextBuilder, html::LeftOutParts)> {
    builder.end_line(2);
    let at = builder.mark(PlaceKind::Chapter(String::new()));
    let page = decode_markup(bytes);
    let (mut builder, notes) = html::read_into(builder, page, Dialect::Xhtml, &anchors, limits)?;
    builder.name(at, title.or(notes.heading).unwrap_or_else(|| format!("part {number}")));
    Some((builder, notes.left_out))
}

/// Pages in the order of the spine, followed by pages outside it. A repeated page is read once.
fn reading_order<'p>(package: &'p Package, missing: &mut Missing) -> Vec<&'p Item> {
    let mut order: Vec<&Item> = Vec::new();
    let mut seen: HashSet<&str> = HashSet::new();
    for id in &package.spine {
        match package.page(id) {
            Some(item) if !item.is_navigation && seen.insert(&item.path) => order.push(item),
            Some(_) => {}
            None => missing
                .others
                .push(package.item(id).map_or(id, |item| &item.path).clone()),
        }
    }
    let in_spine = order.len();
    let left = package.items.iter().filter(|item| item.is_page && !item.is_navigation);
    order.extend(left.filter(|item| seen.insert(&item.path)));
    if in_spine > 0 {
        missing.unordered = order.len() - in_spine;
    }
    order
}

impl Missing {
    fn warnings(self) -> Vec<String> {
        let mut warnings = Vec::new();
        warnings.extend(named(&self.absent, "is missing in the file", "are missing in the file"));
        warnings.extend(named(
            &self.locked,
            "is encrypted and left out",
            "are encrypted and left out",
        ));
        warnings.extend(named(
            &self.others,
            "is no page and left out",
            "are no pages and left out",
        ));
        if self.unordered > 0 {
            warnings.push(format!(
                "{} pages that the book's order does not name stand behind the others",
                self.unordered
            ));
        }
        warnings.extend(self.parts.warnings());
        warnings
    }
}

/// One line about parts with a common property.
fn named(parts: &[String], one: &str, several: &str) -> Option<String> {
    let named = parts
        .iter()
        .take(NAMED_PARTS)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    match parts.len() {
        0 => None,
        1 => Some(format!("{named} {one}")),
        count if count <= NAMED_PARTS => Some(format!("{count} parts {several}: {named}")),
        count => Some(format!("{count} parts {several}: {named} and others")),
    }
}

/// The path of the package's description.
fn package_path(archive: &mut Archive<'_>) -> Result<String, DocumentError> {
    let mut path = None;
    let Some(container) = archive.part("META-INF/container.xml")? else {
        let found = archive.names().find(|name| name.ends_with(".opf")).map(Cow::into_owned);
        return found.ok_or_else(|| archive.damaged("META-INF/container.xml is missing"));
    };
    let read = xml::each(container, &mut |event| {
        if let XmlEvent::Start("rootfile", element) = event
            && path.is_none()
        {
            path = attribute(element, "full-path");
        }
    });
    read.map_err(|why| archive.damaged(why))?;
    let path = path.ok_or_else(|| archive.damaged("its container names no package"))?;
    let path = path.trim_start_matches('/').to_owned();
    let plain = unescaped(&path);
    Ok(if archive.has(&path) { path } else { plain })
}

fn package(bytes: Vec<u8>, path: &str) -> Result<Package, String> {
    let mut package = Package::default();
    xml::each(bytes, &mut |event| match event {
        XmlEvent::Start("item" | "itemref", _) if package.items.len().max(package.spine.len()) >= ITEMS => {
            package.is_too_large = true;
        }
        XmlEvent::Start("item", element) => {
            let (Some(id), Some(href)) = (attribute(element, "id"), attribute(element, "href")) else {
                return;
            };
            let kind = attribute(element, "media-type").unwrap_or_default();
            let properties = attribute(element, "properties").unwrap_or_default();
            let link = href.split(['#', '?']).next().unwrap_or_default();
            let item = Item {
                path: resolved(path, &href),
                link: joined(path, link),
                is_page: PAGES.iter().any(|page| kind.contains(page)) || kind.is_empty(),
                is_navigation: properties.split_ascii_whitespace().any(|property| property == "nav"),
                fallback: attribute(element, "fallback"),
            };
            package.numbers.entry(id).or_insert(package.items.len());
            package.items.push(item);
        }
        XmlEvent::Start("spine", element) => package.contents = attribute(element, "toc"),
        XmlEvent::Start("itemref", element) => package.spine.extend(attribute(element, "idref")),
        _ => {}
    })?;
    Ok(package)
}

/// Encrypted parts, possibly including fonts.
fn locked_parts(archive: &mut Archive<'_>) -> Result<Vec<String>, DocumentError> {
    let Some(bytes) = archive.part("META-INF/encryption.xml")? else {
        return Ok(Vec::new());
    };
    let mut parts = Vec::new();
    let read = xml::each(bytes, &mut |event| {
        if let XmlEvent::Start("CipherReference", element) = event {
            parts.extend(attribute(element, "URI").map(|path| unescaped(&path)));
        }
    });
    read.map_err(|why| archive.damaged(why))?;
    Ok(parts)
}

/// Titles of chapters by their paths: from the navigation of EPUB 3, or the table of contents of EPUB 2.
fn titles(archive: &mut Archive<'_>, package: &Package) -> Result<Titles, DocumentError> {
    let mut titles = Titles::new();
    let navigation = package.items.iter().find(|item| item.is_navigation);
    let contents = package.contents.as_ref().and_then(|id| package.item(id));
    for item in [navigation, contents].into_iter().flatten() {
        let Some(bytes) = archive.part(&item.path)? else {
            continue;
        };
        // The table of contents is read only if the navigation gives no titles.
        if !titles.is_empty() {
            continue;
        }
        let mut add = |href: &str, text: &str| {
            let text = title(text);
            if text.is_empty() {
                return;
            }
            let (whole, places) = titles.entry(resolved(&item.path, href)).or_default();
            match href.split_once('#') {
                Some((_, place)) if whole.is_some() || !places.is_empty() => {
                    places.entry(unescaped(place)).or_insert(text);
                }
                // The first anchor of a part marks its beginning.
                _ => {
                    whole.get_or_insert(text);
                }
            }
        };
        // An unreadable table of contents only costs titles.
        let _ = if item.is_navigation {
            links(bytes, &mut add)
        } else {
            points(bytes, &mut add)
        };
    }
    Ok(titles)
}

/// Links of a page, each with its text.
fn links(bytes: Vec<u8>, add: &mut dyn FnMut(&str, &str)) -> Result<(), String> {
    let mut open: Option<(String, String)> = None;
    // Lists of pages and landmarks are not chapters.
    let mut is_contents = true;
    xml::each(bytes, &mut |event| match event {
        XmlEvent::Start("nav", element) => {
            is_contents = attribute(element, "type").is_none_or(|kind| kind.contains("toc"));
        }
        XmlEvent::End("nav") => is_contents = true,
        XmlEvent::Start("a", element) if is_contents => {
            open = attribute(element, "href").map(|href| (href, String::new()));
        }
        XmlEvent::Text(text) => {
            if let Some((_, said)) = &mut open {
                said.push_str(text);
            }
        }
        XmlEvent::End("a") => {
            if let Some((href, said)) = open.take() {
                add(&href, &said);
            }
        }
        _ => {}
    })
}

/// Points of an EPUB 2 table of contents: a label, then its target.
fn points(bytes: Vec<u8>, add: &mut dyn FnMut(&str, &str)) -> Result<(), String> {
    let mut label = String::new();
    let mut in_label = false;
    xml::each(bytes, &mut |event| match event {
        XmlEvent::Start("navPoint", _) => label.clear(),
        XmlEvent::Start("navLabel", _) => in_label = true,
        XmlEvent::End("navLabel") => in_label = false,
        XmlEvent::Text(text) if in_label => label.push_str(text),
        XmlEvent::Start("content", element) => {
            if let Some(href) = attribute(element, "src") {
                add(&href, &label);
            }
        }
        _ => {}
    })
}

/// The path in the archive of a link in the part `from`.
fn resolved(from: &str, link: &str) -> String {
    let link = link.split(['#', '?']).next().unwrap_or_default();
    joined(from, &unescaped(link))
}

/// The path of a file that the part `from` refers to.
fn joined(from: &str, link: &str) -> String {
    let folder = from.rsplit_once('/').map_or("", |(folder, _)| folder);
    let folder = if link.starts_with('/') { "" } else { folder };
    let mut steps: Vec<&str> = Vec::new();
    let all = folder.split('/').chain(link.split(['/', '\\']));
    for step in all.filter(|step| !step.is_empty() && *step != ".") {
        match step {
            ".." => drop(steps.pop()),
            step => steps.push(step),
        }
    }
    steps.join("/")
}

/// A link with its escaped characters (`%20`) decoded.
fn unescaped(link: &str) -> String {
    let bytes = link.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let digits = bytes
            .get(at + 1..at + 3)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let code = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match (bytes[at], code) {
            (b'%', Some(code)) => {
                out.push(code);
                at += 3;
            }
            (byte, _) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_resolved_within_the_archive() {
        assert_eq!(
            resolved("OEBPS/content.opf", "text/a%20b.xhtml#x"),
            "OEBPS/text/a b.xhtml"
        );
        assert_eq!(resolved("a/b/c.opf", "../../../d.xhtml"), "d.xhtml");
        assert_eq!(resolved("c.opf", "./d%zz.xhtml"), "d%zz.xhtml");
    }
}
