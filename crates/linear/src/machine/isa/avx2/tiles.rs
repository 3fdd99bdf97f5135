//! Tiles of several tokens: a few stretches at a time are unpacked into the first-level cache and shared by all
//! tokens.

use crate::quant::Quant;

/// Tokens per tile. Each token's 16-bit sums for 16 rows take two of sixteen registers; with two scales per stretch,
/// four tokens hide the latency of their short chains.
pub(in crate::machine::isa) const fn tile_tokens<Q: Quant>() -> usize {
    if Q::SHAPE.halves { 4 } else { 3 }
}

/// Expands to `quant_band` for instruction sets with 16 registers of 256 bits. The kernels for few tokens and the
/// functions of [`pairs`](super::pairs) must be in scope.
macro_rules! tile_kernels {
    ($features:literal) => {
        #[target_feature(enable = $features)]
        pub(in crate::machine::isa) fn quant_band<Q: Quant>(
            weights: &[u8],
            activations: &[ActivationBlock],
            sums: &mut [[f32; LANES]],
        ) {
            // For grid formats, several tokens share unpacked weights.
            if const { Q::CODES.is_costly() } {
                if let [sums] = sums {
                    return one_token::<Q>(weights, activations, sums);
                }
            } else {
                match sums.len() {
                    1 => return few_tokens::<Q, 1>(weights, activations, sums),
                    2 => return few_tokens::<Q, 2>(weights, activations, sums),
                    FEW => return few_tokens::<Q, FEW>(weights, activations, sums),
                    _ => {}
                }
            }
            let stretches = activations.len() / sums.len();
            let tile_tokens = if sums.len() == 4 { 4 } else { tile_tokens::<Q>() };
            let mut expanded = [Expanded::default(); SHARED_STRETCHES];
            let bytes = SHARED_STRETCHES * STRETCH / Q::WEIGHTS * LANES * Q::BYTES;
            for (index, weights) in weights.chunks(bytes).enumerate() {
                let count = weights.len() / (LANES * Q::BYTES) * (Q::WEIGHTS / STRETCH);
                let expanded = &mut expanded[..count];
                expand::<Q>(weights, expanded);
                let tiles = activations.chunks(tile_tokens * stretches);
                for (sums, activations) in sums.chunks_mut(tile_tokens).zip(tiles) {
                    let rows = tile_rows(
                        activations,
                        stretches,
                        index * SHARED_STRETCHES..index * SHARED_STRETCHES + count,
                    );
                    match sums.len() {
                        1 | 2 => quant_tile::<Q, 2>(expanded, &rows, sums),
                        3 => quant_tile::<Q, 3>(expanded, &rows, sums),
                        _ => quant_tile::<Q, 4>(expanded, &rows, sums),
                    }
                }
            }
        }

        /// `ROWS` tokens or one fewer. With one fewer, the last token is computed twice, which is faster than a
        /// separate case.
        #[target_feature(enable = $features)]
        fn quant_tile<Q: Quant, const ROWS: usize>(
            expanded: &[Expanded],
            rows: &[&[ActivationBlock]],
            sums: &mut [[f32; LANES]],
        ) {
            let last = sums.len() - 1;
            let mut tokens = [&rows[0][..expanded.len()]; ROWS];
            let mut totals = [[_mm256_setzero_ps(); 2]; ROWS];
            for row in 0..ROWS {
                tokens[row] = &rows[row.min(last)][..expanded.len()];
                totals[row] = bytemuck::must_cast(sums[row.min(last)]);
            }
            for (index, weights) in expanded.iter().enumerate() {
                let mut activations = [&tokens[0][index]; ROWS];
                for row in 0..ROWS {
                    activations[row] = &tokens[row][index];
                }
                for part in 0..parts::<Q>() {
                    add_part::<Q, 0, ROWS, true>(&[], weights, part, &activations, &mut totals);
                }
                for row in 0..ROWS {
                    totals[row] = add_minimums::<Q>(totals[row], weights, activations[row]);
                }
            }
            for (sums, total) in sums.iter_mut().zip(totals) {
                *sums = bytemuck::must_cast(total);
            }
        }
    };
}

pub(in crate::machine::isa) use tile_kernels;
