//! A PDF file as numbered objects, found through its cross-references or by a search.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::crypt::{Crypt, Locked};
use super::filters::{FilterError, Predictor, decode};
use super::object::{Dict, Object, Parser, Stream};
use super::xref::{self, Entries, Entry};
use crate::Limits;

/// Longest chain of references.
const STEPS: usize = 16;

/// Largest unpacked stream in bytes.
const STREAM_BYTES: usize = 64 << 20;

/// Bytes of unpacked streams that are kept, because pages share forms and contents.
const KEPT_BYTES: usize = 16 << 20;

/// Parsed objects that are kept, including nested ones.
const KEPT_OBJECTS: usize = 1 << 20;

/// Memory that each object counts for, in bytes.
const OBJECT_BYTES: u64 = 128;

/// Maximum number of objects parsed or copied in total. A document with 100,000 pages takes about 10 million.
const WORK: usize = 60 << 20;

/// Maximum number of filters of one stream.
const FILTERS: usize = 8;

/// The reason why a file is not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The file needs a password.
    Locked,
    /// The file exceeds a limit.
    TooMuch,
    /// The file needs more work than any real document.
    TooMuchWork,
    /// Reading the file exceeded the time limit.
    Late,
    Damaged(&'static str),
}

/// A stream of objects, unpacked.
#[derive(Debug)]
struct Packed {
    bytes: Vec<u8>,
    /// First byte of each object, by number.
    starts: HashMap<u32, usize>,
}

/// An open file.
#[derive(Debug)]
pub(super) struct File {
    bytes: Rc<Vec<u8>>,
    most_kept_objects: usize,
    most_kept_bytes: usize,
    stream_bytes: usize,
    entries: Entries,
    /// Entries from a search of the whole file, if the file's own are wrong.
    found: RefCell<Option<Rc<Entries>>>,
    crypt: Option<Crypt>,
    /// Parsed objects, with the work that each needed.
    objects: RefCell<HashMap<u32, (Object, usize)>>,
    kept_objects: Cell<usize>,
    left_work: Cell<usize>,
    packed: RefCell<HashMap<u32, Option<Rc<Packed>>>>,
    unpacked: RefCell<HashMap<usize, Rc<[u8]>>>,
    kept_bytes: Cell<usize>,
    /// First bytes of the streams that are already counted.
    counted: RefCell<HashSet<usize>>,
    left_bytes: Cell<usize>,
    /// Remaining bytes for unpacking large streams again.
    left_again: Cell<usize>,
    depth: Cell<usize>,
    ends: RefCell<Option<Rc<[usize]>>>,
}

impl File {
    /// Opens a file. Its streams, except pictures, may unpack to [`Limits::expanded_bytes`] in total.
    pub(super) fn open(bytes: Vec<u8>, limits: &Limits) -> Result<Self, Refusal> {
        let most = usize::try_from(limits.expanded_bytes).unwrap_or(usize::MAX);
        let mut file = Self {
            bytes: Rc::new(bytes),
            most_kept_objects: limits.kept(KEPT_OBJECTS, OBJECT_BYTES),
            most_kept_bytes: limits.kept(KEPT_BYTES, 4),
            stream_bytes: limits.kept(STREAM_BYTES, 4),
            entries: Entries::default(),
            found: RefCell::default(),
            crypt: None,
            objects: RefCell::default(),
            kept_objects: Cell::new(0),
            left_work: Cell::new(WORK),
            packed: RefCell::default(),
            unpacked: RefCell::default(),
            kept_bytes: Cell::new(0),
            counted: RefCell::default(),
            left_bytes: Cell::new(most),
            left_again: Cell::new(most.saturating_mul(4)),
            depth: Cell::new(0),
            ends: RefCell::default(),
        };
        let bytes = Rc::clone(&file.bytes);
        if let Some(entries) = xref::read(&bytes, &mut |at| file.xref_stream(at))? {
            file.entries = entries;
        }
        if file.catalog().is_none() {
            file.entries = Entries::default();
            file.objects.borrow_mut().clear();
            file.packed.borrow_mut().clear();
            file.entries = (*file.found()).clone();
        }
        file.unlock()?;
        if file.catalog().is_none() {
            return Err(Refusal::Damaged("it names no pages"));
        }
        Ok(file)
    }

