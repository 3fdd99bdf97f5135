//! Sums over the inputs of linear layers: they show which channels are large, and so which weights matter.

use std::sync::{Arc, Mutex, PoisonError};

/// Sums of squares of a linear layer's inputs, one per input channel.
pub struct InputSums {
    name: String,
    totals: Mutex<InputTotals>,
}

/// The sums at some moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct InputTotals {
    /// Sums of squares by input channel.
    pub squares: Vec<f64>,
    /// Number of summed rows.
    pub rows: u64,
}

impl InputSums {
    pub(crate) fn new(name: String, inputs: usize) -> Arc<InputSums> {
        Arc::new(InputSums {
            name,
            totals: Mutex::new(InputTotals {
                squares: vec![0.0; inputs],
                rows: 0,
            }),
        })
    }

    /// The name of the layer's weights in a GGUF file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The sums so far.
    pub fn totals(&self) -> InputTotals {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds `input`, `[rows, inputs]`.
    pub(crate) fn add(&self, input: &[f32]) {
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        let totals = &mut *totals;
        let rows = input.chunks_exact(totals.squares.len());
        totals.rows += rows.len() as u64;
        for row in rows {
            for (sum, value) in totals.squares.iter_mut().zip(row) {
                *sum += f64::from(*value) * f64::from(*value);
            }
        }
    }
}
