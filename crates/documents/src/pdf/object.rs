//! Objects of a PDF file and their syntax.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// Deepest nesting of arrays and dictionaries.
const DEPTH: usize = 64;

/// Maximum number of nested objects of one object. Real documents have fewer; a hostile one would fill memory.
const PARTS: usize = 1 << 20;

/// Number of objects as which a dictionary counts.
const DICT_PARTS: usize = 16;

/// A dictionary, by its keys without their slash.
pub(super) type Dict = BTreeMap<String, Object>;

/// An object; streams are shared, because their dictionaries may be large.
#[derive(Debug, Clone)]
pub(super) enum Object {
    Null,
    Bool(bool),
    Number(f64),
    Name(String),
    Text(Vec<u8>),
    Array(Vec<Object>),
    Dict(Dict),
    /// The number of another object.
    Reference(u32),
    Stream(Rc<Stream>),
}

/// A stream: its dictionary, and the byte range of its data in the file.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) dict: Dict,
    pub(super) data: Range<usize>,
    /// Number and generation of the object, on which its key depends.
    pub(super) id: (u32, u16),
}

impl Object {
    pub(super) fn number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// A non-negative integer.
    pub(super) fn index(&self) -> Option<usize> {
        let number = self.number()?;
        (0.0..4e15).contains(&number).then_some(number as usize)
    }

    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::Name(name) => Some(name),
            _ => None,
        }
    }

    pub(super) fn text(&self) -> Option<&[u8]> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn array(&self) -> Option<&[Object]> {
        match self {
            Self::Array(array) => Some(array),
            _ => None,
        }
    }

    /// The dictionary, also of a stream.
    pub(super) fn dict(&self) -> Option<&Dict> {
        match self {
            Self::Dict(dict) => Some(dict),
            Self::Stream(stream) => Some(&stream.dict),
            _ => None,
        }
    }
}

/// A token of a content stream.
#[derive(Debug)]
pub(super) enum ContentToken<'a> {
    Operand(Object),
    Operator(&'a [u8]),
}

/// Reads objects from bytes.
#[derive(Debug)]
pub(super) struct Parser<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
    /// True if `1 0 R` is a reference.
    has_references: bool,
    /// Number of objects that the current one may still contain. A limit sets it to 0, so that the parser does not read
    /// the same bytes again.
    parts: usize,
}

impl<'a> Parser<'a> {
    /// Parser of a file's objects, from byte `at` on.
    pub(super) fn of_file(bytes: &'a [u8], at: usize) -> Self {
        Self {
            bytes,
            at: at.min(bytes.len()),
            has_references: true,
            parts: PARTS,
        }
    }

    /// Parser of a content stream or a CMap.
    pub(super) fn of_content(bytes: &'a [u8]) -> Self {
        Self {
            has_references: false,
            ..Self::of_file(bytes, 0)
        }
    }