    fn unlock(&mut self) -> Result<(), Refusal> {
        let Some(encrypt) = self
            .entries
            .trailer
            .get("Encrypt")
            .map(|encrypt| self.resolved(encrypt))
        else {
            return Ok(());
        };
        let Some(encrypt) = encrypt.dict() else { return Ok(()) };
        let mut encrypt = encrypt.clone();
        for value in encrypt.values_mut() {
            *value = self.resolved(value);
        }
        let id = self.entries.trailer.get("ID").map(|id| self.resolved(id));
        let id = id.as_ref().and_then(Object::array).and_then(|parts| parts.first());
        let id = id.and_then(Object::text).unwrap_or_default();
        self.crypt = Some(Crypt::new(&encrypt, id).map_err(|Locked| Refusal::Locked)?);
        self.objects.borrow_mut().clear();
        self.packed.borrow_mut().clear();
        self.unpacked.borrow_mut().clear();
        Ok(())
    }

    /// The catalog, if it has pages.
    pub(super) fn catalog(&self) -> Option<Dict> {
        let root = self.get(&self.entries.trailer, "Root")?;
        let catalog = root.dict()?;
        catalog.contains_key("Pages").then(|| catalog.clone())
    }

    /// The resolved value of a key; `None` for a null.
    pub(super) fn get(&self, dict: &Dict, key: &str) -> Option<Object> {
        match self.resolved(dict.get(key)?) {
            Object::Null => None,
            object => Some(object),
        }
    }

    pub(super) fn get_dict(&self, dict: &Dict, key: &str) -> Option<Dict> {
        self.get(dict, key)?.dict().cloned()
    }

    pub(super) fn get_array(&self, dict: &Dict, key: &str) -> Option<Vec<Object>> {
        match self.get(dict, key)? {
            Object::Array(array) => Some(array),
            _ => None,
        }
    }

    pub(super) fn get_number(&self, dict: &Dict, key: &str) -> Option<f64> {
        self.get(dict, key)?.number()
    }

    pub(super) fn get_name(&self, dict: &Dict, key: &str) -> Option<String> {
        self.get(dict, key)?.name().map(str::to_owned)
    }

    /// Numbers of an array; other objects count as 0.
    pub(super) fn get_numbers(&self, dict: &Dict, key: &str) -> Option<Vec<f64>> {
        let array = self.get_array(dict, key)?;
        Some(
            array
                .iter()
                .map(|item| self.resolved(item).number().unwrap_or(0.0))
                .collect(),
        )
    }

    /// Calls `each` with every pair under `key` in a tree of names or of numbers. Repeated nodes are skipped, and
    /// nodes beyond about `most`.
    pub(super) fn for_each_pair(
        &self,
        root: Option<&Object>,
        key: &str,
        most: usize,
        mut each: impl FnMut(&Object, &Object),
    ) {
        let mut left: Vec<Object> = root.into_iter().cloned().collect();
        let mut visited = HashSet::new();
        while let Some(node) = left.pop() {
            if let Object::Reference(number) = node
                && !visited.insert(number)
            {
                continue;
            }
            let node = self.resolved(&node);
            let Some(node) = node.dict() else { continue };
            if visited.len() + left.len() < most {
                left.extend(self.get_array(node, "Kids").unwrap_or_default());
            }
            for pair in self.get_array(node, key).unwrap_or_default().chunks_exact(2) {
                each(&pair[0], &pair[1]);
            }
        }
    }

    /// The object of a reference.
    pub(super) fn resolved(&self, object: &Object) -> Object {
        let mut object = object.clone();
        for _ in 0..STEPS {
            match object {
                Object::Reference(number) => object = self.object(number),
                object => return object,
            }
        }
        Object::Null
    }

    fn object(&self, number: u32) -> Object {
        if let Some((object, work)) = self.objects.borrow().get(&number) {
            self.work(work / 8);
            return object.clone();
        }
        // The length of a stream may be an object in a stream whose length is an object, and so on.
        if self.depth.get() > STEPS || self.left_work.get() == 0 {
            return Object::Null;
        }
        self.depth.set(self.depth.get() + 1);
        let before = self.left_work.get();
        let object = self
            .parsed(number, &self.entries)
            .or_else(|| self.parsed(number, &self.found()));
        self.depth.set(self.depth.get() - 1);
        let object = object.unwrap_or(Object::Null);
        let work = 1 + before - self.left_work.get();
        let mut objects = self.objects.borrow_mut();
        if self.kept_objects.get() + work > self.most_kept_objects {
            objects.clear();
            self.kept_objects.set(0);
        }
        self.kept_objects.set(self.kept_objects.get() + work);
        objects.insert(number, (object.clone(), work));
        object
    }

    fn work(&self, work: usize) {
        self.left_work.set(self.left_work.get().saturating_sub(work));
    }

