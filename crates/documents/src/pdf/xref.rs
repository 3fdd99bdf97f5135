//! Locations of a file's objects, from its cross-references or from a search.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::file::Refusal;
use super::object::{Dict, Object, Parser, is_space};

/// Maximum number of objects of one file.
const OBJECTS: usize = 2 << 20;

/// Longest chain of cross-references.
const CHAIN: usize = 1024;

/// Maximum number of catalogs examined in a file that names none.
const CATALOGS: usize = 64;

/// The place of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    /// The object begins at this byte of the file.
    At(usize),
    /// The object is in a stream of objects.
    Packed { stream: u32 },
}

/// All objects of a file, and its trailer.
#[derive(Debug, Clone, Default)]
pub(super) struct Entries {
    pub(super) by_number: HashMap<u32, Entry>,
    pub(super) trailer: Dict,
    /// Streams of objects that a search found, by number and byte.
    pub(super) streams_of_objects: Vec<(u32, usize)>,
}

impl Entries {
    /// Adds entries that newer sections lack.
    fn add(&mut self, number: u32, entry: Entry) -> Result<(), Refusal> {
        if self.by_number.len() >= OBJECTS {
            return Err(Refusal::TooMuch);
        }
        self.by_number.entry(number).or_insert(entry);
        Ok(())
    }