    /// The next operand or operator; `None` at the end.
    pub(super) fn part(&mut self) -> Option<ContentToken<'a>> {
        loop {
            self.skip_space();
            let first = *self.bytes.get(self.at)?;
            let before = self.at;
            if let Some(object) = self.object() {
                return Some(ContentToken::Operand(object));
            }
            if self.parts == 0 {
                // Beyond the limits, the part already read is not read again.
                self.at = self.at.max(before + 1);
                continue;
            }
            self.at = before;
            let word = self.word();
            if !word.is_empty() {
                return Some(ContentToken::Operator(word));
            }
            // A stray delimiter. Braces are operators of CMaps and functions, which are not run here.
            debug_assert!(is_delimiter(first));
            self.at = before + 1;
        }
    }

    /// Work for the latest object, in small objects.
    pub(super) fn work_since(&self, start: usize) -> usize {
        PARTS - self.parts + self.at.saturating_sub(start) / 16
    }

    /// The next object; `None` for anything else, and beyond the limits.
    pub(super) fn object(&mut self) -> Option<Object> {
        self.parts = PARTS;
        self.nested(0)
    }

    fn nested(&mut self, depth: usize) -> Option<Object> {
        self.skip_space();
        self.parts = self.parts.checked_sub(1)?;
        let first = *self.bytes.get(self.at)?;
        match first {
            b'/' => Some(Object::Name(self.name())),
            b'(' => Some(Object::Text(self.literal())),
            b'<' if self.bytes.get(self.at + 1) == Some(&b'<') => {
                self.at += 2;
                self.dict(depth).map(Object::Dict)
            }
            b'<' => Some(Object::Text(self.hexadecimal())),
            b'[' => {
                self.at += 1;
                self.array(depth).map(Object::Array)
            }
            b'0'..=b'9' | b'+' | b'-' | b'.' => self.number_or_reference(),
            _ => {
                let before = self.at;
                let object = match self.word() {
                    b"true" => Object::Bool(true),
                    b"false" => Object::Bool(false),
                    b"null" => Object::Null,
                    _ => {
                        self.at = before;
                        return None;
                    }
                };
                Some(object)
            }
        }
    }

    fn array(&mut self, depth: usize) -> Option<Vec<Object>> {
        self.enter(depth)?;
        let mut items = Vec::new();
        loop {
            self.skip_space();
            match self.bytes.get(self.at) {
                None => return Some(items),
                Some(b']') => {
                    self.at += 1;
                    return Some(items);
                }
                Some(_) => {}
            }
            let before = self.at;
            match self.nested(depth + 1) {
                Some(item) => items.push(item),
                None if self.parts == 0 => return None,
                None => {
                    // A word that ends objects ends an unclosed array.
                    if ends_objects(self.word()) {
                        self.at = before;
                        return Some(items);
                    }
                    self.at = self.at.max(before + 1);
                }
            }
        }
    }

    /// Ends the whole object beyond the depth limit.
    fn enter(&mut self, depth: usize) -> Option<()> {
        if depth == DEPTH {
            self.parts = 0;
        }
        (self.parts > 0).then_some(())
    }

    fn dict(&mut self, depth: usize) -> Option<Dict> {
        self.enter(depth)?;
        // A dictionary takes as much memory as many numbers.
        self.parts = self.parts.saturating_sub(DICT_PARTS);
        let mut dict = Dict::new();
        loop {
            self.skip_space();
            match self.bytes.get(self.at) {
                None => return Some(dict),
                Some(b'>') => {
                    self.at += if self.bytes.get(self.at + 1) == Some(&b'>') {
                        2
                    } else {
                        1
                    };
                    return Some(dict);
                }
                Some(b'/') => {
                    let key = self.name();
                    self.skip_space();
                    let is_end = self.bytes.get(self.at) == Some(&b'>') && self.bytes.get(self.at + 1) == Some(&b'>');
                    if is_end {
                        continue;
                    }
                    if let Some(value) = self.nested(depth + 1) {
                        dict.insert(key, value);
                    } else if self.parts == 0 {
                        return None;
                    }
                }
                Some(_) => {
                    let before = self.at;
                    if ends_objects(self.word()) {
                        self.at = before;
                        return Some(dict);
                    }
                    self.at = self.at.max(before + 1);
                }
            }
        }
    }

    fn number_or_reference(&mut self) -> Option<Object> {
        let before = self.at;
        let Some(number) = self.number() else {
            self.at = before;
            return None;
        };
        if self.has_references && number >= 0.0 && number.fract() == 0.0 && number <= f64::from(u32::MAX) {
            let behind = self.at;
            self.skip_space();
            if self.digits().is_some() {
                self.skip_space();
                if self.bytes.get(self.at) == Some(&b'R')
                    && self.bytes.get(self.at + 1).is_none_or(|byte| !is_regular(*byte))
                {
                    self.at += 1;
                    return Some(Object::Reference(number as u32));
                }
            }
            self.at = behind;
        }
        Some(Object::Number(number))
    }

    /// A number, with superfluous signs and points allowed.
    fn number(&mut self) -> Option<f64> {
        let mut is_negative = false;
        while let Some(sign @ (b'+' | b'-')) = self.bytes.get(self.at) {
            is_negative |= *sign == b'-';
            self.at += 1;
        }
        let (mut value, mut scale, mut has_point, mut digits) = (0.0f64, 1.0f64, false, 0);
        while let Some(byte) = self.bytes.get(self.at) {
            match byte {
                b'0'..=b'9' => {
                    digits += 1;
                    if has_point {
                        scale /= 10.0;
                        value += f64::from(byte - b'0') * scale;
                    } else {
                        value = value * 10.0 + f64::from(byte - b'0');
                    }
                }
                b'.' if !has_point => has_point = true,
                b'.' | b'-' => {}
                _ => break,
            }
            self.at += 1;
        }
        // A point without digits is zero, as in other readers of PDF.
        if digits == 0 && !has_point {
            return None;
        }
        Some(if is_negative { -value } else { value })
    }

    /// An unsigned integer.
    pub(super) fn digits(&mut self) -> Option<u64> {
        let start = self.at;
        let mut value = 0u64;
        while let Some(digit @ b'0'..=b'9') = self.bytes.get(self.at) {
            value = value.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
            self.at += 1;
        }
        (self.at > start).then_some(value)
    }

    fn name(&mut self) -> String {
        self.at += 1;
        let mut name = Vec::new();
        while let Some(byte) = self.bytes.get(self.at).filter(|byte| is_regular(**byte)) {
            self.at += 1;
            let escaped = (*byte == b'#').then(|| self.bytes.get(self.at..self.at + 2)).flatten();
            let escaped = escaped.and_then(|pair| Some(hex(pair[0])? << 4 | hex(pair[1])?));
            match escaped {
                Some(escaped) => {
                    name.push(escaped);
                    self.at += 2;
                }
                None => name.push(*byte),
            }
        }
        String::from_utf8(name).unwrap_or_else(|error| error.into_bytes().into_iter().map(char::from).collect())
    }

    fn literal(&mut self) -> Vec<u8> {
        self.at += 1;
        let (mut open, mut text) = (1usize, Vec::new());
        while let Some(byte) = self.bytes.get(self.at) {
            self.at += 1;
            match byte {
                b'\\' => self.escaped(&mut text),
                b'(' => {
                    open += 1;
                    text.push(b'(');
                }
                b')' => {
                    open -= 1;
                    if open == 0 {
                        break;
                    }
                    text.push(b')');
                }
                byte => text.push(*byte),
            }
        }
        text
    }

    /// Adds the character after a backslash.
    fn escaped(&mut self, text: &mut Vec<u8>) {
        let Some(byte) = self.bytes.get(self.at) else { return };
        self.at += 1;
        match byte {
            b'n' => text.push(b'\n'),
            b'r' => text.push(b'\r'),
            b't' => text.push(b'\t'),
            b'b' => text.push(8),
            b'f' => text.push(12),
            b'0'..=b'7' => {
                let mut code = u32::from(byte - b'0');
                for _ in 0..2 {
                    let Some(digit @ b'0'..=b'7') = self.bytes.get(self.at) else {
                        break;
                    };
                    code = code * 8 + u32::from(digit - b'0');
                    self.at += 1;
                }
                text.push(code as u8);
            }
            b'\r' => {
                if self.bytes.get(self.at) == Some(&b'\n') {
                    self.at += 1;
                }
            }
            b'\n' => {}
            other => text.push(*other),
        }
    }

    fn hexadecimal(&mut self) -> Vec<u8> {
        self.at += 1;
        let (mut text, mut half) = (Vec::new(), None);
        while let Some(byte) = self.bytes.get(self.at) {
            self.at += 1;
            if *byte == b'>' {
                break;
            }
            let Some(digit) = hex(*byte) else { continue };
            match half.take() {
                Some(high) => text.push(high << 4 | digit),
                None => half = Some(digit),
            }
        }
        text.extend(half.map(|high| high << 4));
        text
    }

    /// Regular characters up to the next delimiter or space.
    pub(super) fn word(&mut self) -> &'a [u8] {
        let start = self.at;
        while self.bytes.get(self.at).is_some_and(|byte| is_regular(*byte)) {
            self.at += 1;
        }
        &self.bytes[start..self.at]
    }

    /// Skips white space and comments.
    pub(super) fn skip_space(&mut self) {
        while let Some(byte) = self.bytes.get(self.at) {
            match byte {
                b'%' => {
                    let end = self.bytes[self.at..]
                        .iter()
                        .position(|byte| matches!(byte, b'\r' | b'\n'));
                    self.at = end.map_or(self.bytes.len(), |end| self.at + end);
                }
                byte if is_space(*byte) => self.at += 1,
                _ => return,
            }
        }
    }
}

