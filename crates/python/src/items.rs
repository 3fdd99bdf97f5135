//! Python sequences and arrays as vectors, read item by item, because a sequence may state any length.

use std::path::PathBuf;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PySequence, PyString};

use crate::failure::Failure;

/// Maximum number of elements of a sequence, including nested ones: more than the tokens of any text, and little
/// memory.
pub(crate) const MOST_ELEMENTS: usize = 1 << 24;

/// A bounded Python sequence: nothing is allocated for its stated length. [`Items::list`] refuses a longer one, with
/// the name of the option.
#[derive(Debug)]
pub(crate) struct Items<T> {
    values: Vec<T>,
    elements: usize,
    is_too_long: bool,
}

/// An item of a sequence.
pub(crate) trait Element {
    /// The item's share of [`MOST_ELEMENTS`].
    fn elements(&self) -> usize {
        1
    }
}

impl Element for u32 {}
impl Element for f32 {}
impl Element for usize {}
impl Element for (usize, usize) {}
impl<T> Element for Py<T> {}

impl Element for String {
    fn elements(&self) -> usize {
        1 + self.len() / 64
    }
}

impl Element for PathBuf {
    fn elements(&self) -> usize {
        1 + self.as_os_str().len() / 64
    }
}

impl Element for (Option<bool>, String) {
    fn elements(&self) -> usize {
        self.1.elements()
    }
}

impl<T> Element for Items<T> {
    fn elements(&self) -> usize {
        if self.is_too_long {
            usize::MAX
        } else {
            1 + self.elements
        }
    }
}

impl<T> Items<T> {
    /// The items; an option error if there are too many.
    pub(crate) fn list(self, name: &str) -> Result<Vec<T>, Failure> {
        if self.is_too_long {
            Err(Failure::option(format!(
                "{name} is too long: a sequence has at most {MOST_ELEMENTS} elements, all sequences in it together"
            )))
        } else {
            Ok(self.values)
        }
    }
}

impl<T: Clone> Items<T> {
    /// A copy of the items, for options that are read several times.
    pub(crate) fn copied(&self, name: &str) -> Result<Vec<T>, Failure> {
        let (values, elements, is_too_long) = (self.values.clone(), self.elements, self.is_too_long);
        Self {
            values,
            elements,
            is_too_long,
        }
        .list(name)
    }
}

impl<T> Items<Items<T>> {
    /// The items of a nested sequence.
    pub(crate) fn lists(self, name: &str) -> Result<Vec<Vec<T>>, Failure> {
        self.list(name)?.into_iter().map(|items| items.list(name)).collect()
    }
}

impl<'a, 'py, T: Element + FromPyObjectOwned<'py>> FromPyObject<'a, 'py> for Items<T> {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if given.is_instance_of::<PyString>() {
            return Err(PyTypeError::new_err(
                "a str is no sequence of items: put it into a list",
            ));
        }
        // An array is no sequence to Python.
        if !given.hasattr("__array__")? {
            given.cast::<PySequence>()?;
        }
        let mut items = Self {
            values: Vec::new(),
            elements: 0,
            is_too_long: false,
        };
        for item in given.try_iter()? {
            let item = item?.extract::<T>().map_err(Into::into)?;
            items.elements = items.elements.saturating_add(item.elements());
            if items.elements > MOST_ELEMENTS {
                items.is_too_long = true;
                items.values = Vec::new();
                break;
            }
            items.values.push(item);
        }
        Ok(items)
    }
}
