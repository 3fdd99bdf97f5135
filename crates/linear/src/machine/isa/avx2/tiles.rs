//! Tiles of several tokens: a few stretches at a time are unpacked to the first cache, where all tokens use them.

use crate::quant::Quant;

/// Stretches that are unpacked together.
pub(in crate::machine::isa) const STRETCHES: usize = 8;

/// Tokens of a tile. Sums of 16 bits for 16 rows of each take two of the sixteen registers; with two scales a stretch, four tokens hide how
/// long their short chains take.
pub(in crate::machine::isa) const fn tile_tokens<Q: Quant>() -> usize {
    if Q::SHAPE.halves { 4 } else { 3 }
}

/// Expands to `quant_band` for instructions with 16 registers of 256 bits, which have `few_tokens` and the functions of
/// [`pairs`](super::pairs) in scope.
macro_rules! tile_kernels {
    ($features:literal) => {
        #[target_feature(enable = $features)]
        pub(in crate::machine::isa) fn quant_band<Q: Quant>(
            weights: &[u8],
            activations: &[ActivationBlock],
            sums: &mut [[f32; LANES]],
        ) {
            match sums.len() {
                1 => return few_tokens::<Q, 1>(weights, activations, sums),
                2 => return few_tokens::<Q, 2>(weights, activations, sums),
                FEW => return few_tokens::<Q, FEW>(weights, activations, sums),
                _ => {}
            }
            let stretches = activations.len() / sums.len();
            let tile_tokens = if sums.len() == 4 { 4 } else { tile_tokens::<Q>() };
            let mut expanded = [Expanded::default(); STRETCHES];
            let bytes = STRETCHES * STRETCH / Q::WEIGHTS * LANES * Q::BYTES;
            for (index, weights) in weights.chunks(bytes).enumerate() {
                let count = weights.len() / (LANES * Q::BYTES) * (Q::WEIGHTS / STRETCH);
                let expanded = &mut expanded[..count];
                expand::<Q>(weights, expanded);
                let tiles = activations.chunks(tile_tokens * stretches);
                for (sums, activations) in sums.chunks_mut(tile_tokens).zip(tiles) {
                    let rows = tile_rows(activations, stretches, index * STRETCHES..index * STRETCHES + count);
                    match sums.len() {
                        1 | 2 => quant_tile::<Q, 2>(expanded, &rows, sums),
                        3 => quant_tile::<Q, 3>(expanded, &rows, sums),
                        _ => quant_tile::<Q, 4>(expanded, &rows, sums),
                    }
                }
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn expand<Q: Quant>(weights: &[u8], expanded: &mut [Expanded]) {
            let blocks = weights.chunks_exact(LANES * Q::BYTES);
            for (block, expanded) in blocks.zip(expanded.chunks_exact_mut(Q::WEIGHTS / STRETCH)) {
                let halves = widen_halves::<Q>(block);
                for_stretches!(Q, INDEX => {
                    prefetch_far(share::<Q>(block, INDEX), AHEAD_BYTES);
                    Q::expand(block, INDEX, &halves, &mut expanded[INDEX]);
                });
            }
        }

        /// `ROWS` tokens or one less: the last then counts twice, which takes less time than it takes code not to.
        #[target_feature(enable = $features)]
        fn quant_tile<Q: Quant, const ROWS: usize>(expanded: &[Expanded], rows: &[&[ActivationBlock]], sums: &mut [[f32; LANES]]) {
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
                    add_tile_part::<Q, ROWS>(weights, part, &activations, &mut totals);
                }
                for row in 0..ROWS {
                    totals[row] = add_minimums::<Q>(totals[row], weights, activations[row]);
                }
            }
            for (sums, total) in sums.iter_mut().zip(totals) {
                *sums = bytemuck::must_cast(total);
            }
        }

        /// Adds the products of a part of a stretch. Sums of all tokens run side by side, so that none waits for its own.
        #[inline]
        #[target_feature(enable = $features)]
        fn add_tile_part<Q: Quant, const ROWS: usize>(
            weights: &Expanded,
            part: usize,
            activations: &[&ActivationBlock; ROWS],
            totals: &mut [Block; ROWS],
        ) {
            let mut products = [[_mm256_setzero_si256(); 2]; ROWS];
            for link in 0..groups::<Q>() / chain::<Q>() {
                let mut pairs = [[_mm256_setzero_si256(); 2]; ROWS];
                if link == 0 {
                    for row in 0..ROWS {
                        pairs[row] = [bias::<Q>(activations[row], part); 2];
                    }
                }
                for group in 0..chain::<Q>() {
                    let group = part * groups::<Q>() + link * chain::<Q>() + group;
                    let quants: [__m256i; 2] = bytemuck::must_cast(weights.quants[group]);
                    for row in 0..ROWS {
                        let word = word(activations[row], group);
                        pairs[row][0] = add_products::<Q>(pairs[row][0], quants[0], word);
                        pairs[row][1] = add_products::<Q>(pairs[row][1], quants[1], word);
                    }
                }
                for row in 0..ROWS {
                    for side in 0..2 {
                        products[row][side] = _mm256_add_epi32(products[row][side], whole(pairs[row][side]));
                    }
                }
            }
            let scales: Block = bytemuck::must_cast(weights.scales[part]);
            for row in 0..ROWS {
                let scale = _mm256_set1_ps(activations[row].scale);
                totals[row][0] = add_scaled(totals[row][0], products[row][0], scales[0], scale);
                totals[row][1] = add_scaled(totals[row][1], products[row][1], scales[1], scale);
            }
        }
    };
}

pub(in crate::machine::isa) use tile_kernels;