    /// The objects found by a search of the whole file, which runs once.
    fn found(&self) -> Rc<Entries> {
        if let Some(found) = &*self.found.borrow() {
            return Rc::clone(found);
        }
        // The search itself reads objects, which must not search again.
        *self.found.borrow_mut() = Some(Rc::default());
        let mut entries = xref::search(&self.bytes);
        let numbers: Vec<(u32, usize)> = entries.streams_of_objects.clone();
        for (number, at) in numbers {
            let Some(Object::Stream(stream)) = self.indirect(at, number) else {
                continue;
            };
            let Some(packed) = self.unpack_objects(&stream) else {
                continue;
            };
            for inner in packed.starts.keys() {
                entries
                    .by_number
                    .entry(*inner)
                    .or_insert(Entry::Packed { stream: number });
            }
        }
        if !entries.trailer.contains_key("Root") {
            entries.find_root(&self.bytes);
        }
        let entries = Rc::new(entries);
        *self.found.borrow_mut() = Some(Rc::clone(&entries));
        entries
    }

    fn parsed(&self, number: u32, entries: &Entries) -> Option<Object> {
        match *entries.by_number.get(&number)? {
            Entry::At(at) => self.indirect(at, number),
            Entry::Packed { stream } => {
                let packed = self.packed(stream, entries)?;
                let start = *packed.starts.get(&number)?;
                let mut parser = Parser::of_file(&packed.bytes, start);
                let object = parser.object();
                self.work(parser.work_since(start));
                object
            }
        }
    }

    /// The object at a byte, if it has this number.
    fn indirect(&self, at: usize, number: u32) -> Option<Object> {
        let mut parser = Parser::of_file(&self.bytes, at);
        let id = xref::head(&mut parser).filter(|id| id.0 == number)?;
        let object = parser.object();
        self.work(parser.work_since(at));
        let object = self.decrypted(object?, id);
        parser.skip_space();
        if parser.word() != b"stream" {
            return Some(object);
        }
        let Object::Dict(dict) = object else {
            return Some(object);
        };
        let start = match &self.bytes[parser.at..] {
            [b'\r', b'\n', ..] => parser.at + 2,
            [b'\n' | b'\r', ..] => parser.at + 1,
            _ => parser.at,
        };
        let data = start..self.stream_end(&dict, start);
        Some(Object::Stream(Rc::new(Stream { dict, data, id })))
    }

    /// The end of a stream: from its length if that is right, otherwise from the next `endstream`.
    fn stream_end(&self, dict: &Dict, start: usize) -> usize {
        if let Some(length) = self.get(dict, "Length").and_then(|length| length.index()) {
            let end = start.saturating_add(length);
            let mut parser = Parser::of_file(&self.bytes, end);
            parser.skip_space();
            if end <= self.bytes.len() && parser.word().starts_with(b"endstream") {
                return end;
            }
        }
        let ends = self.ends();
        let next = ends.partition_point(|end| *end < start);
        ends.get(next).copied().unwrap_or(self.bytes.len())
    }

    fn ends(&self) -> Rc<[usize]> {
        let known = self.ends.borrow().clone();
        known.unwrap_or_else(|| {
            let ends: Rc<[usize]> = xref::positions(&self.bytes, b"endstream").into();
            *self.ends.borrow_mut() = Some(Rc::clone(&ends));
            ends
        })
    }

    /// The object with its strings decrypted.
    fn decrypted(&self, object: Object, id: (u32, u16)) -> Object {
        let Some(crypt) = &self.crypt else { return object };
        match object {
            Object::Text(text) => Object::Text(crypt.string(id, &text)),
            Object::Array(items) => Object::Array(items.into_iter().map(|item| self.decrypted(item, id)).collect()),
            Object::Dict(dict) => {
                let values = dict.into_iter().map(|(key, value)| (key, self.decrypted(value, id)));
                Object::Dict(values.collect())
            }
            object => object,
        }
    }

    /// A stream of objects by its number.
    fn packed(&self, number: u32, entries: &Entries) -> Option<Rc<Packed>> {
        if let Some(packed) = self.packed.borrow().get(&number) {
            return packed.clone();
        }
        // A stream of objects cannot contain another one.
        let at = match entries.by_number.get(&number)? {
            Entry::At(at) => *at,
            Entry::Packed { .. } => return None,
        };
        let packed = match self.indirect(at, number) {
            Some(Object::Stream(stream)) => self.unpack_objects(&stream).map(Rc::new),
            _ => None,
        };
        self.packed.borrow_mut().insert(number, packed.clone());
        packed
    }

