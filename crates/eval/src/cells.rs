//! Splits long measurements into cells. The journal keeps each finished cell, so an interrupted run can continue.

use std::ops::ControlFlow;

use riffle_engine::EngineError;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::tasks::Watch;
use crate::{EvalError, Journal};

/// Progress of a measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CellStep<'a> {
    /// Finished work, of `total`, in tokens; tokens deep in the context count more.
    pub done: f64,
    /// All work.
    pub total: f64,
    /// Part of `done` that the journal already had.
    pub found: f64,
    /// Cells done.
    pub cells_done: usize,
    /// All cells.
    pub cells: usize,
    /// Name of the current cell.
    pub cell: &'a str,
}

/// Receives each step; may request a stop.
pub type StepWatch<'a> = dyn FnMut(&CellStep<'_>) -> ControlFlow<()> + Send + 'a;

/// A part of a measurement.
pub struct Cell<C> {
    /// The cell's name in the journal.
    pub name: String,
    /// Tokens that the cell reads, to estimate the time left.
    pub tokens: usize,
    /// The task that the cell measures.
    pub task: C,
}

/// Runs the cells that the journal lacks, in order, and returns the results of all cells.
///
/// # Errors
/// Errors of `run`; [`EvalError::Interrupted`].
pub fn run_cells<C, T: Serialize + DeserializeOwned>(
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
                    watch(&CellStep {
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
    use std::fs::OpenOptions;
    use std::io::Write;

    use serde_json::json;

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
        let mut stop = |step: &CellStep<'_>| match step.cells_done {
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
        drop(journal);
        // A killed process leaves half a line; the journal must drop it.
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"xxh3\":\"0123456789abcdef\",\"cell\":\"cell 2\",\"fou")
            .unwrap();
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
}
