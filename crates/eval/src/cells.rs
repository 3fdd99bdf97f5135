//! Long measurements cut into cells: each is remembered when it is done, so that a run that was stopped goes on.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use riffle_engine::EngineError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::EvalError;
use crate::tasks::Watch;

/// Most bytes of a journal that is read.
const LARGEST_JOURNAL_BYTES: u64 = 256 << 20;

/// How far a measurement has come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step<'a> {
    /// Work done, of `total`; work is tokens, with deep ones counted more.
    pub done: f64,
    /// All work.
    pub total: f64,
    /// Work that was found in the journal, a part of `done`.
    pub found: f64,
    /// Cells done.
    pub cells_done: usize,
    /// All cells.
    pub cells: usize,
    /// The cell under way.
    pub cell: &'a str,
}

/// Told of each step; may ask to stop.
pub type StepWatch<'a> = dyn FnMut(&Step<'_>) -> ControlFlow<()> + Send + 'a;

/// Finished cells, in a file of one JSON line each that grows as they are finished.
#[derive(Debug, Default)]
pub struct Journal {
    file: Option<(PathBuf, File)>,
    found: HashMap<String, Value>,
}

/// A part of a measurement.
pub(crate) struct Cell<C> {
    /// Names it in the journal.
    pub(crate) name: String,
    /// Tokens it reads, for the time left.
    pub(crate) tokens: usize,
    pub(crate) task: C,
}

impl Journal {
    /// Remembers nothing beyond the run.
    pub fn none() -> Self {
        Self::default()
    }

    /// Goes on with the journal at `path`, or begins one. `about` is everything that decides the results beside the cells'
    /// names: a journal about something else is refused.
    ///
    /// # Errors
    /// [`EvalError::File`] for a file that cannot be read or written, or is about something else.
    pub fn open(path: &Path, about: &Value) -> Result<Self, EvalError> {
        let failed = |reason: String| EvalError::File {
            path: path.to_owned(),
            reason,
        };
        let io = |error: std::io::Error| EvalError::file(path, &error);
        let text = match riffle_files::read_text(path, LARGEST_JOURNAL_BYTES) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(io(error.into())),
        };
        // A line without its end was being written when the run was killed.
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        let mut lines = whole.lines();
        let foreign = || failed("not a journal of riffle eval: give --resume another file".to_owned());
        let known = match lines.next() {
            None if text.is_empty() => None,
            None => return Err(foreign()),
            Some(line) => {
                let head: Value = serde_json::from_str(line).map_err(|_| foreign())?;
                Some(head.get("journal").cloned().ok_or_else(foreign)?)
            }
        };
        if let Some(known) = known.as_ref().filter(|known| *known != about) {
            return Err(failed(format!(
                "it was begun with other settings ({}): remove it, or give --resume another file",
                difference(known, about)
            )));
        }
        let mut found = HashMap::new();
        for line in lines {
            let cell: Value = serde_json::from_str(line).map_err(|_| foreign())?;
            let name = cell.get("cell").and_then(Value::as_str).ok_or_else(foreign)?;
            found.insert(name.to_owned(), cell["found"].clone());
        }
        let file = riffle_files::open_with(path, OpenOptions::new().create(true).append(true));
        let mut file = file.map_err(|error| io(error.into()))?;
        file.set_len(whole.len() as u64).map_err(io)?;
        if known.is_none() {
            writeln!(file, "{}", json!({ "journal": about })).map_err(io)?;
        }
        Ok(Self {
            file: Some((path.to_owned(), file)),
            found,
        })
    }

    pub(crate) fn get<T: DeserializeOwned>(&self, cell: &str) -> Option<T> {
        self.found
            .get(cell)
            .and_then(|value| serde_json::from_value(value.clone()).ok())
    }

    pub(crate) fn put<T: Serialize>(&mut self, cell: &str, found: &T) -> Result<(), EvalError> {
        let Some((path, file)) = &mut self.file else {
            return Ok(());
        };
        let line = json!({ "cell": cell, "found": found }).to_string() + "\n";
        // In one write, so that a kill leaves a whole line or an unfinished last one.
        file.write_all(line.as_bytes())
            .and_then(|()| file.flush())
            .map_err(|error| EvalError::file(path, &error))
    }
}