    fn unpack_objects(&self, stream: &Stream) -> Option<Packed> {
        let bytes = self.data(stream).ok()?;
        let first = self.get(&stream.dict, "First")?.index()?;
        let count = self.get(&stream.dict, "N")?.index()?;
        let mut parser = Parser::of_file(bytes.get(..first)?, 0);
        let mut starts = HashMap::new();
        for _ in 0..count {
            parser.skip_space();
            let Some(number) = parser.digits() else { break };
            parser.skip_space();
            let Some(start) = parser.digits() else { break };
            starts.insert(u32::try_from(number).ok()?, first.saturating_add(start as usize));
        }
        Some(Packed {
            bytes: bytes.to_vec(),
            starts,
        })
    }

    /// The cross-reference stream at a byte.
    fn xref_stream(&self, at: usize) -> Option<(Dict, Rc<[u8]>)> {
        let mut parser = Parser::of_file(&self.bytes, at);
        let (number, _) = xref::head(&mut parser)?;
        match self.indirect(at, number)? {
            Object::Stream(stream) => {
                let bytes = self.data(&stream).ok()?;
                Some((stream.dict.clone(), bytes))
            }
            _ => None,
        }
    }

    /// An error if the limits of bytes or work are reached.
    pub(super) fn check(&self) -> Result<(), Refusal> {
        if self.left_bytes.get() == 0 || self.left_again.get() == 0 {
            Err(Refusal::TooMuch)
        } else if self.left_work.get() == 0 {
            Err(Refusal::TooMuchWork)
        } else {
            Ok(())
        }
    }

    /// The unpacked bytes of a stream.
    pub(super) fn data(&self, stream: &Stream) -> Result<Rc<[u8]>, FilterError> {
        let at = stream.data.start;
        if let Some(bytes) = self.unpacked.borrow().get(&at) {
            return Ok(Rc::clone(bytes));
        }
        let is_new = self.counted.borrow_mut().insert(at);
        let left = if is_new { &self.left_bytes } else { &self.left_again };
        let bytes = self.unpack(stream, left.get().min(self.stream_bytes));
        let bytes: Rc<[u8]> = match bytes {
            Ok(bytes) => bytes.into(),
            Err(FilterError::TooLarge) => {
                left.set(0);
                return Err(FilterError::TooLarge);
            }
            Err(error) => return Err(error),
        };
        left.set(left.get().saturating_sub(bytes.len()));
        if bytes.len() <= self.most_kept_bytes / 4 {
            if self.kept_bytes.get() + bytes.len() > self.most_kept_bytes {
                self.unpacked.borrow_mut().clear();
                self.kept_bytes.set(0);
            }
            self.kept_bytes.set(self.kept_bytes.get() + bytes.len());
            self.unpacked.borrow_mut().insert(at, Rc::clone(&bytes));
        }
        Ok(bytes)
    }

    fn unpack(&self, stream: &Stream, most: usize) -> Result<Vec<u8>, FilterError> {
        let raw = self.bytes.get(stream.data.clone()).unwrap_or_default();
        let list =
            |long: &str, short: &str| match self.get(&stream.dict, long).or_else(|| self.get(&stream.dict, short)) {
                Some(Object::Array(items)) => items.iter().map(|item| self.resolved(item)).collect(),
                Some(object) => vec![object],
                None => Vec::new(),
            };
        let (filters, parameters) = (list("Filter", "F"), list("DecodeParms", "DP"));
        let is_open = filters.iter().any(|filter| filter.name() == Some("Crypt"))
            || stream.dict.get("Type").and_then(Object::name) == Some("XRef");
        let mut bytes = match &self.crypt {
            Some(crypt) if !is_open => crypt.stream(stream.id, raw),
            _ if raw.len() > most => return Err(FilterError::TooLarge),
            _ => raw.to_vec(),
        };
        for (at, filter) in filters.iter().enumerate() {
            let Some(filter) = filter.name().filter(|_| at < FILTERS) else {
                return Err(FilterError::Unknown);
            };
            if filter != "Crypt" {
                let predictor = self.predictor(parameters.get(at));
                bytes = decode(filter, &bytes, &predictor, most)?;
            }
        }
        Ok(bytes)
    }

    fn predictor(&self, parameters: Option<&Object>) -> Predictor {
        let default = Predictor::default();
        let Some(dict) = parameters.and_then(Object::dict) else {
            return default;
        };
        let value = |key: &str, default: usize| self.get(dict, key).and_then(|value| value.index()).unwrap_or(default);
        Predictor {
            kind: value("Predictor", default.kind),
            colors: value("Colors", default.colors),
            bits: value("BitsPerComponent", default.bits),
            columns: value("Columns", default.columns),
            is_early: value("EarlyChange", 1) != 0,
        }
    }
}
