//! 16 outputs at a time: a panel of weights is unpacked to bytes once and read by every tile of tokens.

use std::cell::RefCell;

use rayon::prelude::*;

use super::{ActivationBlock, Expanded, Quant, STRETCH, TILE_TOKENS};
use crate::LANES;
use crate::isa::Isa;
use crate::tasks::for_pieces;

/// Inputs of a panel, a multiple of every block: 16 rows unpacked fit the first cache.
const PANEL: usize = 1024;
/// Tokens whose activations stay in the second cache while all weights pass by.
const CHUNK_TOKENS: usize = 64;
/// Activations below which one thread rounds them all.
const SERIAL_ACTIVATIONS: usize = 1 << 16;

thread_local! {
    /// Rounded activations, kept from call to call.
    static ACTIVATIONS: RefCell<Vec<ActivationBlock>> = const { RefCell::new(Vec::new()) };
}

/// `output[token, out] = Σ input[token, in] · weight[out, in]`
pub(crate) fn multiply<Q: Quant>(
    isa: Isa,
    packed: &[u8],
    outputs: usize,
    inputs: usize,
    input: &[f32],
    output: &mut [f32],
) {
    // Taken, not borrowed: while this thread waits for others it may start another product.
    let mut activations = ACTIVATIONS.take();
    activations.resize(input.len() / STRETCH, ActivationBlock::default());
    if input.len() < SERIAL_ACTIVATIONS {
        isa.quantise(input, Q::SHAPE, &mut activations);
    } else {
        let rows = activations
            .par_chunks_mut(inputs / STRETCH)
            .zip(input.par_chunks(inputs));
        rows.for_each(|(blocks, row)| isa.quantise(row, Q::SHAPE, blocks));
    }
    for_pieces(output, outputs, inputs, LANES, |first_token, first_output, rows| {
        let stretches = inputs / STRETCH;
        let mut expanded = vec![Expanded::default(); PANEL.min(inputs) / STRETCH];
        for (chunk, rows) in rows.chunks_mut(CHUNK_TOKENS).enumerate() {
            let start = first_token + chunk * CHUNK_TOKENS;
            let activations = &activations[start * stretches..][..rows.len() * stretches];
            let mut sums = [[0.0; LANES]; CHUNK_TOKENS];
            let width = rows[0].len();
            for first in (0..width).step_by(LANES) {
                let band = inputs / Q::WEIGHTS * LANES * Q::BYTES;
                let weights = &packed[(first_output + first) / LANES * band..][..band];
                let sums = &mut sums[..rows.len()];
                sums.fill([0.0; LANES]);
                band_times_tokens::<Q>(isa, weights, activations, stretches, &mut expanded, sums);
                for (row, sums) in rows.iter_mut().zip(sums) {
                    let row = &mut row[first..(first + LANES).min(width)];
                    row.copy_from_slice(&sums[..row.len()]);
                }
            }
        }
    });
    ACTIVATIONS.set(activations);
}

/// 16 outputs of a chunk of tokens, `activations` `[tokens, stretches]`.
fn band_times_tokens<Q: Quant>(
    isa: Isa,
    weights: &[u8],
    activations: &[ActivationBlock],
    stretches: usize,
    expanded: &mut [Expanded],
    sums: &mut [[f32; LANES]],
) {
    if sums.len() <= TILE_TOKENS {
        let mut rows = [&activations[..0]; TILE_TOKENS];
        for (row, blocks) in rows.iter_mut().zip(activations.chunks_exact(stretches)) {
            *row = blocks;
        }
        return isa.quant_pass::<Q>(weights, &rows[..sums.len()], sums);
    }
    let panel_bytes = PANEL / Q::WEIGHTS * LANES * Q::BYTES;
    for (panel, weights) in weights.chunks(panel_bytes).enumerate() {
        let count = weights.len() / (LANES * Q::BYTES) * (Q::WEIGHTS / STRETCH);
        let expanded = &mut expanded[..count];
        isa.expand::<Q>(weights, expanded);
        let first = panel * PANEL / STRETCH;
        for (sums, activations) in sums
            .chunks_mut(TILE_TOKENS)
            .zip(activations.chunks(TILE_TOKENS * stretches))
        {
            let mut rows = [&activations[..0]; TILE_TOKENS];
            for (row, blocks) in rows.iter_mut().zip(activations.chunks_exact(stretches)) {
                *row = &blocks[first..first + count];
            }
            isa.quant_tile(Q::SHAPE, expanded, &rows[..sums.len()], sums);
        }
    }
}
