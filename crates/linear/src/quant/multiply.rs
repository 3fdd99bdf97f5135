//! Bands of 16 outputs times tiles of tokens. Either every tile unpacks the weights in registers, or a panel of two bands is
//! unpacked to bytes once and read by every tile.

use core::ops::Range;
use std::cell::RefCell;

use rayon::prelude::*;

use super::{ActivationBlock, Expanded, PAIR_TOKENS, Quant, STRETCH, TILE_TOKENS};
use crate::LANES;
use crate::isa::Isa;
use crate::tasks::for_pieces;

/// Inputs of a panel, a multiple of every block: two bands unpacked fit the first cache.
const PANEL: usize = 512;
/// Tokens whose activations stay in the second cache while all weights pass by.
const CHUNK_TOKENS: usize = 96;
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
    let stretches = inputs / STRETCH;
    let band = inputs / Q::WEIGHTS * LANES * Q::BYTES;
    for_pieces(output, outputs, inputs, LANES, |first_token, first_output, rows| {
        let width = rows[0].len();
        let bands = &packed[first_output / LANES * band..][..width.div_ceil(LANES) * band];
        let in_registers = rows.len() <= TILE_TOKENS || isa.unpacks_in_registers::<Q>();
        let mut expanded = match in_registers {
            true => Vec::new(),
            false => vec![Expanded::default(); 2 * PANEL / STRETCH],
        };
        let tokens = rows.len();
        let mut sums = vec![[0.0; LANES]; 2 * CHUNK_TOKENS.min(tokens)];
        for (chunk, rows) in rows.chunks_mut(CHUNK_TOKENS).enumerate() {
            let start = first_token + chunk * CHUNK_TOKENS;
            let activations = &activations[start * stretches..][..rows.len() * stretches];
            for (pair, weights) in bands.chunks(2 * band).enumerate() {
                let (left, right) = sums.split_at_mut(CHUNK_TOKENS.min(tokens));
                let (left, right) = (&mut left[..rows.len()], &mut right[..rows.len()]);
                left.fill([0.0; LANES]);
                right.fill([0.0; LANES]);
                if in_registers {
                    for (weights, sums) in weights.chunks(band).zip([left, right]) {
                        let tiles = activations.chunks(TILE_TOKENS * stretches);
                        for (sums, activations) in sums.chunks_mut(TILE_TOKENS).zip(tiles) {
                            let tokens = panel_rows::<TILE_TOKENS>(activations, stretches, 0..stretches);
                            isa.quant_pass::<Q>(weights, &tokens[..sums.len()], sums);
                        }
                    }
                } else {
                    pair_of_bands::<Q>(isa, weights, band, activations, stretches, &mut expanded, [left, right]);
                }
                for (side, sums) in sums.chunks(CHUNK_TOKENS.min(tokens)).enumerate() {
                    let first = (2 * pair + side) * LANES;
                    for (row, sums) in rows.iter_mut().zip(sums) {
                        let row = &mut row[first.min(width)..(first + LANES).min(width)];
                        row.copy_from_slice(&sums[..row.len()]);
                    }
                }
            }
        }
    });
    ACTIVATIONS.set(activations);
}

/// Up to 32 outputs of a chunk of tokens, `activations` `[tokens, stretches]`; of a last single band the other's sums
/// come from what was left in `expanded` and are not used.
fn pair_of_bands<Q: Quant>(
    isa: Isa,
    weights: &[u8],
    band: usize,
    activations: &[ActivationBlock],
    stretches: usize,
    expanded: &mut [Expanded],
    [left, right]: [&mut [[f32; LANES]]; 2],
) {
    for start in (0..stretches).step_by(PANEL / STRETCH) {
        let range = start..stretches.min(start + PANEL / STRETCH);
        let (even, odd) = expanded.split_at_mut(PANEL / STRETCH);
        let (even, odd) = (&mut even[..range.len()], &mut odd[..range.len()]);
        let bytes =
            range.start * STRETCH / Q::WEIGHTS * LANES * Q::BYTES..range.end * STRETCH / Q::WEIGHTS * LANES * Q::BYTES;
        for (weights, expanded) in weights.chunks(band).zip([&mut *even, &mut *odd]) {
            isa.expand::<Q>(&weights[bytes.clone()], expanded);
        }
        let tiles = activations.chunks(PAIR_TOKENS * stretches);
        for ((left, right), activations) in left
            .chunks_mut(PAIR_TOKENS)
            .zip(right.chunks_mut(PAIR_TOKENS))
            .zip(tiles)
        {
            let rows = panel_rows::<PAIR_TOKENS>(activations, stretches, range.clone());
            isa.quant_pair(Q::SHAPE, [even, odd], &rows[..left.len()], [left, right]);
        }
    }
}

/// The stretches in `range` of a tile's tokens.
fn panel_rows<const TOKENS: usize>(
    activations: &[ActivationBlock],
    stretches: usize,
    range: Range<usize>,
) -> [&[ActivationBlock]; TOKENS] {
    let mut rows = [&activations[..0]; TOKENS];
    for (row, blocks) in rows.iter_mut().zip(activations.chunks_exact(stretches)) {
        *row = &blocks[range.clone()];
    }
    rows
}
