//! Cutting an output matrix into pieces that threads fill independently.

use rayon::prelude::*;

/// Work below which waking threads costs more than it saves, some 40 µs of one thread, in multiply-adds.
const SERIAL_WORK: usize = 6 << 20;
/// Reading a weight from memory takes about as long as multiplying it with so many tokens.
const READ_TOKENS: usize = 8;
/// Pieces per thread, so that a thread that is held up does not hold up the rest.
const PIECES_PER_THREAD: usize = 4;
/// Fewest tokens worth a piece of their own.
const LEAST_TOKENS: usize = 96;

/// Calls `work(first_token, first_output, rows)` for pieces that cover `output`, `[tokens, outputs]`; `rows` are a
/// piece's rows, each cut to its outputs. Pieces start at a multiple of `granule` outputs.
pub(crate) fn for_pieces(
    output: &mut [f32],
    outputs: usize,
    inputs: usize,
    granule: usize,
    work: impl Fn(usize, usize, &mut [&mut [f32]]) + Sync,
) {
    let tokens = output.len() / outputs;
    if tokens == 0 {
        return;
    }
    let threads = rayon::current_num_threads();
    if threads == 1 || (outputs * inputs).saturating_mul(tokens + READ_TOKENS) < SERIAL_WORK {
        let mut rows: Vec<&mut [f32]> = output.chunks_exact_mut(outputs).collect();
        return work(0, 0, &mut rows);
    }
    let wanted = threads * PIECES_PER_THREAD;
    let width = outputs.div_ceil(wanted).next_multiple_of(granule);
    let columns = outputs.div_ceil(width);
    let height = tokens.div_ceil(wanted.div_ceil(columns)).max(LEAST_TOKENS);
    let mut pieces = Vec::new();
    for (band, rows) in output.chunks_mut(height * outputs).enumerate() {
        let first = pieces.len();
        pieces
            .extend((0..columns).map(|column| (band * height, column * width, Vec::with_capacity(height.min(tokens)))));
        for row in rows.chunks_exact_mut(outputs) {
            for (column, part) in row.chunks_mut(width).enumerate() {
                pieces[first + column].2.push(part);
            }
        }
    }
    pieces
        .into_par_iter()
        .for_each(|(token, column, mut rows)| work(token, column, &mut rows));
}
