//! Row-wise and element-wise work, spread over threads if there is enough.
//!
//! Rows are computed independently, so results do not depend on their distribution.

use rayon::prelude::*;

/// Number of values below which waking threads costs more than it saves.
const PARALLEL_VALUES: usize = 1 << 15;
/// Fewest values of a task.
const TASK_VALUES: usize = 1 << 13;

/// Calls `work(row index, row)` for every row of `data`, `[rows, width]`.
pub(crate) fn for_rows(data: &mut [f32], width: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
    if data.len() < PARALLEL_VALUES {
        for (row, values) in data.chunks_exact_mut(width).enumerate() {
            work(row, values);
        }
        return;
    }
    let rows = TASK_VALUES.div_ceil(width);
    data.par_chunks_mut(rows * width).enumerate().for_each(|(task, block)| {
        for (row, values) in block.chunks_exact_mut(width).enumerate() {
            work(task * rows + row, values);
        }
    });
}

/// Calls `work(output, input)` on matching pieces of two arrays of one length.
pub(crate) fn for_pairs(output: &mut [f32], input: &[f32], work: impl Fn(&mut [f32], &[f32]) + Sync) {
    if output.len() < PARALLEL_VALUES {
        return work(output, input);
    }
    output
        .par_chunks_mut(TASK_VALUES)
        .zip(input.par_chunks(TASK_VALUES))
        .for_each(|(output, input)| work(output, input));
}

/// `sum += term`.
pub(crate) fn add(sum: &mut [f32], term: &[f32]) {
    for_pairs(sum, term, |sum, term| {
        for (sum, term) in sum.iter_mut().zip(term) {
            *sum += term;
        }
    });
}

/// `values *= factor`.
pub(crate) fn scale(values: &mut [f32], factor: f32) {
    for_rows(values, 1, |_, value| value[0] *= factor);
}