/// True for words that only occur outside objects.
fn ends_objects(word: &[u8]) -> bool {
    matches!(
        word,
        b"obj" | b"endobj" | b"endstream" | b"stream" | b"trailer" | b"xref"
    )
}

pub(super) fn is_space(byte: u8) -> bool {
    matches!(byte, 0 | 9 | 10 | 12 | 13 | 32)
}

fn is_delimiter(byte: u8) -> bool {
    matches!(
        byte,
        b'(' | b')' | b'<' | b'>' | b'[' | b']' | b'{' | b'}' | b'/' | b'%'
    )
}

fn is_regular(byte: u8) -> bool {
    !is_space(byte) && !is_delimiter(byte)
}

pub(super) fn hex(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_read_as_their_syntax_says() {
        let source = b"<< /A#20b [1 -.5 (a\\(b\\051\\)\\n) <4a5> 7 0 R null true] /Next /Name >> rest";
        let mut parser = Parser::of_file(source, 0);
        let object = parser.object().unwrap();
        let dict = object.dict().unwrap();
        let items = dict["A b"].array().unwrap();
        assert_eq!(items[1].number(), Some(-0.5));
        assert_eq!(items[2].text(), Some(&b"a(b))\n"[..]));
        assert_eq!(items[3].text(), Some(&b"JP"[..]));
        assert!(matches!(items[4], Object::Reference(7)));
        assert_eq!(dict["Next"].name(), Some("Name"));
        parser.skip_space();
        assert_eq!(parser.word(), b"rest");
    }

    #[test]
    fn nesting_has_an_end() {
        for open in ["[", "<</a", "("] {
            let deep = open.repeat(1_000_000);
            let mut parser = Parser::of_content(deep.as_bytes());
            while parser.part().is_some() {}
        }
    }
}
