//! Bands of 16 outputs times chunks of tokens.

use std::cell::RefCell;

use rayon::prelude::*;

use super::{ActivationBlock, Quant, STRETCH};
use crate::LANES;
use crate::machine::Isa;
use crate::tasks::{Piece, Product, for_pieces};

/// Bytes of weights that stay in the second cache while all tokens pass by.
const GROUP_BYTES: usize = 256 << 10;
/// Activations below which one thread rounds them all.
const SERIAL_ACTIVATIONS: usize = 1 << 16;

thread_local! {
    /// Rounded activations, kept from call to call.
    static ACTIVATIONS: RefCell<Vec<ActivationBlock>> = const { RefCell::new(Vec::new()) };
}

/// `output[token, out] = Σ input[token, in] · weight[out, in]` for every product.
pub(crate) fn multiply<Q: Quant>(isa: Isa, products: Vec<Product<'_>>, inputs: usize, input: &[f32]) {
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
    for_pieces(products, inputs, LANES, |piece| {
        let Piece {
            packed,
            first_token,
            first_output,
            mut rows,
            ..
        } = piece;
        let width = rows[0].len();
        let bands = &packed[first_output / LANES * band..][..width.div_ceil(LANES) * band];
        let chunk_tokens = isa.band_tokens();
        let mut sums = vec![[0.0; LANES]; chunk_tokens.min(rows.len())];
        let group_bands = (GROUP_BYTES / band).max(1);
        for (group, bands) in bands.chunks(group_bands * band).enumerate() {
            for (chunk, rows) in rows.chunks_mut(chunk_tokens).enumerate() {
                let start = first_token + chunk * chunk_tokens;
                let activations = &activations[start * stretches..][..rows.len() * stretches];
                let sums = &mut sums[..rows.len()];
                for (index, weights) in bands.chunks(band).enumerate() {
                    sums.fill([0.0; LANES]);
                    isa.quant_band::<Q>(weights, activations, sums);
                    let first = (group * group_bands + index) * LANES;
                    for (row, sums) in rows.iter_mut().zip(&*sums) {
                        let row = &mut row[first..width.min(first + LANES)];
                        row.copy_from_slice(&sums[..row.len()]);
                    }
                }
            }
        }
    });
    ACTIVATIONS.set(activations);
}