    fn add_trailer(&mut self, dict: &Dict) {
        for (key, value) in dict {
            self.trailer.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }

    /// Makes the last catalog in the file the root.
    pub(super) fn find_root(&mut self, bytes: &[u8]) {
        for at in positions(bytes, b"/Catalog").into_iter().rev().take(CATALOGS) {
            // A catalog's type is near its start.
            let near = at.saturating_sub(4096);
            let Some(obj) = memchr::memmem::rfind(&bytes[near..at], b"obj") else {
                continue;
            };
            let Some((number, start)) = head_before(bytes, near + obj) else {
                continue;
            };
            let mut parser = Parser::of_file(bytes, start);
            if head(&mut parser).is_some()
                && let Some(Object::Dict(dict)) = parser.object()
                && dict.get("Type").and_then(Object::name) == Some("Catalog")
            {
                self.trailer.insert("Root".to_owned(), Object::Reference(number));
                return;
            }
        }
    }
}

/// The head of an object: `12 0 obj`.
pub(super) fn head(parser: &mut Parser<'_>) -> Option<(u32, u16)> {
    parser.skip_space();
    let number = u32::try_from(parser.digits()?).ok()?;
    parser.skip_space();
    let generation = parser.digits()? as u16;
    parser.skip_space();
    let is_head = parser.bytes[parser.at..].starts_with(b"obj");
    parser.at += 3;
    is_head.then_some((number, generation))
}

/// Reads the unpacked cross-reference stream at a byte.
type ReadStream<'a> = dyn FnMut(usize) -> Option<(Dict, Rc<[u8]>)> + 'a;

/// The entries from the end of the file; `None` if they are invalid.
pub(super) fn read(bytes: &[u8], stream: &mut ReadStream<'_>) -> Result<Option<Entries>, Refusal> {
    let near = bytes.len().saturating_sub(4096);
    let Some(last) = positions(&bytes[near..], b"startxref").pop() else {
        return Ok(None);
    };
    let mut parser = Parser::of_file(bytes, near + last + 9);
    parser.skip_space();
    // Offsets are relative to the header, which may follow a few other bytes.
    let header = positions(&bytes[..bytes.len().min(1024)], b"%PDF-")
        .first()
        .copied()
        .unwrap_or(0);
    let Some(first) = parser.digits() else { return Ok(None) };
    let mut entries = Entries::default();
    let mut visited = HashSet::new();
    let mut next = vec![first as usize];
    while let Some(at) = next.pop() {
        if !visited.insert(at) || visited.len() > CHAIN {
            continue;
        }
        let shifted = at.saturating_add(header);
        let mut parser = Parser::of_file(bytes, shifted);
        parser.skip_space();
        let dict = if bytes[parser.at..].starts_with(b"xref") {
            parser.at += 4;
            table(&mut parser, header, &mut entries)?
        } else if let Some((dict, data)) = stream(shifted) {
            of_stream(&dict, &data, header, &mut entries)?;
            Some(dict)
        } else {
            None
        };
        let Some(dict) = dict else {
            // Without the newest section, nothing can be trusted.
            if visited.len() == 1 {
                return Ok(None);
            }
            continue;
        };
        entries.add_trailer(&dict);
        // A hybrid file's stream takes precedence over older sections.
        for key in ["Prev", "XRefStm"] {
            next.extend(dict.get(key).and_then(Object::index));
        }
    }
    Ok(Some(entries))
}

/// Adds a table and returns its trailer.
fn table(parser: &mut Parser<'_>, header: usize, entries: &mut Entries) -> Result<Option<Dict>, Refusal> {
    loop {
        parser.skip_space();
        let Some(first) = parser.digits() else { break };
        parser.skip_space();
        let Some(count) = parser.digits() else { break };
        for number in first..first.saturating_add(count) {
            parser.skip_space();
            let before = parser.at;
            let Some(at) = parser.digits() else { break };
            parser.skip_space();
            if parser.digits().is_none() {
                break;
            }
            parser.skip_space();
            match parser.word() {
                b"n" => {
                    if let Ok(number) = u32::try_from(number) {
                        entries.add(number, Entry::At((at as usize).saturating_add(header)))?;
                    }
                }
                b"f" => {}
                _ => {
                    parser.at = before;
                    break;
                }
            }
        }
    }
    if parser.word() != b"trailer" {
        return Ok(None);
    }
    Ok(parser.object().and_then(|trailer| trailer.dict().cloned()))
}

fn of_stream(dict: &Dict, data: &[u8], header: usize, entries: &mut Entries) -> Result<(), Refusal> {
    let numbers = |key: &str| -> Vec<usize> {
        let array = dict.get(key).and_then(Object::array).unwrap_or_default();
        array.iter().map(|item| item.index().unwrap_or(0)).collect()
    };
    let widths = numbers("W");
    let [kind_width, place_width, third_width] = widths[..] else {
        return Ok(());
    };
    let width = kind_width.saturating_add(place_width).saturating_add(third_width);
    // No valid file has fields wider than 64 bits; rows of zero bytes would never end.
    if width == 0 || widths.iter().any(|width| *width > 8) {
        return Ok(());
    }
    let mut sections = numbers("Index");
    if sections.is_empty() {
        sections = vec![0, usize::MAX];
    }
    let mut rows = data.chunks_exact(width);
    let field = |bytes: &[u8]| bytes.iter().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
    for section in sections.chunks_exact(2) {
        for (number, row) in (section[0]..section[0].saturating_add(section[1])).zip(rows.by_ref()) {
            let Ok(number) = u32::try_from(number) else { break };
            let (kind, rest) = row.split_at(kind_width);
            let place = field(&rest[..place_width]);
            match if kind_width == 0 { 1 } else { field(kind) } {
                1 => entries.add(number, Entry::At((place as usize).saturating_add(header)))?,
                2 => entries.add(number, Entry::Packed { stream: place as u32 })?,
                _ => {}
            }
        }
    }
    Ok(())
}

/// Finds objects by their headers; the last one of a number counts.
pub(super) fn search(bytes: &[u8]) -> Entries {
    let mut entries = Entries::default();
    for at in positions(bytes, b"obj") {
        if entries.by_number.len() >= OBJECTS {
            break;
        }
        let Some((number, start)) = head_before(bytes, at) else {
            continue;
        };
        entries.by_number.insert(number, Entry::At(start));
        let near = &bytes[at..bytes.len().min(at + 512)];
        let near = &near[..positions(near, b"stream").first().copied().unwrap_or(near.len())];
        if !positions(near, b"/ObjStm").is_empty() {
            entries.streams_of_objects.push((number, start));
        }
        if !positions(near, b"/XRef").is_empty()
            && let Some(Object::Dict(dict)) = Parser::of_file(bytes, at + 3).object()
        {
            entries.trailer.extend(dict);
        }
    }
    for at in positions(bytes, b"trailer") {
        if let Some(Object::Dict(dict)) = Parser::of_file(bytes, at + 7).object() {
            entries.trailer.extend(dict);
        }
    }
    entries
}

/// The number of the object whose `obj` is at a byte, and the first byte of its header.
fn head_before(bytes: &[u8], at: usize) -> Option<(u32, usize)> {
    let mut end = at;
    let mut fields = [0; 2];
    for field in &mut fields {
        let spaces = bytes[..end]
            .iter()
            .rev()
            .take_while(|byte| is_space(**byte))
            .take(8)
            .count();
        end -= spaces;
        let digits = bytes[..end]
            .iter()
            .rev()
            .take_while(|byte| byte.is_ascii_digit())
            .take(10)
            .count();
        if digits == 0 {
            return None;
        }
        end -= digits;
        *field = Parser::of_file(bytes, end).digits()?;
    }
    Some((u32::try_from(fields[1]).ok()?, end))
}

/// Every occurrence of a pattern.
pub(super) fn positions(bytes: &[u8], pattern: &[u8]) -> Vec<usize> {
    memchr::memmem::find_iter(bytes, pattern).collect()
}
