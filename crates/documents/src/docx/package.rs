//! Parts of a package, and the relations between them.

use crate::DocumentError;
use crate::archive::Archive;
use crate::xml::{self, XmlEvent, attribute};

/// Maximum number of relations of one part; each picture is one.
const RELATIONS: usize = 100_000;

/// A relation to another part.
#[derive(Debug, Clone)]
pub(super) struct Relation {
    pub(super) id: String,
    /// Last word of the type.
    pub(super) kind: String,
    pub(super) part: String,
}

/// The part with the text, according to the package; `None` if the package does not name it.
pub(super) fn main_part(archive: &mut Archive<'_>) -> Result<Option<String>, DocumentError> {
    let package = relations(archive, "_rels/.rels", "")?;
    let found = parts_of(&package, "officeDocument").next().map(str::to_owned);
    Ok(found.filter(|part| archive.has(part)))
}

pub(super) fn parts_of<'r>(relations: &'r [Relation], kind: &'r str) -> impl Iterator<Item = &'r str> {
    let wanted = relations.iter().filter(move |relation| relation.kind == kind);
    wanted.map(|relation| relation.part.as_str())
}

/// The relations of a part.
pub(super) fn relations_of(archive: &mut Archive<'_>, part: &str) -> Result<Vec<Relation>, DocumentError> {
    let (folder, file) = part.rsplit_once('/').unwrap_or(("", part));
    let list = match folder {
        "" => format!("_rels/{file}.rels"),
        folder => format!("{folder}/_rels/{file}.rels"),
    };
    relations(archive, &list, folder)
}

/// The relations that a part lists; paths are relative to `folder`.
fn relations(archive: &mut Archive<'_>, part: &str, folder: &str) -> Result<Vec<Relation>, DocumentError> {
    let Some(bytes) = archive.part(part)? else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    let read = xml::each(bytes, &mut |event| {
        let XmlEvent::Start("Relationship", element) = event else {
            return;
        };
        let (kind, target) = (attribute(element, "Type"), attribute(element, "Target"));
        let is_outside = attribute(element, "TargetMode").is_some_and(|mode| mode == "External");
        if let (Some(kind), Some(target), false) = (kind, target, is_outside)
            && found.len() < RELATIONS
        {
            found.push(Relation {
                id: attribute(element, "Id").unwrap_or_default(),
                kind: kind.rsplit('/').next().unwrap_or_default().to_owned(),
                part: place(folder, &target),
            });
        }
    });
    read.map_err(|why| archive.damaged(why))?;
    Ok(found)
}

/// A part's name from a target, relative to the root or to a folder.
fn place(folder: &str, target: &str) -> String {
    let mut steps: Vec<&str> = match target.strip_prefix('/') {
        Some(_) => Vec::new(),
        None => folder.split('/').filter(|step| !step.is_empty()).collect(),
    };
    for step in target.split('/') {
        match step {
            "" | "." => {}
            ".." => drop(steps.pop()),
            step => steps.push(step),
        }
    }
    steps.join("/")
}

#[cfg(test)]
mod tests {
    use super::place;

    #[test]
    fn targets_count_from_the_root_or_from_the_part_that_names_them() {
        assert_eq!(place("word", "styles.xml"), "word/styles.xml");
        assert_eq!(place("word", "/word/notes.xml"), "word/notes.xml");
        assert_eq!(place("word/a", "../b/./c.xml"), "word/b/c.xml");
        assert_eq!(place("", "../../word/document2.xml"), "word/document2.xml");
    }
}
