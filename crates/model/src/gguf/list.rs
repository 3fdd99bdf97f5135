//! Lists in the metadata of a GGUF file.

use super::header::Metadata;
use super::reader::{Reader, TEXT};

/// A list in the mapped file: values of one type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct List<'a> {
    kind: u32,
    count: usize,
    bytes: &'a [u8],
}

impl<'a> List<'a> {
    /// `count` values of GGUF type number `kind`.
    pub(super) fn new(kind: u32, count: usize, bytes: &'a [u8]) -> List<'a> {
        List { kind, count, bytes }
    }

    /// Values in the list.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// The texts, borrowed from the file.
    pub(crate) fn texts(&self) -> Result<Vec<&'a str>, String> {
        if self.kind != TEXT && self.count > 0 {
            return Err("must be a list of texts".into());
        }
        let mut reader = Reader::new(self.bytes);
        (0..self.count).map(|_| reader.text()).collect()
    }

    /// Flags.
    pub(crate) fn flags(&self) -> Result<Vec<bool>, String> {
        self.typed("true and false", |value| match value {
            Metadata::Flag(flag) => Some(flag),
            _ => None,
        })
    }

    /// Finite numbers.
    pub(crate) fn numbers(&self) -> Result<Vec<f64>, String> {
        self.typed("finite numbers", |value| match value {
            Metadata::Float(number) if number.is_finite() => Some(number),
            Metadata::Integer(number) => Some(number as f64),
            _ => None,
        })
    }

    /// The values one by one.
    pub(crate) fn values(&self) -> impl Iterator<Item = Result<Metadata<'a>, String>> {
        let (kind, mut reader) = (self.kind, Reader::new(self.bytes));
        (0..self.count).map(move |_| reader.value(kind))
    }

    fn typed<T>(&self, expected: &str, read: impl Fn(Metadata<'a>) -> Option<T>) -> Result<Vec<T>, String> {
        let mut typed = Vec::with_capacity(self.count);
        for (index, value) in self.values().enumerate() {
            let value = value?;
            let Some(value) = read(value) else {
                return Err(format!(
                    "must be a list of {expected}, found {} at place {index}",
                    value.show()
                ));
            };
            typed.push(value);
        }
        Ok(typed)
    }
}
