//! Bands of 16 outputs times chunks of tokens.

use core::ops::Range;
use std::cell::RefCell;

use super::panels::Panels;
use super::{ActivationBlock, BlockFormat, STRETCH};
use crate::LANES;
use crate::machine::Isa;
use crate::tasks::{Product, RowsPiece, for_pieces};

/// Bytes of weights that stay in the second-level cache while all tokens use them.
const GROUP_BYTES: usize = 256 << 10;
/// The most bands that are multiplied with a panel of activations before the next panel.
const PASS_BANDS: usize = 16;

thread_local! {
    /// Rounded activations, kept between calls.
    static ACTIVATIONS: RefCell<Vec<ActivationBlock>> = const { RefCell::new(Vec::new()) };
}

/// `output[token, out] = Σ input[token, in] · weight[out, in]` for every product.
pub(crate) fn multiply(format: &BlockFormat, isa: Isa, products: Vec<Product<'_>>, inputs: usize, input: &[f32]) {
    if input.is_empty() {
        return;
    }
    // The buffer is taken, because this thread may start another product while it waits for others.
    let mut activations = ACTIVATIONS.take();
    activations.resize(input.len() / STRETCH, ActivationBlock::default());
    let most_tokens = products.iter().map(Product::tokens).max().unwrap_or(0);
    let panels = Panels::new(
        isa.panel_stretches(format, most_tokens),
        input.len() / inputs,
        inputs / STRETCH,
    );
    panels.quantise(isa, format.shape, input, &mut activations);
    let band = inputs / format.weights * LANES * format.bytes;
    let group_bands = (GROUP_BYTES / band).max(1);
    for_pieces(products, inputs, LANES, |piece| {
        let RowsPiece {
            packed,
            first_token,
            first_output,
            mut rows,
            ..
        } = piece;
        let width = rows[0].len();
        let bands = &packed[first_output / LANES * band..][..width.div_ceil(LANES) * band];
        let chunk_tokens = isa.band_tokens(format).min(rows.len());
        let pass_bands = match panels.count() {
            1 => 1,
            _ => group_bands.min(PASS_BANDS),
        };
        let mut sums = vec![[0.0; LANES]; chunk_tokens * pass_bands];
        for (group, bands) in bands.chunks(group_bands * band).enumerate() {
            for (chunk, rows) in rows.chunks_mut(chunk_tokens).enumerate() {
                let first_token = first_token + chunk * chunk_tokens;
                let tokens = first_token..first_token + rows.len();
                for (pass, bands) in bands.chunks(pass_bands * band).enumerate() {
                    let sums = &mut sums[..bands.len() / band * rows.len()];
                    sums.fill([0.0; LANES]);
                    for panel in 0..panels.count() {
                        let activations = &activations[panels.blocks(panel, tokens.clone())];
                        multiply_panel(format, isa, bands, panels.stretches(panel), activations, sums);
                    }
                    let first = (group * group_bands + pass * pass_bands) * LANES;
                    for (index, sums) in sums.chunks_exact(rows.len()).enumerate() {
                        let first = first + index * LANES;
                        for (row, sums) in rows.iter_mut().zip(sums) {
                            let row = &mut row[first..width.min(first + LANES)];
                            row.copy_from_slice(&sums[..row.len()]);
                        }
                    }
                }
            }
        }
    });
    ACTIVATIONS.set(activations);
}

/// Adds the products of some stretches of all `bands` with their activations, `[tokens, stretches]`, to `sums`,
/// `[band][tokens]`.
fn multiply_panel(
    format: &BlockFormat,
    isa: Isa,
    bands: &[u8],
    stretches: Range<usize>,
    activations: &[ActivationBlock],
    sums: &mut [[f32; LANES]],
) {
    let bytes = |stretches: usize| stretches * STRETCH / format.weights * LANES * format.bytes;
    let tokens = activations.len() / stretches.len();
    let weights = bytes(stretches.start)..bytes(stretches.end);
    let band = bands.len() / (sums.len() / tokens);
    for (index, sums) in sums.chunks_exact_mut(tokens).enumerate() {
        if let Some(next) = bands.get((index + 1) * band..)
            && weights.len() < band
            && !next.is_empty()
        {
            isa.prefetch(&next[weights.clone()]);
        }
        (format.multiply_band)(isa, &bands[index * band..][weights.clone()], activations, sums);
    }
}
