//! EPUB books: the chapters of the spine, in its order.

use std::collections::BTreeMap;

use crate::archive::Archive;
use crate::builder::{TextBuilder, title};
use crate::xml::{self, XmlEvent, attribute};
use crate::{Document, DocumentError, DocumentKind, Limits, PlaceKind, html};

/// Missing parts that a warning names.
const NAMED_PARTS: usize = 5;

/// Contents of an EPUB's package file.
#[derive(Default)]
struct Package {
    /// Paths in the archive and kinds of content, by id.
    items: BTreeMap<String, Item>,
    /// Ids of the parts, in reading order.
    spine: Vec<String>,
    /// Id of the table of contents of EPUB 2.
    contents: Option<String>,
}

struct Item {
    path: String,
    is_page: bool,
    is_navigation: bool,
}

pub(crate) fn read(name: &str, bytes: &[u8], limits: &Limits) -> Result<Document, DocumentError> {
    let mut archive = Archive::open(name, DocumentKind::Epub, bytes, limits)?;
    let package_path = package_path(&mut archive)?;
    let package_bytes = archive.needed(&package_path)?;
    let package = package(&package_bytes, &package_path).map_err(|why| archive.damaged(why))?;
    let locked = locked_parts(&mut archive)?;
    let titles = titles(&mut archive, &package)?;
    let mut builder = TextBuilder::default();
    let mut missing = Vec::new();
    let mut chapters = 0;
    for id in &package.spine {
        let Some(item) = package.items.get(id).filter(|item| item.is_page) else {
            continue;
        };
        if item.is_navigation {
            continue;
        }
        if locked.contains(&item.path) {
            return Err(archive.encrypted());
        }
        let Some(chapter) = archive.part(&item.path)? else {
            missing.push(item.path.as_str());
            continue;
        };
        builder.end_line(2);
        chapters += 1;
        builder.mark(PlaceKind::Chapter(String::new()));
        let chapter_at = builder.marks();
        let heading;
        (builder, heading) = html::read_into(builder, &chapter);
        let chapter_title = titles.get(&item.path).cloned().or(heading);
        builder.name(chapter_at, chapter_title.unwrap_or_else(|| format!("part {chapters}")));
        if builder.len() as u64 > limits.expanded_bytes {
            return Err(DocumentError::TooMuchInside {
                name: name.to_owned(),
                limit_bytes: limits.expanded_bytes,
            });
        }
    }
    if chapters == 0 {
        return Err(archive.damaged("its package names no chapters that it holds"));
    }
    let (text, places) = builder.finish();
    Ok(Document {
        name: name.to_owned(),
        kind: DocumentKind::Epub,
        text,
        places,
        warnings: missing_parts(&missing).into_iter().collect(),
    })
}

/// One line about chapters that the package names and the file lacks.
fn missing_parts(missing: &[&str]) -> Option<String> {
    let named = missing.iter().take(NAMED_PARTS).copied().collect::<Vec<_>>().join(", ");
    match missing.len() {
        0 => None,
        1 => Some(format!("{named} is missing in the file")),
        count if count <= NAMED_PARTS => Some(format!("{count} parts are missing in the file: {named}")),
        count => Some(format!("{count} parts are missing in the file: {named} and others")),
    }
}

/// The path of the package's description.
fn package_path(archive: &mut Archive<'_>) -> Result<String, DocumentError> {
    let container = archive.needed("META-INF/container.xml")?;
    let mut path = None;
    let read = xml::each(&container, &mut |event| {
        if let XmlEvent::Start("rootfile", element) = event
            && path.is_none()
        {
            path = attribute(element, "full-path");
        }
    });
    read.map_err(|why| archive.damaged(why))?;
    path.ok_or_else(|| archive.damaged("its container names no package"))
}

fn package(bytes: &[u8], path: &str) -> Result<Package, String> {
    let mut package = Package::default();
    xml::each(bytes, &mut |event| match event {
        XmlEvent::Start("item", element) => {
            let (Some(id), Some(href)) = (attribute(element, "id"), attribute(element, "href")) else {
                return;
            };
            let kind = attribute(element, "media-type").unwrap_or_default();
            let properties = attribute(element, "properties").unwrap_or_default();
            let item = Item {
                path: resolved(path, &href),
                is_page: kind.contains("html") || kind.is_empty(),
                is_navigation: properties.split(' ').any(|property| property == "nav"),
            };
            package.items.insert(id, item);
        }
        XmlEvent::Start("spine", element) => package.contents = attribute(element, "toc"),
        XmlEvent::Start("itemref", element) => package.spine.extend(attribute(element, "idref")),
        _ => {}
    })?;
    Ok(package)
}

/// Parts that a reader's program would have to unlock; fonts may be among them.
fn locked_parts(archive: &mut Archive<'_>) -> Result<Vec<String>, DocumentError> {
    let Some(bytes) = archive.part("META-INF/encryption.xml")? else {
        return Ok(Vec::new());
    };
    let mut parts = Vec::new();
    let read = xml::each(&bytes, &mut |event| {
        if let XmlEvent::Start("CipherReference", element) = event {
            parts.extend(attribute(element, "URI").map(|path| unescaped(&path)));
        }
    });
    read.map_err(|why| archive.damaged(why))?;
    Ok(parts)
}

/// Titles of chapters by their paths: from the navigation of EPUB 3, or the table of contents of EPUB 2.
fn titles(archive: &mut Archive<'_>, package: &Package) -> Result<BTreeMap<String, String>, DocumentError> {
    let mut titles = BTreeMap::new();
    let navigation = package.items.values().find(|item| item.is_navigation);
    let contents = package.contents.as_ref().and_then(|id| package.items.get(id));
    for item in [navigation, contents].into_iter().flatten() {
        let Some(bytes) = archive.part(&item.path)? else {
            continue;
        };
        let mut add = |href: &str, text: &str| {
            let text = title(text);
            if !text.is_empty() {
                titles.entry(resolved(&item.path, href)).or_insert(text);
            }
        };
        // A table of contents that cannot be read costs titles alone.
        let _ = if item.is_navigation {
            links(&bytes, &mut add)
        } else {
            points(&bytes, &mut add)
        };
    }
    Ok(titles)
}

/// Links of a page, each with its text.
fn links(bytes: &[u8], add: &mut dyn FnMut(&str, &str)) -> Result<(), String> {
    let mut open: Option<(String, String)> = None;
    xml::each(bytes, &mut |event| match event {
        XmlEvent::Start("a", element) => open = attribute(element, "href").map(|href| (href, String::new())),
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
fn points(bytes: &[u8], add: &mut dyn FnMut(&str, &str)) -> Result<(), String> {
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

/// The path in the archive of a link that stands in the part `from`.
fn resolved(from: &str, link: &str) -> String {
    let link = link.split(['#', '?']).next().unwrap_or_default();
    let link = unescaped(link);
    let folder = from.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut steps: Vec<&str> = Vec::new();
    let all = folder.split('/').chain(link.split('/'));
    for step in all.filter(|step| !step.is_empty() && *step != ".") {
        match step {
            ".." => drop(steps.pop()),
            step => steps.push(step),
        }
    }
    steps.join("/")
}

/// A link with its escaped characters (`%20`) as they are.
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
