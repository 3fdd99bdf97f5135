//! Selections of a tile of queries: plain data.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use numpy::{IntoPyArray, PyArray2, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};
use riffle_attention::{Selection, Span};

use crate::failure::Failure;
use crate::items::Items;

/// Most elements of a mask.
const MOST_MASK_ELEMENTS: usize = 1 << 30;

/// Largest position from Python.
const MOST_TOKENS: usize = u32::MAX as usize;

/// Keys of one KV head that some queries read; `riffle.Selection`.
#[pyclass(frozen, eq, module = "riffle", name = "Selection")]
#[derive(PartialEq)]
pub(crate) struct PySelection(Selection);

/// The parts of a selection.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Parts {
    spans: Items<(usize, usize)>,
    row_window: usize,
    diagonals: Items<usize>,
    extras_start: usize,
    extras: Items<Items<usize>>,
    summaries: Items<(usize, usize)>,
    #[pyo3(default)]
    summarizes_parts: bool,
}

impl PySelection {
    pub(crate) fn selection(&self) -> &Selection {
        &self.0
    }
}

impl From<Selection> for PySelection {
    fn from(selection: Selection) -> Self {
        Self(selection)
    }
}

/// Spans of positions from Python.
pub(crate) fn spans(given: &[(usize, usize)]) -> Result<Vec<Span>, Failure> {
    let span = |(start, end): &(usize, usize)| {
        if start <= end && *end <= MOST_TOKENS {
            Ok(Span::new(*start, *end))
        } else {
            Err(Failure::option(format!(
                "({start}, {end}) is no span: it must begin at or before its end, which is at most {MOST_TOKENS}"
            )))
        }
    };
    given.iter().map(span).collect()
}

fn pairs(spans: &[Span]) -> Vec<(usize, usize)> {
    spans.iter().map(|span| (span.start, span.end)).collect()
}

#[pymethods]
impl PySelection {
    #[new]
    fn new(parts: &Bound<'_, PyAny>) -> Result<Self, Failure> {
        let parts: Parts = parts.extract()?;
        let (diagonals, extras) = (parts.diagonals.list("diagonals")?, parts.extras.lists("extras")?);
        let positions = diagonals.iter().chain(extras.iter().flatten());
        let largest = positions.chain([&parts.row_window, &parts.extras_start]).max();
        if let Some(position) = largest.filter(|position| **position > MOST_TOKENS) {
            return Err(Failure::option(format!(
                "{position} is beyond the largest position, {MOST_TOKENS}"
            )));
        }
        let selection = Selection::from_spans(spans(&parts.spans.list("spans")?)?)
            .with_row_window(parts.row_window)
            .with_diagonals(diagonals)
            .with_row_extras(parts.extras_start, extras)
            .with_summaries(spans(&parts.summaries.list("summaries")?)?)
            .summarizing_parts(parts.summarizes_parts);
        Ok(Self(selection))
    }

    #[getter]
    fn spans(&self) -> Vec<(usize, usize)> {
        pairs(self.0.spans())
    }

    #[getter]
    fn row_window(&self) -> usize {
        self.0.row_window()
    }

    #[getter]
    fn diagonals(&self) -> Vec<usize> {
        self.0.diagonals().to_vec()
    }

    #[getter]
    fn summaries(&self) -> Vec<(usize, usize)> {
        pairs(self.0.summaries())
    }

    #[getter]
    fn summarizes_parts(&self) -> bool {
        self.0.summarizes_parts()
    }

    fn row_extras(&self, query: usize) -> Vec<usize> {
        self.0.row_extras(query).to_vec()
    }

    fn contains(&self, query: usize, key: usize) -> bool {
        self.0.contains(query, key)
    }

    fn pair_count(&self, start: usize, rows: usize) -> Result<usize, Failure> {
        check_rows(start, rows)?;
        Ok(self.0.pair_count(start, rows))
    }

    fn reads(&self, start: usize, rows: usize) -> Result<Vec<(usize, usize)>, Failure> {
        check_rows(start, rows)?;
        Ok(pairs(&self.0.reads(start, rows)))
    }

    /// `[rows, tokens]`: true if the query at `start + r` reads key `j`.
    fn mask<'py>(
        &self,
        py: Python<'py>,
        start: usize,
        rows: usize,
        tokens: usize,
    ) -> Result<Bound<'py, PyArray2<bool>>, Failure> {
        check_rows(start, rows)?;
        if rows.saturating_mul(tokens) > MOST_MASK_ELEMENTS {
            return Err(Failure::option(format!(
                "a mask of {rows} rows and {tokens} tokens is larger than {MOST_MASK_ELEMENTS}: ask for fewer rows"
            )));
        }
        let mask = py.detach(|| self.0.to_mask(start, rows, tokens));
        Ok(mask.into_pyarray(py).reshape([rows, tokens])?)
    }

    /// The selection's parts; the same selection can be made from them.
    fn parts<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>, Failure> {
        let rows = self.0.extra_rows();
        let parts = PyDict::new(py);
        parts.set_item("spans", pairs(self.0.spans()))?;
        parts.set_item("row_window", self.0.row_window())?;
        parts.set_item("diagonals", self.0.diagonals())?;
        parts.set_item("extras_start", rows.start)?;
        parts.set_item("extras", rows.map(|row| self.0.row_extras(row)).collect::<Vec<_>>())?;
        parts.set_item("summaries", pairs(self.0.summaries()))?;
        parts.set_item("summarizes_parts", self.0.summarizes_parts())?;
        Ok(parts)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> Result<(Bound<'py, PyType>, (Bound<'py, PyDict>,)), Failure> {
        Ok((slf.get_type(), (slf.get().parts(slf.py())?,)))
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self) -> String {
        let mut parts = Vec::new();
        if !self.0.spans().is_empty() {
            let shown: Vec<String> = self
                .0
                .spans()
                .iter()
                .take(6)
                .map(|span| format!("{}..{}", span.start, span.end))
                .collect();
            let more = if self.0.spans().len() > 6 { ", …" } else { "" };
            parts.push(format!("spans {}{more}", shown.join(", ")));
        }
        if self.0.row_window() > 0 {
            parts.push(format!("window {}", self.0.row_window()));
        }
        if !self.0.diagonals().is_empty() {
            parts.push(format!("{} diagonals", self.0.diagonals().len()));
        }
        if self.0.has_row_extras() {
            parts.push("row extras".to_owned());
        }
        if !self.0.summaries().is_empty() {
            parts.push(format!("{} summaries", self.0.summaries().len()));
        }
        if parts.is_empty() {
            "Selection(nothing)".to_owned()
        } else {
            format!("Selection({})", parts.join("; "))
        }
    }
}

/// Refuses rows beyond the largest position.
pub(crate) fn check_rows(start: usize, rows: usize) -> Result<(), Failure> {
    if start <= MOST_TOKENS && rows <= MOST_TOKENS {
        Ok(())
    } else {
        Err(Failure::option(format!(
            "{rows} rows from position {start} on are beyond {MOST_TOKENS}"
        )))
    }
}
