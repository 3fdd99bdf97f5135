//! What the instruction sets share for quantised weights, around their own `stretches`.

/// Expands to `quantise`, `expand` and `quant_tile` for an instruction set that has `prefetch` and
/// `stretches::<HALVES, MINIMUMS, WIDE, ROWS>` in scope. `WIDE` quants use all 8 bits, others at most 7.
macro_rules! quant_kernels {
    ($features:literal) => {
        #[target_feature(enable = $features)]
        pub(super) fn quantise(values: &[f32], shape: Shape, blocks: &mut [ActivationBlock]) {
            crate::quant::quantise(values, shape, blocks);
        }

        #[target_feature(enable = $features)]
        pub(super) fn expand<Q: Quant>(weights: &[u8], expanded: &mut [Expanded]) {
            let blocks = weights.chunks_exact(LANES * Q::BYTES);
            for (block, expanded) in blocks.zip(expanded.chunks_exact_mut(Q::WEIGHTS / STRETCH)) {
                // A share for each stretch: a burst would overrun the buffers that wait for memory.
                let mut shares = block.chunks((LANES * Q::BYTES).div_ceil(Q::WEIGHTS / STRETCH));
                for (stretch, expanded) in expanded.iter_mut().enumerate() {
                    prefetch(shares.next().unwrap_or_default());
                    Q::expand(block, stretch, expanded);
                }
            }
        }

        /// Few tokens: a few stretches at a time are unpacked and used at once, so that memory never waits.
        #[target_feature(enable = $features)]
        pub(super) fn quant_pass<Q: Quant>(weights: &[u8], rows: &[&[ActivationBlock]], sums: &mut [[f32; LANES]]) {
            const STRETCHES: usize = 8;
            let mut expanded = [Expanded::default(); STRETCHES];
            let bytes = STRETCHES * STRETCH / Q::WEIGHTS * LANES * Q::BYTES;
            for (index, weights) in weights.chunks(bytes).enumerate() {
                let count = weights.len() / (LANES * Q::BYTES) * (Q::WEIGHTS / STRETCH);
                let expanded = &mut expanded[..count];
                expand::<Q>(weights, expanded);
                let mut parts = [&rows[0][..0]; crate::quant::TILE_TOKENS];
                for (part, row) in parts.iter_mut().zip(rows) {
                    *part = &row[index * STRETCHES..][..count];
                }
                quant_tile(Q::SHAPE, expanded, &parts[..rows.len()], sums);
            }
        }

        #[target_feature(enable = $features)]
        pub(super) fn quant_tile(
            shape: Shape,
            expanded: &[Expanded],
            rows: &[&[ActivationBlock]],
            sums: &mut [[f32; LANES]],
        ) {
            match (shape.halves, shape.minimums, shape.center > 64) {
                (false, false, false) => any_tokens::<false, false, false>(expanded, rows, sums),
                (false, false, true) => any_tokens::<false, false, true>(expanded, rows, sums),
                (false, true, _) => any_tokens::<false, true, false>(expanded, rows, sums),
                (true, false, _) => any_tokens::<true, false, false>(expanded, rows, sums),
                (true, true, _) => any_tokens::<true, true, false>(expanded, rows, sums),
            }
        }

        #[target_feature(enable = $features)]
        fn any_tokens<const HALVES: bool, const MINIMUMS: bool, const WIDE: bool>(
            expanded: &[Expanded],
            rows: &[&[ActivationBlock]],
            sums: &mut [[f32; LANES]],
        ) {
            match *rows {
                [a] => stretches::<HALVES, MINIMUMS, WIDE, 1>(expanded, [a], sums),
                [a, b] => stretches::<HALVES, MINIMUMS, WIDE, 2>(expanded, [a, b], sums),
                [a, b, c] => stretches::<HALVES, MINIMUMS, WIDE, 3>(expanded, [a, b, c], sums),
                [a, b, c, d] => stretches::<HALVES, MINIMUMS, WIDE, 4>(expanded, [a, b, c, d], sums),
                [a, b, c, d, ref rest @ ..] if rest.len() < 4 => {
                    let (low, high) = sums.split_at_mut(4);
                    stretches::<HALVES, MINIMUMS, WIDE, 4>(expanded, [a, b, c, d], low);
                    any_tokens::<HALVES, MINIMUMS, WIDE>(expanded, rest, high);
                }
                [a, b, c, d, e, f, g, h] => {
                    stretches::<HALVES, MINIMUMS, WIDE, 8>(expanded, [a, b, c, d, e, f, g, h], sums)
                }
                _ => unreachable!("a tile takes 1 to {} tokens", crate::quant::TILE_TOKENS),
            }
        }
    };
}

pub(super) use quant_kernels;