/// The settings in which two journals differ.
fn difference(known: &Value, about: &Value) -> String {
    let (Some(known), Some(about)) = (known.as_object(), about.as_object()) else {
        return "of another kind".to_owned();
    };
    let names = known
        .keys()
        .chain(about.keys().filter(|name| !known.contains_key(*name)));
    let differing = names.filter(|name| known.get(*name) != about.get(*name));
    let texts: Vec<String> = differing
        .map(|name| {
            let show = |value: Option<&Value>| value.map_or("none".to_owned(), Value::to_string);
            format!(
                "{name}: {} there, {} here",
                show(known.get(name)),
                show(about.get(name))
            )
        })
        .collect();
    texts.join("; ")
}

/// Runs the cells that the journal does not know, in order, and returns what all of them found.
pub(crate) fn run_cells<C, T: Serialize + DeserializeOwned>(
    cells: &[Cell<C>],
    journal: &mut Journal,
    watch: &mut StepWatch<'_>,
    run: &mut dyn FnMut(&C, &mut Watch<'_>) -> Result<T, EvalError>,
) -> Result<Vec<T>, EvalError> {
    let work = |cell: &Cell<C>| cell.tokens as f64 * (1.0 + cell.tokens as f64 / 32_768.0);
    let total = cells.iter().map(work).sum();
    let (mut before, mut known) = (0.0, 0.0);
    let mut results = Vec::with_capacity(cells.len());
    for (number, cell) in cells.iter().enumerate() {
        let found = match journal.get(&cell.name) {
            Some(found) => {
                known += work(cell);
                found
            }
            None => {
                let mut part = |share: f64| {
                    watch(&Step {
                        done: before + share * work(cell),
                        total,
                        found: known,
                        cells_done: number,
                        cells: cells.len(),
                        cell: &cell.name,
                    })
                };
                let interrupted = || EvalError::Interrupted {
                    done: number,
                    cells: cells.len(),
                };
                if part(0.0).is_break() {
                    return Err(interrupted());
                }
                let found = run(&cell.task, &mut part).map_err(|error| match error {
                    EvalError::Engine(EngineError::Interrupted { .. }) => interrupted(),
                    error => error,
                })?;
                journal.put(&cell.name, &found)?;
                found
            }
        };
        before += work(cell);
        results.push(found);
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn cells() -> Vec<Cell<u32>> {
        (0..4)
            .map(|task| Cell {
                name: format!("cell {task}"),
                tokens: 100,
                task,
            })
            .collect()
    }

    #[test]
    fn a_run_that_was_stopped_goes_on_with_the_cell_it_was_at() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let about = json!({ "seed": 1 });
        let mut stop = |step: &Step<'_>| match step.cells_done {
            2 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        };
        let mut ran = Vec::new();
        let mut journal = Journal::open(&path, &about).unwrap();
        let error = run_cells(&cells(), &mut journal, &mut stop, &mut |task, _| {
            ran.push(*task);
            Ok(task * 10)
        });
        assert!(matches!(error, Err(EvalError::Interrupted { done: 2, cells: 4 })));
        // What a kill in mid-line leaves is dropped.
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"cell\":\"cell 2\",\"fou").unwrap();
        let mut journal = Journal::open(&path, &about).unwrap();
        let found = run_cells(
            &cells(),
            &mut journal,
            &mut |_| ControlFlow::Continue(()),
            &mut |task, _| {
                ran.push(*task);
                Ok(task * 10)
            },
        );
        assert_eq!(found.unwrap(), [0, 10, 20, 30]);
        assert_eq!(ran, [0, 1, 2, 3]);
    }

    #[cfg(unix)]
    #[test]
    fn a_journal_that_is_no_regular_file_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        for (path, found) in [(path.as_path(), "a pipe"), (Path::new("/dev/zero"), "a device")] {
            let message = Journal::open(path, &json!({})).unwrap_err().to_string();
            assert!(message.contains(found), "{message}");
        }
    }

    #[test]
    fn a_journal_about_something_else_is_refused_and_says_the_difference() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        Journal::open(&path, &json!({ "seed": 1, "model": "a" })).unwrap();
        let message = Journal::open(&path, &json!({ "seed": 2, "model": "a" }))
            .unwrap_err()
            .to_string();
        assert!(message.contains("seed: 1 there, 2 here"), "{message}");
        fs::write(&path, "some notes\n").unwrap();
        let message = Journal::open(&path, &json!({})).unwrap_err().to_string();
        assert!(message.contains("not a journal"), "{message}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "some notes\n");
    }
}
